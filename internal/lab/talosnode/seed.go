// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"sigs.k8s.io/yaml"
)

// errNoConfigSource is what Talos answers when no volume labelled cidata or
// CIDATA is attached, or when it holds no user-data: the machine then waits in
// maintenance mode for a configuration that nobody sends.
var errNoConfigSource = errors.New("no configuration source")

// seed is what a machine finds on its nocloud volume. The file names, the label
// and what is done with a missing file are those of Talos v1.13
// (internal/app/machined/pkg/runtime/v1alpha1/platform/nocloud).
type seed struct {
	UserData      []byte
	MetaData      metaData
	NetworkConfig networkConfig
	// raw forms, kept on the node's disk: a later boot without the volume goes on
	// with what the first one saw, as Talos does with its STATE partition.
	rawMetaData, rawNetworkConfig []byte
}

// metaData is the meta-data file as Talos reads it. CAPMOX v0.9.0 writes
// instance-id, local-hostname, hostname and, with providerIDInjection,
// provider-id (pkg/cloudinit/metadata.go).
type metaData struct {
	Hostname     string `json:"hostname,omitempty"`
	InternalDNS  string `json:"local-hostname,omitempty"`
	ExternalDNS  string `json:"public-hostname,omitempty"`
	InstanceID   string `json:"instance-id,omitempty"`
	InstanceType string `json:"instance-type,omitempty"`
	ProviderID   string `json:"provider-id,omitempty"`
	Region       string `json:"region,omitempty"`
	Zone         string `json:"zone,omitempty"`
}

// networkConfig is the part of a cloud-init network configuration that gives a
// machine its addresses.
type networkConfig struct {
	Version   int                 `json:"version"`
	Ethernets map[string]ethernet `json:"ethernets,omitempty"`
	Config    []configV1          `json:"config,omitempty"`
}

type ethernet struct {
	Match struct {
		HWAddr string `json:"macaddress,omitempty"`
	} `json:"match"`
	DHCPv4      bool     `json:"dhcp4,omitempty"`
	DHCPv6      bool     `json:"dhcp6,omitempty"`
	Addresses   []string `json:"addresses,omitempty"`
	Nameservers struct {
		Addresses []string `json:"addresses,omitempty"`
	} `json:"nameservers"`
}

type configV1 struct {
	Type    string `json:"type"`
	Name    string `json:"name,omitempty"`
	Subnets []struct {
		Type    string `json:"type"`
		Address string `json:"address,omitempty"`
	} `json:"subnets,omitempty"`
}

// readSeed reads the volume attached to a VM's CD-ROM drive.
func readSeed(iso []byte) (*seed, error) {
	if len(iso) == 0 {
		return nil, errNoConfigSource
	}
	volume, err := iso9660.Read(file.New(&memoryFile{bytes.NewReader(iso)}, true), int64(len(iso)), 0, 0)
	if err != nil {
		return nil, fmt.Errorf("open the ISO 9660 volume: %w", err)
	}
	if l := strings.TrimRight(volume.Label(), " \x00"); l != "cidata" && l != "CIDATA" {
		return nil, fmt.Errorf("the volume is labelled %q, not cidata: %w", l, errNoConfigSource)
	}
	entries, err := volume.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("list volume cidata: %w", err)
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		if files[e.Name()], err = volume.ReadFile(e.Name()); err != nil {
			return nil, fmt.Errorf("read %s of volume cidata: %w", e.Name(), err)
		}
	}
	return parseSeed(files["user-data"], files["meta-data"], files["network-config"])
}

// memoryFile lets the ISO 9660 reader work on bytes: the volume holds a
// cluster's keys, so no copy of it is written anywhere.
type memoryFile struct{ *bytes.Reader }

func (f *memoryFile) Stat() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }
func (f *memoryFile) Close() error               { return nil }

// parseSeed reads the three files of a nocloud volume.
func parseSeed(userData, rawMeta, rawNetwork []byte) (*seed, error) {
	if len(userData) == 0 {
		return nil, fmt.Errorf("volume cidata has no user-data: %w", errNoConfigSource)
	}
	if first, _, _ := bytes.Cut(userData, []byte("\n")); string(bytes.TrimSpace(first)) == "#cloud-config" {
		return nil, fmt.Errorf("user-data is a cloud-config, which Talos does not read: %w", errNoConfigSource)
	}
	s := &seed{UserData: userData, rawMetaData: rawMeta, rawNetworkConfig: rawNetwork}
	// Talos goes on with empty metadata when the file is not YAML.
	_ = yaml.Unmarshal(rawMeta, &s.MetaData)
	var err error
	if s.NetworkConfig, err = decodeNetworkConfig(rawNetwork); err != nil {
		return nil, err
	}
	return s, nil
}

// decodeNetworkConfig accepts both shapes: with and without the key "network".
func decodeNetworkConfig(raw []byte) (networkConfig, error) {
	if len(raw) == 0 {
		return networkConfig{}, nil
	}
	var wrapped struct {
		Network *networkConfig `json:"network"`
	}
	if err := yaml.Unmarshal(raw, &wrapped); err != nil {
		return networkConfig{}, fmt.Errorf("decode network-config: %w", err)
	}
	c := networkConfig{}
	if wrapped.Network != nil {
		c = *wrapped.Network
	} else if err := yaml.Unmarshal(raw, &c); err != nil {
		return networkConfig{}, fmt.Errorf("decode network-config: %w", err)
	}
	if c.Version != 1 && c.Version != 2 {
		return networkConfig{}, fmt.Errorf("network-config metadata version=%d is not supported", c.Version)
	}
	return c, nil
}

// addresses are the static addresses in the order of the interfaces' names. The
// lab has no DHCP server: an interface that only asks for one stays bare.
func (c networkConfig) addresses() ([]netip.Prefix, error) {
	var texts []string
	names := make([]string, 0, len(c.Ethernets))
	for name := range c.Ethernets {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		texts = append(texts, c.Ethernets[name].Addresses...)
	}
	for _, link := range c.Config {
		for _, s := range link.Subnets {
			if s.Address != "" && strings.HasPrefix(s.Type, "static") {
				texts = append(texts, s.Address)
			}
		}
	}
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, aerr := netip.ParseAddr(text)
			if aerr != nil {
				return nil, fmt.Errorf("network-config has the address %q: %w", text, err)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, p)
	}
	return out, nil
}

// hostname is the name that the platform gives: Talos prefers hostname to
// local-hostname.
func (m metaData) hostname() string {
	if m.Hostname != "" {
		return m.Hostname
	}
	return m.InternalDNS
}
