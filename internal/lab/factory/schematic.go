// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package factory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gopkg.in/yaml.v3"
)

// schematic has the fields of the Image Factory's own, in its order: the order
// and the omitted zero values are part of what the id is computed from
// (image-factory pkg/schematic).
type schematic struct {
	Owner         string        `yaml:"owner,omitempty"`
	Overlay       overlay       `yaml:"overlay,omitempty"`
	Customization customization `yaml:"customization"`
}

type overlay struct {
	Image   string         `yaml:"image"`
	Name    string         `yaml:"name"`
	Options map[string]any `yaml:"options,omitempty"`
}

type customization struct {
	EmbeddedMachineConfiguration string           `yaml:"embeddedMachineConfiguration,omitempty"`
	ExtraKernelArgs              []string         `yaml:"extraKernelArgs,omitempty"`
	Meta                         []metaValue      `yaml:"meta,omitempty"`
	SystemExtensions             systemExtensions `yaml:"systemExtensions,omitempty"`
	Bootloader                   string           `yaml:"bootloader,omitempty"`
	SecureBoot                   secureBoot       `yaml:"secureboot,omitempty"`
	DiskImage                    diskImage        `yaml:"diskImage,omitempty"`
}

type metaValue struct {
	Key   uint8  `yaml:"key"`
	Value string `yaml:"value"`
}

type systemExtensions struct {
	OfficialExtensions []string `yaml:"officialExtensions,omitempty"`
}

type secureBoot struct {
	EnrollKeys                   string `yaml:"enrollKeys,omitempty"`
	IncludeWellKnownCertificates bool   `yaml:"includeWellKnownCertificates,omitempty"`
}

type diskImage struct {
	SectorSize int `yaml:"sectorSize,omitempty"`
}

// parseSchematic reads what a client posts. Unknown fields are refused.
func parseSchematic(raw []byte) (schematic, error) {
	var s schematic
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
		return s, fmt.Errorf("error decoding schematic: %w", err)
	}
	return s, nil
}

// canonical is the text that the id is the hash of, and the id.
func (s schematic) canonical() (text []byte, id string, err error) {
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(4)
	if err := enc.Encode(s); err != nil {
		return nil, "", err
	}
	if err := enc.Close(); err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(buf.Bytes())
	return buf.Bytes(), hex.EncodeToString(sum[:]), nil
}

// keep remembers a schematic, on disk where there is a folder.
func (f *Factory) keep(id string, text []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.schematics[id] = text
	if f.opts.Dir == "" {
		return nil
	}
	path := filepath.Join(f.opts.Dir, id)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("keeping the schematic: %w", err)
	}
	return os.Rename(path+".new", path)
}

// loadSchematics reads those that an earlier factory kept in dir.
func loadSchematics(dir string) (map[string][]byte, error) {
	out := map[string][]byte{}
	if dir == "" {
		return out, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the Image Factory's folder: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the Image Factory's folder: %w", err)
	}
	for _, file := range files {
		if len(file.Name()) != sha256.Size*2 {
			continue
		}
		if out[file.Name()], err = os.ReadFile(filepath.Join(dir, file.Name())); err != nil {
			return nil, fmt.Errorf("reading a schematic: %w", err)
		}
	}
	return out, nil
}
