// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
)

// Contract is the version of Cluster API's contract that a release of a provider
// keeps, as the metadata of the release says ("v1beta1").
type Contract struct {
	Provider Provider
	Version  string
	// Before is the contract of the version that is installed, where one is.
	Before string
}

// Contracts reads the contracts of releases, in the order of the providers.
// installed are versions by label, and may be empty. An error made by
// [errors.Join] tells what could not be read; it says nothing against the
// providers.
func Contracts(ctx context.Context, providers []Provider, installed map[string]string, source Source) ([]Contract, error) {
	var contracts []Contract
	var faults []error
	for _, p := range providers {
		c, err := contractOf(ctx, p, installed[p.Label()], source)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", p, err))
			continue
		}
		contracts = append(contracts, c)
	}
	return contracts, errors.Join(faults...)
}

func contractOf(ctx context.Context, p Provider, installed string, source Source) (Contract, error) {
	found, err := openRelease(ctx, p, source, nil)
	if err != nil {
		return Contract{}, err
	}
	return found.contract(ctx, p, installed)
}

// contract reads the contract out of the release's metadata, which also says
// what that of an installed version is.
func (r *release) contract(ctx context.Context, p Provider, installed string) (Contract, error) {
	metadata, err := r.Metadata(p.Version).Get(ctx)
	if err != nil {
		return Contract{}, err
	}
	c := Contract{Provider: p}
	for release, into := range map[string]*string{p.Version: &c.Version, installed: &c.Before} {
		if release == "" {
			continue
		}
		parsed, err := version.ParseSemantic(release)
		if err != nil {
			return Contract{}, fmt.Errorf("version %q is not a release: %w", release, err)
		}
		*into = contractIn(metadata, parsed)
	}
	if c.Version == "" {
		return Contract{}, fmt.Errorf("%s of the release does not name its series %s", metadataFile, p.Version)
	}
	return c, nil
}

// contractIn answers the contract that metadata give to a version; nothing where
// they do not name its series.
func contractIn(metadata *clusterctlv1.Metadata, of *version.Version) string {
	if series := metadata.GetReleaseSeriesForVersion(of); series != nil {
		return series.Contract
	}
	return ""
}

// CheckContracts finds providers whose contract the core provider does not keep.
// The rule is clusterctl's (sigs.k8s.io/cluster-api v1.14.2,
// internal/contract/version.go): the same contract, or v1beta1 under a core of
// v1beta2. Without the core provider's contract nothing can be said.
func CheckContracts(contracts []Contract) error {
	i := slices.IndexFunc(contracts, func(c Contract) bool { return c.Provider.Type == Core })
	if i < 0 {
		return nil
	}
	core := contracts[i]
	compatible := []string{core.Version}
	if core.Version == "v1beta2" {
		compatible = append(compatible, "v1beta1")
	}
	var faults []error
	for _, c := range contracts {
		if !slices.Contains(compatible, c.Version) {
			faults = append(faults, fmt.Errorf("%s keeps contract %s, and %s works with %s", c.Provider, c.Version, core.Provider, strings.Join(compatible, " and ")))
		}
	}
	return errors.Join(faults...)
}

// CheckUpgrade refuses what [Init] and [EnsureOperator] would refuse: to take a
// provider back to an older version.
func CheckUpgrade(p Provider, installed string) error {
	return checkUpgrade(p.Label(), installed, p.Version)
}
