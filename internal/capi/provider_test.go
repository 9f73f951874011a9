// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"strings"
	"testing"
)

// talosOnProxmox are the providers of a Talos cluster on Proxmox VE.
func talosOnProxmox() []Provider {
	return []Provider{
		{Type: Infrastructure, Name: "proxmox", Version: "v0.9.0"},
		{Type: Core, Name: "cluster-api", Version: "v1.14.2"},
		{Type: Bootstrap, Name: "talos", Version: "v0.6.12"},
		{Type: ControlPlane, Name: "talos", Version: "v0.5.13"},
		{Type: IPAM, Name: "in-cluster", Version: "v1.1.0"},
	}
}

func TestCheck(t *testing.T) {
	with := func(change func(p []Provider) []Provider) []Provider { return change(talosOnProxmox()) }
	for name, test := range map[string]struct {
		providers []Provider
		source    Source
		fails     []string
	}{
		"a full set is right": {providers: talosOnProxmox()},
		"a set from a folder is right": {
			providers: talosOnProxmox(), source: Source{Repository: "file:///srv/capi/"},
		},
		"two faults are told at once": {
			providers: with(func(p []Provider) []Provider { p[0].Version = "0.9.0"; p[2].Version = "latest"; return p }),
			fails:     []string{`version "0.9.0" does not begin with v`, `version "latest" does not begin with v`},
		},
		"a version that is none is refused": {
			providers: with(func(p []Provider) []Provider { p[0].Version = "vNext"; return p }), fails: []string{"vNext"},
		},
		"a URL of another version is refused": {
			providers: with(func(p []Provider) []Provider {
				p[0].URL = "https://mirror.example/capmox/v0.8.0/infrastructure-components.yaml"
				return p
			}), fails: []string{"is that of version v0.8.0, and v0.9.0 is asked for"},
		},
		"no core provider is refused":     {providers: talosOnProxmox()[2:], fails: []string{"exactly one core provider"}},
		"a provider named twice is named": {providers: append(talosOnProxmox(), talosOnProxmox()[0]), fails: []string{"infrastructure-proxmox is named twice"}},
		"CAPMOX without an IPAM provider is refused": {
			providers: talosOnProxmox()[:4], fails: []string{"needs ipam-in-cluster"},
		},
		"a provider that clusterctl does not know needs a URL": {
			providers: append(talosOnProxmox(), Provider{Type: Bootstrap, Name: "k3s", Version: "v0.3.0"}), fails: []string{"does not know bootstrap-k3s: give its url"},
		},
		"a URL that is no release is refused": {
			providers: append(talosOnProxmox(), Provider{Type: Bootstrap, Name: "k3s", Version: "v0.3.0", URL: "https://example.com/k3s.yaml"}),
			fails:     []string{"bootstrap-k3s", "{version}/{file}"},
		},
		"a URL of a scheme that is not read is refused": {
			providers: append(talosOnProxmox(), Provider{Type: Bootstrap, Name: "k3s", Version: "v0.3.0", URL: "oci://example.com/k3s/latest/c.yaml"}),
			fails:     []string{"only file:///"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(t.Context(), test.providers, test.source)
			if len(test.fails) == 0 && err != nil {
				t.Fatal(err)
			}
			for _, want := range test.fails {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error is %v, want one with %q", err, want)
				}
			}
		})
	}
}

func TestRepositoryFolderHoldsTheReleasesFiles(t *testing.T) {
	for want, p := range map[string]Provider{
		"cluster-api/v1.14.2/core-components.yaml":                        {Type: Core, Name: "cluster-api", Version: "v1.14.2"},
		"control-plane-talos/v0.5.13/control-plane-components.yaml":       {Type: ControlPlane, Name: "talos", Version: "v0.5.13"},
		"ipam-in-cluster/v1.1.0/ipam-components.yaml":                     {Type: IPAM, Name: "in-cluster", Version: "v1.1.0"},
		"bootstrap-k3s/v0.3.0/bootstrap-components.yaml":                  {Type: Bootstrap, Name: "k3s", Version: "v0.3.0"},
		"runtime-extension-mine/v1.0.0/runtime-extension-components.yaml": {Type: RuntimeExtension, Name: "mine", Version: "v1.0.0"},
		"cert-manager/v1.21.0/cert-manager.yaml":                          CertManager{Version: "v1.21.0"}.provider(),
	} {
		got, err := componentsURL(t.Context(), p, Source{Repository: "file:///srv"})
		if err != nil || got.String() != "file:///srv/"+want {
			t.Errorf("got %v, %v, want %s", got, err, want)
		}
	}
}

func TestComponentsURLPinsTheVersion(t *testing.T) {
	capmox := Provider{Type: Infrastructure, Name: "proxmox", Version: "v0.9.0"}
	for name, test := range map[string]struct {
		url    string
		source Source
		want   string
		asset  string
	}{
		"the place that clusterctl knows": {
			want:  "https://github.com/ionos-cloud/cluster-api-provider-proxmox/releases/v0.9.0/infrastructure-components.yaml",
			asset: "https://github.com/ionos-cloud/cluster-api-provider-proxmox/releases/download/v0.9.0/infrastructure-components.yaml",
		},
		"a folder": {
			source: Source{Repository: "file:///srv/capi"},
			want:   "file:///srv/capi/infrastructure-proxmox/v0.9.0/infrastructure-components.yaml",
			asset:  "file:///srv/capi/infrastructure-proxmox/v0.9.0/infrastructure-components.yaml",
		},
		"a URL of its own comes before the folder, and latest in it becomes the version": {
			url:    "https://mirror.example/capmox/latest/infrastructure-components.yaml",
			source: Source{Repository: "file:///srv/capi"},
			want:   "https://mirror.example/capmox/v0.9.0/infrastructure-components.yaml",
			asset:  "https://mirror.example/capmox/v0.9.0/infrastructure-components.yaml",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := capmox
			p.URL = test.url
			got, err := componentsURL(t.Context(), p, test.source)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if asset := releaseAsset(got); asset != test.asset {
				t.Errorf("it is downloaded from %s, want %s", asset, test.asset)
			}
		})
	}
}
