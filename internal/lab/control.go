// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import "github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/talosnode"

// control is what runs the nodes' control planes and pods.
func (l *Lab) control() talosnode.Control { return l.Control }
