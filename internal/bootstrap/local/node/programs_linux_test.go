// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/controlplane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

// programs answers the control plane's programs out of the lab's images.
func programs(ctx context.Context, dir string) (controlplane.Binaries, error) {
	set, err := artifacts.Ensure(ctx, func(_ context.Context, phase, message string) { fmt.Fprintln(os.Stderr, phase, message) })
	if err != nil {
		return controlplane.Binaries{}, err
	}
	store := oci.NewStore(filepath.Join(dir, "images"), oci.Layout{Path: set.ImageLayout})
	return controlplane.ImagesOf("v1.36.2").Binaries(ctx, func(ctx context.Context, ref string) (string, error) {
		image, err := store.Unpack(ctx, ref)
		if err != nil {
			return "", err
		}
		return image.Root, nil
	})
}
