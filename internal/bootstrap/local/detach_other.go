// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package local

import "syscall"

// detached is nothing: local clusters run on Linux only.
func detached() *syscall.SysProcAttr { return nil }
