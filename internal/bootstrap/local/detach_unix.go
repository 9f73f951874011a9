// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package local

import "syscall"

// detached has a process live in a session of its own: no terminal and no
// process group of ours ends it.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
