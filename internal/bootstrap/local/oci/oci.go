// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package oci finds container images and unpacks them into directories that
// many containers share as their read-only root file systems.
//
// Images come from OCI layouts, from archives of docker and OCI tools, and from
// registries. They are unpacked as an ordinary user: owners, devices, extended
// attributes and set-user-id bits are left out.
package oci

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Source is a place where images come from.
type Source interface {
	// Image finds the image of a reference for the platform of this process.
	// An error that is kube.ErrAbsent says that the source has no such image,
	// and the next one is asked.
	Image(ctx context.Context, ref string) (v1.Image, error)
	// String names the source in errors.
	String() string
}

// Lister is a source that can tell what it holds.
type Lister interface {
	// References lists the names of the images, each once.
	References(ctx context.Context) ([]string, error)
}

// Image is an unpacked image.
type Image struct {
	// Ref is the reference it was asked for by.
	Ref string
	// Digest is the manifest's digest ("sha256:..."). A docker archive has no
	// manifest: there it is the configuration's, the image's id.
	Digest string
	// Root is the directory of its root file system. Nobody writes to it.
	Root string
	// Config holds the image's entrypoint, command, environment and user.
	Config v1.Config
}
