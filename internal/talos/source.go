// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talos

import (
	"context"
	"errors"
	"io"
)

// DiskImage is the disk image of a schematic at a factory, as a source for a
// template.
type DiskImage struct {
	image     Image
	address   string
	schematic Schematic
	factory   Factory
}

// NewDiskImage answers the image of a schematic. image.Schematic is filled in.
func NewDiskImage(schematic Schematic, image Image, factory Factory) (*DiskImage, error) {
	id, err := schematic.ID()
	if err != nil {
		return nil, err
	}
	image.Schematic = id
	factory.Address = image.Factory
	address, err := image.URL()
	if err != nil {
		return nil, err
	}
	return &DiskImage{image: image, address: address, schematic: schematic, factory: factory}, nil
}

// SchematicID is the id of the image's schematic.
func (d *DiskImage) SchematicID() string { return d.image.Schematic }

// Identity says in few words what the image's content is: the factory it comes
// from is no part of it.
func (d *DiskImage) Identity() string {
	arch := d.image.Architecture
	if arch == "" {
		arch = Architectures[0]
	}
	return "talos/" + d.image.Version + "/" + arch + "/" + d.image.Schematic
}

// URL is the image's address at the factory.
func (d *DiskImage) URL() string { return d.address }

// Prepare makes the schematic known to the factory, after asking it whether it
// serves the version with these extensions. A list that cannot be read is no
// reason to fail: the image's own answer decides.
func (d *DiskImage) Prepare(ctx context.Context) error {
	err := d.factory.Check(ctx, d.image.Version, d.schematic.Customization.SystemExtensions.OfficialExtensions)
	if errors.Is(err, ErrNotServed) {
		return err
	}
	_, err = d.factory.Register(ctx, d.schematic)
	return err
}

// Size answers the image's length in bytes.
func (d *DiskImage) Size(ctx context.Context) (int64, error) {
	return d.factory.Size(ctx, d.address)
}

// Download writes the image to out.
func (d *DiskImage) Download(ctx context.Context, out io.Writer) (int64, error) {
	return d.factory.Download(ctx, d.address, out)
}
