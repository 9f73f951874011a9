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
	image   Image
	address string
	// schematic is nil where its id alone is known.
	schematic *Schematic
	factory   Factory
}

// NewDiskImage answers the image of a schematic. image.Schematic is filled in.
func NewDiskImage(schematic Schematic, image Image, factory Factory) (*DiskImage, error) {
	id, err := schematic.ID()
	if err != nil {
		return nil, err
	}
	image.Schematic = id
	d, err := KnownDiskImage(image, factory)
	if err == nil {
		d.schematic = &schematic
	}
	return d, err
}

// KnownDiskImage answers the image of a schematic of which no more than the id
// is at hand: the factory must know it already.
func KnownDiskImage(image Image, factory Factory) (*DiskImage, error) {
	factory.Address = image.Factory
	address, err := image.URL()
	if err != nil {
		return nil, err
	}
	return &DiskImage{image: image, address: address, factory: factory}, nil
}

// SchematicID is the id of the image's schematic.
func (d *DiskImage) SchematicID() string { return d.image.Schematic }

// Identity says in few words what the image's content is: the factory it comes
// from is no part of it.
func (d *DiskImage) Identity() string {
	return "talos/" + d.image.Version + "/" + d.image.variant() + "/" + d.image.Schematic
}

// Format of the image; see [DiskFormat].
func (d *DiskImage) Format() string { return DiskFormat }

// Compression is none: the factory serves the form that is asked for.
func (d *DiskImage) Compression() string { return "" }

// Checksum is none: a factory builds images anew, and not byte for byte alike.
func (d *DiskImage) Checksum() (algorithm, sum string) { return "", "" }

// URL is the image's address at the factory.
func (d *DiskImage) URL() string { return d.address }

// Check asks the factory whether it serves the image's version, extensions and,
// where no more than its id is known, schematic. Nothing is changed there. The
// error is [ErrNotServed], or another where the factory did not answer.
func (d *DiskImage) Check(ctx context.Context) error {
	if d.schematic != nil {
		return d.factory.Check(ctx, d.image.Version, d.schematic.Customization.SystemExtensions.OfficialExtensions)
	}
	if err := d.factory.Check(ctx, d.image.Version, nil); err != nil {
		return err
	}
	_, err := d.factory.Schematic(ctx, d.image.Schematic)
	return err
}

// Installer answers the container image that goes with the disk image.
func (d *DiskImage) Installer() (string, error) { return d.image.Installer() }

// Prepare makes the schematic known to the factory where it is not yet, after
// asking it whether it serves the version with these extensions. A list that
// cannot be read is no reason to fail: the image's own answer decides.
func (d *DiskImage) Prepare(ctx context.Context) error {
	if err := d.Check(ctx); errors.Is(err, ErrNotServed) {
		return err
	}
	if d.schematic == nil {
		return nil
	}
	if _, err := d.factory.Schematic(ctx, d.image.Schematic); err == nil {
		return nil
	}
	_, err := d.factory.Register(ctx, *d.schematic)
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
