// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talos

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// DefaultFactory is the public Image Factory. It asks for no login.
const DefaultFactory = "https://factory.talos.dev"

// Architectures are the machine types that Talos is built for.
var Architectures = []string{"amd64", "arm64"}

// DiskFormat is the form of image that Proxmox VE imports as it is: the factory
// serves it for every version of Talos, uncompressed, at about a tenth of the
// raw image's size. Compressed forms cannot be imported by download-url.
const DiskFormat = "qcow2"

// versionPattern is what the factory takes as a version tag; anything else is
// answered with a status of 500 that says nothing.
var versionPattern = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(alpha|beta|rc)\.\d+)?$`)

// CheckVersion refuses what is not the name of a Talos release, or older than
// the factory's oldest (1.2.0).
func CheckVersion(version string) error {
	parts := versionPattern.FindStringSubmatch(version)
	if parts == nil {
		return fmt.Errorf("%q is not a Talos version: want the form \"v1.13.7\"", version)
	}
	if parts[1] == "0" || (parts[1] == "1" && len(parts[2]) == 1 && parts[2] < "2") {
		return fmt.Errorf("talos %s is older than v1.2.0, the oldest that an Image Factory builds", version)
	}
	return nil
}

// Image names one disk image of a factory.
type Image struct {
	// Factory is the factory's address; empty means [DefaultFactory].
	Factory string
	// Schematic is the schematic's id.
	Schematic string
	// Version is the Talos release, such as "v1.13.7".
	Version string
	// Architecture is one of [Architectures]; empty means amd64.
	Architecture string
}

// URL answers the address of the nocloud disk image. nocloud is the platform of
// Talos that reads the cloud-init drive which Cluster API's Proxmox provider
// attaches; "metal" has no way to learn its configuration there.
func (i Image) URL() (string, error) {
	base, err := FactoryURL(i.Factory)
	if err != nil {
		return "", err
	}
	if err := CheckVersion(i.Version); err != nil {
		return "", err
	}
	arch := i.Architecture
	if arch == "" {
		arch = Architectures[0]
	}
	if !slices.Contains(Architectures, arch) {
		return "", fmt.Errorf("architecture %q is not one of %s", arch, strings.Join(Architectures, ", "))
	}
	return base.JoinPath("image", i.Schematic, i.Version, "nocloud-"+arch+"."+DiskFormat).String(), nil
}

// FactoryURL checks the address of a factory; empty means [DefaultFactory].
func FactoryURL(address string) (*url.URL, error) {
	if address == "" {
		address = DefaultFactory
	}
	base, err := url.Parse(strings.TrimRight(address, "/"))
	if err != nil {
		return nil, fmt.Errorf("the Image Factory's address: %w", err)
	}
	if (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("the Image Factory's address %q: want the form %q", address, DefaultFactory)
	}
	return base, nil
}
