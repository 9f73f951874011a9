// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package talos knows Talos Linux images: schematics and their ids, the
// addresses of images at an Image Factory, and the factory's API.
package talos

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v4"
)

// Schematic says what an Image Factory adds to a plain Talos image. The order
// of the fields, and the tags, are those of the factory's own type
// (siderolabs/image-factory, pkg/schematic), because the id is a hash of the
// marshalled text.
type Schematic struct {
	Overlay       Overlay       `yaml:"overlay,omitempty"`
	Customization Customization `yaml:"customization"`
}

// Overlay is a board support package, for machines that are not plain PCs.
type Overlay struct {
	Image string `yaml:"image"`
	Name  string `yaml:"name"`
}

// Customization is the part of a schematic that applies to any machine.
type Customization struct {
	ExtraKernelArgs  []string         `yaml:"extraKernelArgs,omitempty"`
	Meta             []MetaValue      `yaml:"meta,omitempty"`
	SystemExtensions SystemExtensions `yaml:"systemExtensions,omitempty"`
}

// MetaValue is an entry of Talos' META partition.
type MetaValue struct {
	Key   uint8  `yaml:"key"`
	Value string `yaml:"value"`
}

// SystemExtensions lists the extensions baked into the image.
type SystemExtensions struct {
	// OfficialExtensions are names such as "siderolabs/qemu-guest-agent".
	OfficialExtensions []string `yaml:"officialExtensions,omitempty"`
}

// QEMUGuestAgent is the extension that answers Proxmox VE's guest agent calls.
const QEMUGuestAgent = "siderolabs/qemu-guest-agent"

var extensionName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9._-]*$`)

// NewSchematic answers the schematic with these extensions and kernel
// arguments. Extensions are a set: they are sorted and duplicates dropped, so
// that the same set always has the same id. Kernel arguments keep their order,
// which has a meaning.
func NewSchematic(extensions, kernelArgs []string) (Schematic, error) {
	names := slices.Clone(extensions)
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		if !extensionName.MatchString(name) {
			return Schematic{}, fmt.Errorf("extension %q is not of the form \"owner/name\", such as %q", name, QEMUGuestAgent)
		}
	}
	return Schematic{Customization: Customization{
		ExtraKernelArgs:  slices.Clone(kernelArgs),
		SystemExtensions: SystemExtensions{OfficialExtensions: names},
	}}, nil
}

// Marshal answers the canonical text of the schematic: YAML with an indent of
// four spaces, as the factory writes it.
func (s Schematic) Marshal() ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(4)
	if err := encoder.Encode(s); err != nil {
		return nil, fmt.Errorf("marshalling the schematic: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("marshalling the schematic: %w", err)
	}
	return out.Bytes(), nil
}

// ID answers the id under which every Image Factory knows the schematic: the
// SHA-256 of its canonical text. No factory is asked.
func (s Schematic) ID() (string, error) {
	text, err := s.Marshal()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
