// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package main

func labCommands() []subcommand { return nil }
