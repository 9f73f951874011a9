// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package node

// kernelVersion answers nothing: nodes run on Linux only.
func kernelVersion() string { return "" }
