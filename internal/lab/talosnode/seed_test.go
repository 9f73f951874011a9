// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestSeedIsReadFromTheVolumeThatCAPMOXAttaches(t *testing.T) {
	iso := nocloudISO(t, map[string]string{
		"user-data":      "version: v1alpha1\n",
		"meta-data":      "instance-id: abc\nlocal-hostname: n1\nhostname: n1\nprovider-id: proxmox://abc\n",
		"network-config": capmoxNetwork(netip.MustParseAddr("127.0.9.160")),
	})
	s, err := readSeed(iso)
	if err != nil {
		t.Fatal(err)
	}
	if string(s.UserData) != "version: v1alpha1\n" {
		t.Errorf("user-data is %q", s.UserData)
	}
	if s.MetaData.InstanceID != "abc" || s.MetaData.hostname() != "n1" || s.MetaData.ProviderID != "proxmox://abc" {
		t.Errorf("meta-data is %+v", s.MetaData)
	}
	addrs, err := s.NetworkConfig.addresses()
	if err != nil || !slices.Equal(addrs, []netip.Prefix{netip.MustParsePrefix("127.0.9.160/24")}) {
		t.Errorf("addresses are %v (%v)", addrs, err)
	}
}

func TestSeedsThatAreNoConfigurationSource(t *testing.T) {
	for name, tt := range map[string]struct {
		iso  func(t *testing.T) []byte
		want string
	}{
		"an empty drive": {func(*testing.T) []byte { return nil }, "no configuration source"},
		"another label": {func(t *testing.T) []byte {
			return labelledISO(t, "config-2", map[string]string{"user-data": "x"})
		}, `labelled "config-2"`},
		"no user-data": {func(t *testing.T) []byte {
			return nocloudISO(t, map[string]string{"meta-data": "hostname: a"})
		}, "no user-data"},
		"a cloud-config": {func(t *testing.T) []byte {
			return nocloudISO(t, map[string]string{"user-data": "#cloud-config\nusers: []\n"})
		}, "cloud-config"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readSeed(tt.iso(t))
			if !errors.Is(err, errNoConfigSource) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestNetworkConfigGivesStaticAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		text, want, err string
	}{
		"version 2 in the order of the interfaces": {text: "network: {version: 2, ethernets: {eth1: {addresses: [10.0.1.2/24]}, eth0: {addresses: [10.0.0.2/24, 'fd00::2/64']}}}", want: "10.0.0.2/24 fd00::2/64 10.0.1.2/24"},
		"version 2 without the outer key":          {text: "version: 2\nethernets: {eth0: {addresses: [10.0.0.2/24]}}", want: "10.0.0.2/24"},
		"version 1":                                {text: "version: 1\nconfig: [{type: physical, name: eth0, subnets: [{type: static, address: 10.0.0.3/24}]}]", want: "10.0.0.3/24"},
		"version 1 with DHCP gives none":           {text: "version: 1\nconfig: [{type: physical, name: eth0, subnets: [{type: dhcp4}]}]"},
		"an address without a prefix":              {text: "version: 2\nethernets: {eth0: {addresses: [10.0.0.2]}}", want: "10.0.0.2/32"},
		"version 3 is not supported":               {text: "version: 3", err: "version=3 is not supported"},
		"no YAML":                                  {text: "{", err: "decode network-config"},
		"no address":                               {text: "version: 2\nethernets: {eth0: {addresses: [nonsense]}}", err: `address "nonsense"`},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := decodeNetworkConfig([]byte(tt.text))
			var got []netip.Prefix
			if err == nil {
				got, err = c.addresses()
			}
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error is %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for _, p := range got {
				texts = append(texts, p.String())
			}
			if s := strings.Join(texts, " "); s != tt.want {
				t.Errorf("addresses are %q, want %q", s, tt.want)
			}
		})
	}
}
