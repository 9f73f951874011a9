// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package talos knows Talos Linux images: schematics and their ids, the
// addresses of images at an Image Factory, and the factory's API.
package talos

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v4"
)

// Schematic says what an Image Factory adds to a plain Talos image. The order
// of the fields, and the tags, are those of the factory's own type
// (siderolabs/image-factory, pkg/schematic), because the id is a hash of the
// marshalled text.
type Schematic struct {
	Owner         string        `yaml:"owner,omitempty"`
	Overlay       Overlay       `yaml:"overlay,omitempty"`
	Customization Customization `yaml:"customization"`
}

// Overlay is a board support package, for machines that are not plain PCs.
type Overlay struct {
	Image   string         `yaml:"image"`
	Name    string         `yaml:"name"`
	Options map[string]any `yaml:"options,omitempty"`
}

// Customization is the part of a schematic that applies to any machine.
type Customization struct {
	EmbeddedMachineConfiguration string           `yaml:"embeddedMachineConfiguration,omitempty"`
	ExtraKernelArgs              []string         `yaml:"extraKernelArgs,omitempty"`
	Meta                         []MetaValue      `yaml:"meta,omitempty"`
	SystemExtensions             SystemExtensions `yaml:"systemExtensions,omitempty"`
	Bootloader                   string           `yaml:"bootloader,omitempty"`
	SecureBoot                   SecureBoot       `yaml:"secureboot,omitempty"`
	DiskImage                    DiskImageOptions `yaml:"diskImage,omitempty"`
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

// SecureBoot says which keys an image for Secure Boot brings along.
type SecureBoot struct {
	EnrollKeys                   string `yaml:"enrollKeys,omitempty"`
	IncludeWellKnownCertificates bool   `yaml:"includeWellKnownCertificates,omitempty"`
}

// DiskImageOptions are those of the disk that is written.
type DiskImageOptions struct {
	SectorSize int `yaml:"sectorSize,omitempty"`
}

// QEMUGuestAgent is the extension that answers Proxmox VE's guest agent calls.
const QEMUGuestAgent = "siderolabs/qemu-guest-agent"

var extensionName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9._-]*$`)

// Additions are what is most often added to a plain image.
type Additions struct {
	// Extensions are a set of names of official extensions.
	Extensions []string
	// KernelArgs are appended to the kernel's command line, in this order.
	KernelArgs []string
	// Meta are entries of the META partition, in this order; no key twice.
	Meta []MetaValue
	// Overlay is a board support package; empty means none.
	Overlay Overlay
}

// NewSchematic answers the schematic with these extensions and kernel arguments
// and nothing else; see [Additions].
func NewSchematic(extensions, kernelArgs []string) (Schematic, error) {
	return Additions{Extensions: extensions, KernelArgs: kernelArgs}.Schematic()
}

// Schematic answers the schematic with these additions. Extensions are sorted
// and duplicates dropped, so that the same set always has the same id. Kernel
// arguments and meta values keep their order.
func (a Additions) Schematic() (Schematic, error) {
	names := slices.Clone(a.Extensions)
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		if !extensionName.MatchString(name) {
			return Schematic{}, fmt.Errorf("extension %q is not of the form \"owner/name\", such as %q", name, QEMUGuestAgent)
		}
	}
	seen := map[uint8]bool{}
	for _, entry := range a.Meta {
		if seen[entry.Key] {
			return Schematic{}, fmt.Errorf("the meta key %d is given twice", entry.Key)
		}
		seen[entry.Key] = true
	}
	if (a.Overlay.Image == "") != (a.Overlay.Name == "") || (a.Overlay.Image == "" && len(a.Overlay.Options) > 0) {
		return Schematic{}, errors.New("an overlay needs both its image and its name, such as \"siderolabs/sbc-raspberrypi\" and \"rpi_generic\"")
	}
	return Schematic{
		Overlay: a.Overlay,
		Customization: Customization{
			ExtraKernelArgs:  slices.Clone(a.KernelArgs),
			Meta:             slices.Clone(a.Meta),
			SystemExtensions: SystemExtensions{OfficialExtensions: names},
		},
	}, nil
}

// ParseSchematic reads a schematic as a factory does: YAML, or JSON, which is
// YAML as well; a field that a factory does not know is refused. The order of
// all lists is kept.
func ParseSchematic(text string) (Schematic, error) {
	var s Schematic
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
		return s, fmt.Errorf("the schematic is not understood: %w", err)
	}
	return s, nil
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
