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
	// SecureBoot asks for the image whose boot loader and kernel are signed.
	SecureBoot bool
}

var (
	schematicID = regexp.MustCompile(`^[0-9a-f]{64}$`)
	// imageName is what a factory understands as the last part of an image's
	// address; it is not tied to a Talos version (image-factory, internal/profile).
	imageName = regexp.MustCompile(`^[a-z][a-z0-9-]*-(amd64|arm64)(-secureboot)?\.(raw|qcow2|vhd|ova|iso)(\.(xz|gz|zst|tar\.gz))?$`)
)

// CheckSchematicID refuses what is not the id of a schematic.
func CheckSchematicID(id string) error {
	if !schematicID.MatchString(id) {
		return fmt.Errorf("%q is not the id of a schematic, which has 64 lower-case hexadecimal digits", id)
	}
	return nil
}

// ImageURL answers the address of any image of a factory: name is the last
// part, such as "nocloud-amd64.qcow2" or "metal-arm64-secureboot.iso".
func ImageURL(factory, schematic, version, name string) (string, error) {
	base, err := FactoryURL(factory)
	if err != nil {
		return "", err
	}
	if err := CheckSchematicID(schematic); err != nil {
		return "", err
	}
	if err := CheckVersion(version); err != nil {
		return "", err
	}
	if !imageName.MatchString(name) {
		return "", fmt.Errorf("%q is not the name of an image: want <platform>-<architecture>[-secureboot].<format>[.<compression>], such as \"nocloud-amd64.qcow2\"", name)
	}
	return base.JoinPath("image", schematic, version, name).String(), nil
}

// URL answers the address of the nocloud disk image. nocloud is the platform of
// Talos that reads the cloud-init drive which Cluster API's Proxmox provider
// attaches; "metal" has no way to learn its configuration there.
func (i Image) URL() (string, error) {
	arch := i.arch()
	if !slices.Contains(Architectures, arch) {
		return "", fmt.Errorf("architecture %q is not one of %s", arch, strings.Join(Architectures, ", "))
	}
	return ImageURL(i.Factory, i.Schematic, i.Version, "nocloud-"+i.variant()+"."+DiskFormat)
}

func (i Image) arch() string {
	if i.Architecture == "" {
		return Architectures[0]
	}
	return i.Architecture
}

// variant is what tells images of one version and platform apart.
func (i Image) variant() string {
	if i.SecureBoot {
		return i.arch() + "-secureboot"
	}
	return i.arch()
}

// Installer answers the container image that a machine of this schematic
// installs and upgrades itself from, as its machine configuration names it.
func (i Image) Installer() (string, error) {
	base, err := FactoryURL(i.Factory)
	if err != nil {
		return "", err
	}
	name := "installer"
	if i.SecureBoot {
		name = "installer-secureboot"
	}
	return base.Host + "/" + name + "/" + i.Schematic + ":" + i.Version, nil
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
