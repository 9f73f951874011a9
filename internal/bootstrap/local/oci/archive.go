// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Archive is a tar file as docker save, ctr images export and skopeo write it:
// an OCI layout, a docker archive, or both in one. It is not compressed.
type Archive struct {
	// Path is the file.
	Path string
	// IgnoreDigest is that of [Layout].
	IgnoreDigest bool
}

func (a Archive) String() string { return "the archive " + a.Path }

// Image implements [Source].
func (a Archive) Image(_ context.Context, ref string) (v1.Image, error) {
	r, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	files, err := a.list()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", a, err)
	}
	if _, ok := files["index.json"]; ok {
		return find(a, a.opener(files), r, a.IgnoreDigest)
	}
	if _, ok := files["manifest.json"]; ok {
		return a.dockerImage(r)
	}
	return nil, fmt.Errorf("reading %s: it is neither an OCI layout nor a docker archive", a)
}

// References implements [Lister]. Images without a name are not among them.
func (a Archive) References(context.Context) ([]string, error) {
	files, err := a.list()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", a, err)
	}
	if _, ok := files["index.json"]; ok {
		return references(a, a.opener(files))
	}
	manifest, err := a.manifest()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range manifest {
		names = append(names, d.RepoTags...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// manifest reads that of a docker archive.
func (a Archive) manifest() (tarball.Manifest, error) {
	manifest, err := tarball.LoadManifest(a.open)
	if err != nil {
		return nil, fmt.Errorf("reading manifest.json of %s: %w", a, err)
	}
	return manifest, nil
}

func (a Archive) open() (io.ReadCloser, error) { return os.Open(a.Path) }

// section is where a file lies in the archive.
type section struct{ offset, size int64 }

// list finds the archive's files.
func (a Archive) list() (map[string]section, error) {
	f, err := os.Open(a.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files := map[string]section{}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("it is no uncompressed tar file: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		// The reader takes whole blocks from the file and stands at the content.
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		files[path.Clean(h.Name)] = section{at, h.Size}
	}
}

// opener opens files in the archive.
func (a Archive) opener(files map[string]section) opener {
	return func(file string) (io.ReadCloser, error) {
		s, ok := files[file]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: a.Path + ":" + file, Err: fs.ErrNotExist}
		}
		f, err := os.Open(a.Path)
		if err != nil {
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{io.NewSectionReader(f, s.offset, s.size), f}, nil
	}
}

// dockerImage finds an image in an archive without a layout. A docker archive
// knows no digests of manifests, so a reference with one is found by its tag at
// most.
func (a Archive) dockerImage(wanted reference) (v1.Image, error) {
	if wanted.tag == nil || (wanted.digest != "" && !a.IgnoreDigest) {
		return nil, wanted.absentIn(a)
	}
	manifest, err := a.manifest()
	if err != nil {
		return nil, err
	}
	for _, d := range manifest {
		for _, text := range d.RepoTags {
			if !wanted.is(text) {
				continue
			}
			tag, err := name.NewTag(text)
			if err != nil {
				return nil, err
			}
			image, err := tarball.Image(a.open, &tag)
			if err != nil {
				return nil, fmt.Errorf("image %s in %s: %w", wanted.text, a, err)
			}
			return dockerImage{image}, nil
		}
	}
	return nil, wanted.absentIn(a)
}

// dockerImage spares making up a manifest, for which all layers would have to
// be compressed.
type dockerImage struct{ v1.Image }

// Digest is the configuration's.
func (i dockerImage) Digest() (v1.Hash, error) { return i.ConfigName() }
