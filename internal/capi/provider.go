// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package capi installs Cluster API providers with clusterctl's library or
// with the cluster-api-operator, and reads what is installed. It keeps all
// configuration in memory: no clusterctl file, environment variable or
// override folder of the machine plays a part.
package capi

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/config"
)

// Type is a kind of Cluster API provider, in clusterctl's words
// (sigs.k8s.io/cluster-api v1.14.2, cmd/clusterctl/api/v1alpha3).
type Type = clusterctlv1.ProviderType

// The kinds of providers.
const (
	Core             = clusterctlv1.CoreProviderType
	Bootstrap        = clusterctlv1.BootstrapProviderType
	ControlPlane     = clusterctlv1.ControlPlaneProviderType
	Infrastructure   = clusterctlv1.InfrastructureProviderType
	IPAM             = clusterctlv1.IPAMProviderType
	RuntimeExtension = clusterctlv1.RuntimeExtensionProviderType
	Addon            = clusterctlv1.AddonProviderType
)

// Types lists the kinds of providers in the order in which they are installed.
func Types() []Type {
	return []Type{Core, Bootstrap, ControlPlane, Infrastructure, IPAM, RuntimeExtension, Addon}
}

// Provider is a provider that is to be installed.
type Provider struct {
	Type Type
	// Name is the provider's name in clusterctl's sense: "cluster-api", "proxmox".
	Name string
	// Version is a release, with its v: "v0.9.0". It is never "latest".
	Version string
	// URL is where the components file of any version lies, with "latest" or a
	// version as the last folder but one, as in clusterctl's configuration.
	// Empty means the repository given to the engine, else the place that
	// clusterctl knows.
	URL string
	// Variables fill the ${VARIABLES} of this provider's components and of no
	// other's. They may be secrets.
	Variables map[string]string
	// Credentials are set for Proxmox VE only.
	Credentials *ProxmoxCredentials
	// Availability, where set, changes how the provider's managers run.
	Availability *Availability `json:",omitempty"`
}

// Label names the provider among all: "infrastructure-proxmox".
func (p Provider) Label() string { return clusterctlv1.ManifestLabel(p.Name, p.Type) }

// Labels names the providers, in their order.
func Labels(providers []Provider) []string {
	labels := make([]string, len(providers))
	for i, p := range providers {
		labels[i] = p.Label()
	}
	return labels
}

// String names the provider and its version for people.
func (p Provider) String() string { return p.Label() + " " + p.Version }

// Source says where components come from.
type Source struct {
	// Repository is the URL of a folder that holds the files of the releases as
	// they are, laid out as clusterctl lays out a local repository,
	// {label}/{version}/{file}: file:///srv/capi or an https mirror. Empty means
	// the providers' own releases.
	Repository string
}

// Check finds what is wrong with a set of providers that is to run on one
// cluster, from the set alone. All faults are told at once.
func Check(ctx context.Context, providers []Provider, source Source) error {
	var faults []error
	cores := 0
	seen := map[string]bool{}
	for _, p := range providers {
		if p.Type == Core {
			cores++
		}
		if seen[p.Label()] {
			faults = append(faults, fmt.Errorf("%s is named twice", p.Label()))
		}
		seen[p.Label()] = true
		if err := CheckVersion(p.Version); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", p.Label(), err))
			continue
		}
		if _, err := componentsURL(ctx, p, source); err != nil {
			faults = append(faults, err)
		}
	}
	if cores != 1 {
		faults = append(faults, fmt.Errorf("there must be exactly one core provider, cluster-api, and there are %d", cores))
	}
	if seen["infrastructure-proxmox"] && !seen["ipam-in-cluster"] {
		faults = append(faults, errors.New("infrastructure-proxmox needs ipam-in-cluster: without it no machine gets an address"))
	}
	return errors.Join(faults...)
}

// CheckVersion says what is wrong with a release's version.
func CheckVersion(v string) error {
	if v == "" {
		return errors.New("the version is empty")
	}
	if !strings.HasPrefix(v, "v") {
		return fmt.Errorf("version %q does not begin with v", v)
	}
	if _, err := version.ParseSemantic(v); err != nil {
		return fmt.Errorf("version %q is not a release such as v1.2.3", v)
	}
	return nil
}

// componentsURL answers where the components file of exactly p.Version lies.
func componentsURL(ctx context.Context, p Provider, source Source) (*url.URL, error) {
	raw := p.URL
	switch {
	case raw != "":
	case source.Repository != "":
		raw = strings.TrimSuffix(source.Repository, "/") + "/" + path.Join(p.Label(), p.Version, componentsFile(ctx, p))
	default:
		known, err := knownURL(ctx, p)
		if err != nil {
			return nil, err
		}
		raw = known
	}
	location, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("the URL %q of %s is not valid", raw, p.Label())
	}
	if location.Scheme != "file" && location.Scheme != "https" {
		return nil, fmt.Errorf("the URL %q of %s is not valid: only file:///... and https://... are read", raw, p.Label())
	}
	parts := strings.Split(location.Path, "/")
	if len(parts) < 3 {
		return nil, fmt.Errorf("the URL %q of %s is not valid: it must end in {version}/{file}", raw, p.Label())
	}
	folder := &parts[len(parts)-2]
	if *folder != "latest" && CheckVersion(*folder) != nil {
		return nil, fmt.Errorf("the URL %q of %s is not valid: its last folder must be a version or latest", raw, p.Label())
	}
	if p.URL != "" && *folder != "latest" && *folder != p.Version {
		return nil, fmt.Errorf("the URL %q of %s is that of version %s, and %s is asked for: write latest into it, or the same version", raw, p.Label(), *folder, p.Version)
	}
	*folder = p.Version
	location.Path = strings.Join(parts, "/")
	return location, nil
}

// componentsFile is the name under which p's releases hold their components:
// the one that clusterctl knows, else the one that its contract asks for.
func componentsFile(ctx context.Context, p Provider) string {
	if known, err := knownURL(ctx, p); err == nil {
		return path.Base(known)
	}
	switch p.Type {
	case Core:
		return "core-components.yaml"
	case clusterctlv1.ProviderTypeUnknown:
		return "cert-manager.yaml"
	}
	return strings.TrimSuffix(p.Label(), p.Name) + "components.yaml"
}

func knownURL(ctx context.Context, p Provider) (string, error) {
	client, err := config.New(ctx, "", config.InjectReader(config.NewMemoryReader()))
	if err != nil {
		return "", fmt.Errorf("reading clusterctl's list of providers: %w", err)
	}
	known, err := client.Providers().List()
	if err != nil {
		return "", fmt.Errorf("reading clusterctl's list of providers: %w", err)
	}
	i := slices.IndexFunc(known, func(k config.Provider) bool { return k.Name() == p.Name && k.Type() == p.Type })
	if i < 0 {
		return "", fmt.Errorf("clusterctl does not know %s: give its url", p.Label())
	}
	return known[i].URL(), nil
}
