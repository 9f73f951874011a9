// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// releases writes a repository folder in which a provider has the given releases.
func releases(t *testing.T, label, metadata string, versions ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, version := range versions {
		folder := filepath.Join(dir, label, version)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, metadataFile), []byte(metadata), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const threeSeries = `apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
kind: Metadata
releaseSeries:
- {major: 1, minor: 2, contract: v1beta2}
- {major: 1, minor: 1, contract: v1beta2}
- {major: 1, minor: 0, contract: v1beta1}
`

func TestOffers(t *testing.T) {
	dir := releases(t, "ipam-in-cluster", threeSeries, "v1.0.3", "v1.0.10", "v1.0.4", "v0.9.0", "v1.1.0", "v1.2.0-rc.1", "v1.2.0", "not-a-release")
	for name, test := range map[string]struct {
		provider Provider
		source   Source
		newer    string
		patch    string
		contract string
		fails    string
	}{
		"what came after, in its order": {
			provider: Provider{Type: IPAM, Name: "in-cluster", Version: "v1.0.3"}, source: Source{Repository: "file://" + dir},
			newer: "v1.0.4 v1beta1, v1.0.10 v1beta1, v1.1.0 v1beta2, v1.2.0 v1beta2", patch: "v1.0.10", contract: "v1beta1",
		},
		"nothing after the newest": {
			provider: Provider{Type: IPAM, Name: "in-cluster", Version: "v1.2.0"}, source: Source{Repository: "file://" + dir}, contract: "v1beta2",
		},
		"a URL with its version": {
			provider: Provider{Type: IPAM, Name: "in-cluster", Version: "v1.1.0", URL: "file://" + dir + "/ipam-in-cluster/v1.1.0/c.yaml"},
			newer:    "v1.2.0 v1beta2", contract: "v1beta2",
		},
		"a URL with latest": {
			provider: Provider{Type: IPAM, Name: "in-cluster", Version: "v1.1.0", URL: "file://" + dir + "/ipam-in-cluster/latest/c.yaml"},
			newer:    "v1.2.0 v1beta2", contract: "v1beta2",
		},
		"a mirror that cannot be listed": {
			provider: Provider{Type: IPAM, Name: "in-cluster", Version: "v1.1.0"}, source: Source{Repository: "https://mirror.example/capi"},
			fails: "ipam-in-cluster v1.1.0: listing its releases: mirror.example cannot be asked for a list",
		},
		"a folder without the provider": {
			provider: Provider{Type: Bootstrap, Name: "talos", Version: "v0.6.12"}, source: Source{Repository: "file://" + dir}, fails: "no such file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			offers, err := Offers(t.Context(), []Provider{test.provider}, test.source, "")
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Fatalf("error is %v, want %q", err, test.fails)
			}
			if err != nil {
				return
			}
			var newer []string
			for _, r := range offers[0].Newer {
				newer = append(newer, r.Version+" "+r.Contract)
			}
			patch, _ := offers[0].Patch()
			if got := strings.Join(newer, ", "); got != test.newer || patch.Version != test.patch || offers[0].Contract != test.contract {
				t.Errorf("got %q, patch %q, contract %q", got, patch.Version, offers[0].Contract)
			}
		})
	}
}

// Releases on GitHub are asked of the Go module proxy of the environment, as
// clusterctl does.
func TestReleasesOnGitHubAreListedByTheModuleProxy(t *testing.T) {
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		if r.URL.Path != "/github.com/example/provider/@v/list" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = fmt.Fprintln(w, "v1.0.0\nv1.1.0")
	}))
	t.Cleanup(proxy.Close)
	t.Setenv("GOPROXY", proxy.URL)
	p := Provider{Type: IPAM, Name: "example", Version: "v1.0.0", URL: "https://github.com/example/provider/releases/latest/components.yaml"}
	got, err := releasesOf(t.Context(), p, Source{}, "a-token")
	if err != nil || strings.Join(got, " ") != "v1.0.0 v1.1.0" {
		t.Errorf("got %v, %v; asked was %v", got, err, asked)
	}
}
