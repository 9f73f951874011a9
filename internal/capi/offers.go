// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/config"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/repository"
)

// Offer is what was released of a provider after the version it has.
type Offer struct {
	Provider Provider
	// Contract is that of the provider's version; empty where no release says.
	Contract string
	// Newer are the later releases, oldest first. Pre-releases are left out.
	Newer []Release
}

// Release is a version of a provider and the version of Cluster API's contract
// that it keeps; empty where the newest release's metadata do not name its series.
type Release struct{ Version, Contract string }

// Patch answers the newest release of the same minor version, if there is one.
func (o Offer) Patch() (Release, bool) {
	have, err := version.ParseSemantic(o.Provider.Version)
	if err != nil {
		return Release{}, false
	}
	for _, r := range slices.Backward(o.Newer) {
		if v := version.MustParseSemantic(r.Version); v.Major() == have.Major() && v.Minor() == have.Minor() {
			return r, true
		}
	}
	return Release{}, false
}

// Offers looks for later releases of providers, where they are published: in a
// repository folder, or on GitHub, which is asked by way of the Go module proxy
// as clusterctl does, and then with token, which may be empty. An error made by
// [errors.Join] tells of each provider whose releases cannot be listed.
func Offers(ctx context.Context, providers []Provider, source Source, token string) ([]Offer, error) {
	var offers []Offer
	var faults []error
	for _, p := range providers {
		offer, err := offerOf(ctx, p, source, token)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", p, err))
			continue
		}
		offers = append(offers, *offer)
	}
	return offers, errors.Join(faults...)
}

func offerOf(ctx context.Context, p Provider, source Source, token string) (*Offer, error) {
	have, err := version.ParseSemantic(p.Version)
	if err != nil {
		return nil, fmt.Errorf("version %q is not a release: %w", p.Version, err)
	}
	listed, err := releasesOf(ctx, p, source, token)
	if err != nil {
		return nil, fmt.Errorf("listing its releases: %w", err)
	}
	offer := &Offer{Provider: p}
	for _, text := range listed {
		if v, err := version.ParseSemantic(text); err == nil && v.PreRelease() == "" && have.LessThan(v) {
			offer.Newer = append(offer.Newer, Release{Version: text})
		}
	}
	slices.SortFunc(offer.Newer, func(a, b Release) int {
		if version.MustParseSemantic(a.Version).LessThan(version.MustParseSemantic(b.Version)) {
			return -1
		}
		return 1
	})
	newest := p.Version
	if len(offer.Newer) > 0 {
		newest = offer.Newer[len(offer.Newer)-1].Version
	}
	// The newest release's metadata tell the contracts of all series before it.
	found, err := openRelease(ctx, p.at(newest), source, nil)
	if err != nil {
		return nil, err
	}
	metadata, err := found.Metadata(newest).Get(ctx)
	if err != nil {
		return nil, err
	}
	offer.Contract = contractIn(metadata, have)
	for i := range offer.Newer {
		offer.Newer[i].Contract = contractIn(metadata, version.MustParseSemantic(offer.Newer[i].Version))
	}
	return offer, nil
}

// at is the provider in another version, whose URL may name the one it has.
func (p Provider) at(version string) Provider {
	p.URL = strings.Replace(p.URL, "/"+p.Version+"/", "/"+version+"/", 1)
	p.Version = version
	return p
}

func releasesOf(ctx context.Context, p Provider, source Source, token string) ([]string, error) {
	location, err := componentsURL(ctx, p, source)
	if err != nil {
		return nil, err
	}
	switch {
	case location.Scheme == "file":
		return foldersOf(location)
	case location.Host == "github.com":
		return githubReleases(ctx, p, source, token)
	}
	return nil, fmt.Errorf("%s cannot be asked for a list: folders (file:///) and releases on github.com can", location.Host)
}

func foldersOf(components *url.URL) ([]string, error) {
	entries, err := os.ReadDir(filepath.FromSlash(path.Dir(path.Dir(components.Path))))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// githubLock keeps two from asking at the same time: clusterctl's client for
// GitHub keeps what it has heard in maps of its package (repository_github.go,
// v1.14.2).
var githubLock sync.Mutex

func githubReleases(ctx context.Context, p Provider, source Source, token string) ([]string, error) {
	variables := map[string]string{}
	if token != "" {
		variables[config.GitHubTokenVariable] = token
	}
	found, err := openRelease(ctx, p, source, variables)
	if err != nil {
		return nil, err
	}
	githubLock.Lock()
	defer githubLock.Unlock()
	releases, err := repository.NewGitHubRepository(ctx, found.provider, found.config.Variables())
	if err != nil {
		return nil, err
	}
	return releases.GetVersions(ctx)
}
