// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talos

import (
	"strings"
	"testing"
)

// The ids were answered by the public Image Factory.
func TestIDsAreThoseOfTheImageFactory(t *testing.T) {
	tests := []struct {
		name      string
		schematic Schematic
		want      string
	}{
		{"nothing added", Schematic{}, "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"},
		{
			"the guest agent",
			Schematic{Customization: Customization{SystemExtensions: SystemExtensions{OfficialExtensions: []string{QEMUGuestAgent}}}},
			"ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515",
		},
		{
			"kernel arguments",
			Schematic{Customization: Customization{ExtraKernelArgs: []string{"noapic", "nolapic"}}},
			"9cba8e32753f91a16c1837ab8abf356af021706ef284aef07380780177d9a06c",
		},
		{
			"a meta value",
			Schematic{Customization: Customization{Meta: []MetaValue{{Key: 10, Value: "foo"}}}},
			"d308a2a5ee2277bed5fbaa104fcbc8d59122abfa737df987a95b4ca763459a7f",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.schematic.ID()
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				text, _ := tt.schematic.Marshal()
				t.Errorf("id is %s, want %s; text:\n%s", got, tt.want, text)
			}
		})
	}
}

func TestExtensionsAreASetAndKernelArgumentsAList(t *testing.T) {
	id := func(extensions, args []string) string {
		t.Helper()
		s, err := NewSchematic(extensions, args)
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.ID()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	a, b := "siderolabs/a", "siderolabs/b"
	if id([]string{a, b}, nil) != id([]string{b, a, b}, nil) {
		t.Error("the order or the number of mentions of an extension changes the id")
	}
	if id(nil, []string{"x", "y"}) == id(nil, []string{"y", "x"}) {
		t.Error("the order of kernel arguments does not change the id")
	}
}

func TestMalformedExtensionNamesAreRefused(t *testing.T) {
	for _, name := range []string{"", "qemu-guest-agent", "Siderolabs/x", "a/b/c", "siderolabs/", "siderolabs/a b"} {
		if _, err := NewSchematic([]string{name}, nil); err == nil || !strings.Contains(err.Error(), "owner/name") {
			t.Errorf("%q: error is %v", name, err)
		}
	}
}

func TestVersionsAreChecked(t *testing.T) {
	for version, ok := range map[string]bool{
		"v1.13.7": true, "v1.2.0": true, "v1.14.0-rc.1": true, "v1.14.0-alpha.0": true, "v2.0.0": true,
		"1.13.7": false, "v1.13": false, "v1.1.9": false, "v0.14.0": false, "v1.13.7+x": false, "latest": false, "": false, "v1.13.07": false,
	} {
		if err := CheckVersion(version); (err == nil) != ok {
			t.Errorf("%q: error is %v, want accepted %v", version, err, ok)
		}
	}
}

func TestImageURLs(t *testing.T) {
	tests := []struct {
		name  string
		image Image
		want  string
		err   string
	}{
		{"the public factory", Image{Schematic: "abc", Version: "v1.13.7"}, "https://factory.talos.dev/image/abc/v1.13.7/nocloud-amd64.qcow2", ""},
		{"an own factory under a path", Image{Factory: "http://127.0.0.1:8080/f/", Schematic: "abc", Version: "v1.13.7", Architecture: "arm64"}, "http://127.0.0.1:8080/f/image/abc/v1.13.7/nocloud-arm64.qcow2", ""},
		{"an unknown architecture", Image{Schematic: "abc", Version: "v1.13.7", Architecture: "riscv64"}, "", "riscv64"},
		{"a version without v", Image{Schematic: "abc", Version: "1.13.7"}, "", "not a Talos version"},
		{"a factory without scheme", Image{Factory: "factory.talos.dev", Schematic: "abc", Version: "v1.13.7"}, "", "want the form"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.image.URL()
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error is %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}
