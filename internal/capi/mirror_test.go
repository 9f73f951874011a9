// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

func TestPublicationsNameEveryFileAndImageOfTheReleases(t *testing.T) {
	set, err := artifacts.Ensure(t.Context(), func(_ context.Context, _, message string) { t.Log(message) })
	if err != nil {
		t.Fatal(err)
	}
	source := Source{Repository: "file://" + set.Repository}
	published, err := Publications(t.Context(), talosOnProxmox(), &CertManager{Version: "v1.21.0"}, source)
	if err != nil {
		t.Fatal(err)
	}
	if len(published) != len(talosOnProxmox())+1 {
		t.Fatalf("got %d releases", len(published))
	}
	// A folder with just these files must do as a repository.
	mirror := t.TempDir()
	for _, p := range published {
		if len(p.Images) == 0 {
			t.Errorf("%s runs no image", p.Label)
		}
		if p.Label != "cert-manager" && p.Contract == "" {
			t.Errorf("%s keeps no contract", p.Label)
		}
		for name, address := range p.Files {
			location, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			content, err := os.ReadFile(location.Path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(mirror+"/"+name[:strings.LastIndex(name, "/")], 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(mirror+"/"+name, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	again, err := Publications(t.Context(), talosOnProxmox(), &CertManager{Version: "v1.21.0"}, Source{Repository: "file://" + mirror})
	if err != nil {
		t.Fatalf("the mirror does not do: %v", err)
	}
	for i := range again {
		if !slices.Equal(again[i].Images, published[i].Images) {
			t.Errorf("%s: %v and %v", again[i].Label, again[i].Images, published[i].Images)
		}
	}
	i := slices.IndexFunc(published, func(p Published) bool { return p.Label == "cert-manager" })
	if len(published[i].Images) != 3 {
		t.Errorf("images of cert-manager are %v, want those of controller, webhook and cainjector", published[i].Images)
	}
}

func TestPublicationsTellEveryReleaseThatCannotBeRead(t *testing.T) {
	_, err := Publications(t.Context(), talosOnProxmox(), &CertManager{Version: "v1.21.0"}, Source{Repository: "file://" + t.TempDir()})
	for _, want := range []string{"infrastructure-proxmox v0.9.0", "cluster-api v1.14.2", "cert-manager v1.21.0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}
