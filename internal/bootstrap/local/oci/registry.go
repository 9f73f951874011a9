// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Registry is the registry that a reference names, or a mirror of it.
type Registry struct {
	// Mirrors are asked in their order before the registry itself, by the
	// registry's name as it stands in references ("docker.io", "registry.k8s.io"):
	// hosts, optionally with a path that goes before the repository.
	Mirrors map[string][]string
	// Insecure are hosts that are asked over plain HTTP. Loopback addresses
	// always are.
	Insecure []string
	// Keychain finds credentials; the default reads docker's and podman's files
	// and runs no credential helper.
	Keychain authn.Keychain
	// Transport is the default transport if it is nil.
	Transport http.RoundTripper
}

func (r Registry) String() string { return "the registry that it names" }

// Image implements [Source]: it asks the mirrors and the registry. Where a mirror does not answer, or
// not with the image, the next one is asked.
func (r Registry) Image(ctx context.Context, ref string) (v1.Image, error) {
	candidates, err := r.candidates(ref)
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, c := range candidates {
		image, err := r.pull(ctx, c)
		if err == nil {
			return image, nil
		}
		if !kube.IsAbsent(err) {
			failures = append(failures, err)
		}
	}
	if len(failures) > 0 {
		return nil, errors.Join(failures...)
	}
	return nil, fmt.Errorf("image %s in %s: %w", ref, r, kube.ErrAbsent)
}

// candidates are the references to ask for, mirrors first.
func (r Registry) candidates(ref string) ([]name.Reference, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("the image reference %q: %w", ref, err)
	}
	registry := parsed.Context().RegistryStr()
	hosts := slices.Clone(r.Mirrors[registry])
	if registry == name.DefaultRegistry {
		hosts = append(hosts, r.Mirrors["docker.io"]...)
	}
	separator := ":"
	if _, ok := parsed.(name.Digest); ok {
		separator = "@"
	}
	rest := "/" + parsed.Context().RepositoryStr() + separator + parsed.Identifier()
	var all []name.Reference
	for _, host := range append(hosts, registry) {
		var options []name.Option
		if address, _, _ := strings.Cut(host, "/"); slices.Contains(r.Insecure, address) {
			options = append(options, name.Insecure)
		}
		c, err := name.ParseReference(host+rest, options...)
		if err != nil {
			return nil, fmt.Errorf("the mirror %q of %s: %w", host, registry, err)
		}
		all = append(all, c)
	}
	return all, nil
}

func (r Registry) pull(ctx context.Context, ref name.Reference) (v1.Image, error) {
	keychain := r.Keychain
	if keychain == nil {
		keychain = storedCredentials{}
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(keychain), remote.WithPlatform(platform())}
	if r.Transport != nil {
		options = append(options, remote.WithTransport(r.Transport))
	}
	image, err := remote.Image(ref, options...)
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%s: %w", ref, kube.ErrAbsent)
	}
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", ref, err)
	}
	return image, nil
}
