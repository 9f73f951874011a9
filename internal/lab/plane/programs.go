// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package plane

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

const refName = "org.opencontainers.image.ref.name"

// programs takes the regular files out of images of a layout into the lab's
// cache, once for each image.
type programs struct{ layout string }

func (p programs) unpack(_ context.Context, ref string) (string, error) {
	image, digest, err := p.find(ref)
	if err != nil {
		return "", err
	}
	cache, err := artifacts.CacheDir()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "programs", digest.Hex)
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
		return "", err
	}
	partial, err := os.MkdirTemp(filepath.Dir(root), "partial")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(partial) }()
	if err := extract(image, partial); err != nil {
		return "", err
	}
	// Somebody who was faster has put the same content there.
	if err := os.Rename(partial, root); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return root, nil
}

func (p programs) find(ref string) (v1.Image, v1.Hash, error) {
	index, err := layout.ImageIndexFromPath(p.layout)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, v1.Hash{}, err
	}
	for _, entry := range manifest.Manifests {
		if entry.Annotations[refName] == ref {
			image, err := index.Image(entry.Digest)
			return image, entry.Digest, err
		}
	}
	return nil, v1.Hash{}, fmt.Errorf("the layout %s does not hold %s", p.layout, ref)
}

func extract(image v1.Image, dir string) error {
	content := mutate.Extract(image)
	defer func() { _ = content.Close() }()
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := write(filepath.Join(dir, filepath.Clean("/"+header.Name)), header.FileInfo().Mode().Perm()|0o200, archive); err != nil {
			return err
		}
	}
}

func write(name string, mode fs.FileMode, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}
