// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"context"
	"fmt"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Store unpacks images by digest below one directory. Several stores, also of
// several processes, may share it.
type Store struct {
	dir     string
	sources []Source
}

// NewStore returns a store over dir, which is made when it is needed. Sources
// are asked in their order.
func NewStore(dir string, sources ...Source) *Store {
	return &Store{dir: dir, sources: sources}
}

// Unpack finds the image and unpacks it unless that was done before. An error
// that is kube.ErrAbsent says that no source has it.
func (s *Store) Unpack(ctx context.Context, ref string) (*Image, error) {
	return nil, fmt.Errorf("image %s: %w", ref, kube.ErrAbsent)
}
