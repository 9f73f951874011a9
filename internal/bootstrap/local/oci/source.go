// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// refName is the annotation of an OCI layout's index that names an image (OCI
// image specification, annotations).
const refName = "org.opencontainers.image.ref.name"

// platform is what images are chosen for: containers run on the kernel of this
// machine.
func platform() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

// reference is a parsed image reference. A text may hold a tag and a digest, of
// which the library that reads references keeps the digest alone.
type reference struct {
	text   string
	tag    name.Reference // nil where the text has a digest and no tag
	digest string
}

func parseReference(text string) (reference, error) {
	r := reference{text: text}
	rest, digest, hasDigest := strings.Cut(text, "@")
	if hasDigest {
		if _, err := name.NewDigest(text); err != nil {
			return r, fmt.Errorf("reading the image reference %q: %w", text, err)
		}
		r.digest = digest
		if !strings.Contains(rest[strings.LastIndex(rest, "/")+1:], ":") {
			return r, nil
		}
	}
	tag, err := name.NewTag(rest)
	if err != nil {
		return r, fmt.Errorf("reading the image reference %q: %w", text, err)
	}
	r.tag = tag
	return r, nil
}

func (r reference) absentIn(s Source) error {
	return fmt.Errorf("image %s in %s: %w", r.text, s, kube.ErrAbsent)
}

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
	index, err := layout.ImageIndexFromPath(l.Path)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", l, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("reading the index of %s: %w", l, err)
	}
	for _, d := range manifest.Manifests {
		if r.digest != "" && d.Digest.String() == r.digest {
			return pick(index, d)
		}
	}
	if r.tag != nil && (r.digest == "" || l.IgnoreDigest) {
		for _, d := range manifest.Manifests {
			if named, err := parseReference(d.Annotations[refName]); err == nil && named.tag != nil && named.tag.Name() == r.tag.Name() {
				return pick(index, d)
			}
		}
	}
	return nil, r.absentIn(l)
}

// pick opens what a descriptor leads to: an image, or an index of images for
// several platforms.
func pick(index v1.ImageIndex, d v1.Descriptor) (v1.Image, error) {
	if !d.MediaType.IsIndex() {
		return checkedManifest(index, d.Digest)
	}
	inner, err := index.ImageIndex(d.Digest)
	if err != nil {
		return nil, err
	}
	manifest, err := inner.IndexManifest()
	if err != nil {
		return nil, err
	}
	want := platform()
	for _, m := range manifest.Manifests {
		if m.Platform != nil && m.Platform.Satisfies(want) {
			return checkedManifest(inner, m.Digest)
		}
	}
	return nil, fmt.Errorf("index %s has no image for %s", d.Digest, want)
}

// checkedManifest opens an image and checks its manifest, which a layout on disk
// does not do by itself.
func checkedManifest(index v1.ImageIndex, want v1.Hash) (v1.Image, error) {
	image, err := index.Image(want)
	if err != nil {
		return nil, err
	}
	got, err := image.Digest()
	if err != nil {
		return nil, err
	}
	if got != want {
		return nil, fmt.Errorf("the manifest of image %s has the digest %s: the source is damaged", want, got)
	}
	return image, nil
}

// Archive is a file as docker save writes it.
type Archive struct {
	Path string
}

func (a Archive) String() string { return "the archive " + a.Path }

// Image implements [Source].
func (a Archive) Image(_ context.Context, ref string) (v1.Image, error) {
	r, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	manifest, err := tarball.LoadManifest(pathOpener(a.Path))
	if err != nil {
		return nil, fmt.Errorf("reading %s, which must be one that docker save writes: %w", a, err)
	}
	if r.tag == nil {
		return nil, r.absentIn(a)
	}
	for _, d := range manifest {
		for _, text := range d.RepoTags {
			tag, err := name.NewTag(text)
			if err == nil && tag.Name() == r.tag.Name() {
				return tarball.Image(pathOpener(a.Path), &tag)
			}
		}
	}
	return nil, r.absentIn(a)
}

// Registry is the registry that a reference names. Credentials come from where
// docker and podman keep them.
type Registry struct {
	// Transport is used for the requests; nil means the default.
	Transport http.RoundTripper
}

func (r Registry) String() string { return "the registry that it names" }

// Image implements [Source].
func (r Registry) Image(ctx context.Context, ref string) (v1.Image, error) {
	parsed, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	full := parsed.tag
	if parsed.digest != "" {
		if full, err = name.NewDigest(ref); err != nil {
			return nil, err
		}
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithPlatform(platform()), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if r.Transport != nil {
		options = append(options, remote.WithTransport(r.Transport))
	}
	image, err := remote.Image(full, options...)
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return nil, parsed.absentIn(r)
	}
	if err != nil {
		return nil, fmt.Errorf("asking for image %s: %w", ref, err)
	}
	return image, nil
}

// ParseSource reads a source as configurations write it: oci-layout:/path,
// archive:/path, or registry for the registries that references name.
func ParseSource(text string) (Source, error) {
	kind, path, _ := strings.Cut(text, ":")
	switch {
	case text == "registry":
		return Registry{}, nil
	case path == "":
	case kind == "oci-layout":
		return Layout{Path: path}, nil
	case kind == "archive":
		return Archive{Path: path}, nil
	}
	return nil, fmt.Errorf("%q is no source of images: it must be oci-layout:/path, archive:/path or registry", text)
}
