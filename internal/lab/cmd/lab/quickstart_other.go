// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package main

// quickstartCommands has none: a lab's processes are ended by signals.
func quickstartCommands() []subcommand { return nil }
