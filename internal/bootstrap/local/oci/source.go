// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

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

// is says whether a name that a source gives to an image is this reference's tag.
func (r reference) is(text string) bool {
	named, err := parseReference(text)
	return err == nil && r.tag != nil && named.tag != nil && named.tag.Name() == r.tag.Name()
}

func (r reference) absentIn(s Source) error {
	return fmt.Errorf("image %s in %s: %w", r.text, s, kube.ErrAbsent)
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
