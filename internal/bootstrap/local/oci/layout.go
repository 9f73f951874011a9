// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// refName is the annotation of an OCI layout's index that names an image (OCI
// image specification, annotations); containerd and docker write a mere tag
// there, and the whole reference to containerdName.
const (
	refName        = "org.opencontainers.image.ref.name"
	containerdName = "io.containerd.image.name"
)

// maxDocument bounds manifests, indexes and configurations, in bytes.
const maxDocument = 8 << 20

// Layout is an OCI image layout: a folder.
type Layout struct {
	// Path is the folder.
	Path string
	// IgnoreDigest lets a reference with tag and digest be found by its tag when
	// no image has that digest: for images that were built anew.
	IgnoreDigest bool
}

func (l Layout) String() string { return "the OCI layout " + l.Path }

// Image implements [Source]. The index names images by the annotation
// org.opencontainers.image.ref.name, which holds the whole reference.
func (l Layout) Image(_ context.Context, ref string) (v1.Image, error) {
	r, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	return find(l, l.open, r, l.IgnoreDigest)
}

func (l Layout) open(file string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(l.Path, filepath.FromSlash(file)))
}

// References implements [Lister]. Images without a name are not among them.
func (l Layout) References(context.Context) ([]string, error) {
	return references(l, l.open)
}

// references reads the names out of an index.
func references(s Source, open opener) ([]string, error) {
	index, err := indexOf(s, open)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range index.Manifests {
		for _, annotation := range []string{containerdName, refName} {
			// A name that is a mere tag names no image.
			if text := d.Annotations[annotation]; strings.Contains(text, "/") {
				names = append(names, text)
				break
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func indexOf(s Source, open opener) (v1.IndexManifest, error) {
	var index v1.IndexManifest
	b, err := readAll(open, "index.json")
	if err == nil {
		err = json.Unmarshal(b, &index)
	}
	if err != nil {
		return index, fmt.Errorf("reading the index of %s: %w", s, err)
	}
	return index, nil
}

// opener opens a file of a layout by its path in it, with slashes.
type opener func(file string) (io.ReadCloser, error)

// find looks up an image in a layout, wherever its files are.
func find(s Source, open opener, wanted reference, ignoreDigest bool) (v1.Image, error) {
	index, err := indexOf(s, open)
	if err != nil {
		return nil, err
	}
	found := withDigest(open, index, wanted.digest)
	if found == nil && (wanted.digest == "" || ignoreDigest) {
		for _, d := range index.Manifests {
			if wanted.is(d.Annotations[refName]) || wanted.is(d.Annotations[containerdName]) {
				found = &d
				break
			}
		}
	}
	if found == nil {
		return nil, wanted.absentIn(s)
	}
	image, err := imageOf(open, *found)
	if err != nil {
		return nil, fmt.Errorf("image %s in %s: %w", wanted.text, s, err)
	}
	return image, nil
}

// withDigest finds a descriptor in the layout's index, or in an index that this
// one names.
func withDigest(open opener, index v1.IndexManifest, digest string) *v1.Descriptor {
	for _, d := range index.Manifests {
		if d.Digest.String() == digest {
			return &d
		}
		if !d.MediaType.IsIndex() {
			continue
		}
		var inner v1.IndexManifest
		// A layout may lack what its indexes name: that is not where it is then.
		if err := document(open, d.Digest, &inner); err != nil {
			continue
		}
		for _, d := range inner.Manifests {
			if d.Digest.String() == digest {
				return &d
			}
		}
	}
	return nil
}

// imageOf returns the image of a descriptor, that for our platform if it is one
// of an index.
func imageOf(open opener, d v1.Descriptor) (v1.Image, error) {
	if !d.MediaType.IsIndex() {
		return partial.CompressedToImage(&blobImage{open: open, descriptor: d})
	}
	var index v1.IndexManifest
	if err := document(open, d.Digest, &index); err != nil {
		return nil, err
	}
	want := platform()
	for _, m := range index.Manifests {
		if m.MediaType.IsImage() && m.Platform != nil && m.Platform.Satisfies(want) {
			return imageOf(open, m)
		}
	}
	return nil, fmt.Errorf("the index has no image for %s", want)
}

// blobImage is an image whose parts are files named by their digests.
type blobImage struct {
	open       opener
	descriptor v1.Descriptor
}

// MediaType is the manifest's.
func (i *blobImage) MediaType() (types.MediaType, error) { return i.descriptor.MediaType, nil }

// RawManifest reads and verifies the manifest.
func (i *blobImage) RawManifest() ([]byte, error) { return blob(i.open, i.descriptor.Digest) }

// RawConfigFile reads and verifies the configuration.
func (i *blobImage) RawConfigFile() ([]byte, error) {
	m, err := partial.Manifest(i)
	if err != nil {
		return nil, err
	}
	return blob(i.open, m.Config.Digest)
}

// LayerByDigest returns a layer. Its content is verified when it is unpacked.
func (i *blobImage) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	m, err := partial.Manifest(i)
	if err != nil {
		return nil, err
	}
	for _, d := range m.Layers {
		if d.Digest == digest {
			return &blobLayer{open: i.open, descriptor: d}, nil
		}
	}
	return nil, fmt.Errorf("the image has no layer %s", digest)
}

type blobLayer struct {
	open       opener
	descriptor v1.Descriptor
}

func (l *blobLayer) Digest() (v1.Hash, error)            { return l.descriptor.Digest, nil }
func (l *blobLayer) Size() (int64, error)                { return l.descriptor.Size, nil }
func (l *blobLayer) MediaType() (types.MediaType, error) { return l.descriptor.MediaType, nil }
func (l *blobLayer) Compressed() (io.ReadCloser, error)  { return l.open(blobPath(l.descriptor.Digest)) }
func blobPath(digest v1.Hash) string                     { return "blobs/" + digest.Algorithm + "/" + digest.Hex }
func document(open opener, digest v1.Hash, into any) error {
	b, err := blob(open, digest)
	if err != nil {
		return err
	}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(into); err != nil {
		return fmt.Errorf("reading blob %s: %w", digest, err)
	}
	return nil
}

// blob reads a document and verifies its digest.
func blob(open opener, digest v1.Hash) ([]byte, error) {
	b, err := readAll(open, blobPath(digest))
	if err != nil {
		return nil, fmt.Errorf("reading blob %s: %w", digest, err)
	}
	if sum := sha256.Sum256(b); digest.Algorithm != "sha256" || hex.EncodeToString(sum[:]) != digest.Hex {
		return nil, fmt.Errorf("blob %s is not what its digest says: the source is damaged", digest)
	}
	return b, nil
}

func readAll(open opener, file string) ([]byte, error) {
	f, err := open(file)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err == nil && len(b) > maxDocument {
		err = errors.New("it is too large")
	}
	return b, errors.Join(err, f.Close())
}
