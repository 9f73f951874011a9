// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"path/filepath"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/talosnode"
)

// control is what runs the nodes' control planes and pods: what Options says, or
// the local runtime over the lab's images, whose unpacked roots all labs of a
// user share. It is nil without images.
func (l *Lab) control() (talosnode.Control, error) {
	if l.Control != nil || l.Artifacts == nil {
		return l.Control, nil
	}
	cache, err := artifacts.CacheDir()
	if err != nil {
		return nil, err
	}
	// Images are built anew here, so that a digest in a chart is never theirs.
	layout := oci.Layout{Path: l.Artifacts.ImageLayout, IgnoreDigest: true}
	return talosnode.NewLocalControl(oci.NewStore(filepath.Join(cache, "roots"), layout)), nil
}
