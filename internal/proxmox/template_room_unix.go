// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package proxmox

import "golang.org/x/sys/unix"

// roomIn answers how many bytes may be written to a folder; ok is false where
// that is not known.
func roomIn(dir string) (free int64, ok bool) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, false
	}
	return int64(stat.Bavail) * int64(stat.Bsize), true //nolint:unconvert // the types differ from system to system
}
