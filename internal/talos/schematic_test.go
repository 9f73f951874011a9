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

// plainID is the id of the schematic that adds nothing.
const plainID = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

func TestImageURLs(t *testing.T) {
	tests := []struct {
		name  string
		image Image
		want  string
		err   string
	}{
		{"the public factory", Image{Schematic: plainID, Version: "v1.13.7"}, "https://factory.talos.dev/image/" + plainID + "/v1.13.7/nocloud-amd64.qcow2", ""},
		{"an own factory under a path", Image{Factory: "http://127.0.0.1:8080/f/", Schematic: plainID, Version: "v1.13.7", Architecture: "arm64"}, "http://127.0.0.1:8080/f/image/" + plainID + "/v1.13.7/nocloud-arm64.qcow2", ""},
		{"an unknown architecture", Image{Schematic: plainID, Version: "v1.13.7", Architecture: "riscv64"}, "", "riscv64"},
		{"one for Secure Boot", Image{Schematic: plainID, Version: "v1.13.7", SecureBoot: true}, "https://factory.talos.dev/image/" + plainID + "/v1.13.7/nocloud-amd64-secureboot.qcow2", ""},
		{"no schematic", Image{Schematic: "abc", Version: "v1.13.7"}, "", "64 lower-case hexadecimal digits"},
		{"a version without v", Image{Schematic: plainID, Version: "1.13.7"}, "", "not a Talos version"},
		{"a factory without scheme", Image{Factory: "factory.talos.dev", Schematic: plainID, Version: "v1.13.7"}, "", "want the form"},
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

func TestAnyImageOfAFactoryCanBeNamed(t *testing.T) {
	for name, ok := range map[string]bool{
		"nocloud-amd64.qcow2": true, "nocloud-amd64.raw.xz": true, "metal-arm64-secureboot.iso": true, "nocloud-amd64.raw.tar.gz": true, "openstack-amd64.raw.zst": true,
		"nocloud.qcow2": false, "nocloud-riscv64.qcow2": false, "nocloud-amd64": false, "nocloud-amd64.qcow2.bz2": false, "../nocloud-amd64.qcow2": false, "": false,
	} {
		address, err := ImageURL("", plainID, "v1.13.7", name)
		if (err == nil) != ok {
			t.Errorf("%q: got %q, %v, want accepted %v", name, address, err, ok)
		}
	}
}

func TestInstallerImagesFollowTheFactory(t *testing.T) {
	for _, tt := range []struct {
		image Image
		want  string
	}{
		{Image{Schematic: plainID, Version: "v1.13.7"}, "factory.talos.dev/installer/" + plainID + ":v1.13.7"},
		{Image{Factory: "https://images.example:8443", Schematic: plainID, Version: "v1.13.7", SecureBoot: true}, "images.example:8443/installer-secureboot/" + plainID + ":v1.13.7"},
	} {
		if got, err := tt.image.Installer(); err != nil || got != tt.want {
			t.Errorf("got %q, %v, want %q", got, err, tt.want)
		}
	}
}

func TestASchematicIsReadAsAFactoryReadsIt(t *testing.T) {
	tests := []struct{ name, text, id, err string }{
		{"nothing at all", "", plainID, ""},
		{"an empty customization", "customization: {}", plainID, ""},
		{"the guest agent", "customization:\n  systemExtensions:\n    officialExtensions: [siderolabs/qemu-guest-agent]", "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515", ""},
		{"kernel arguments in JSON", `{"customization": {"extraKernelArgs": ["noapic", "nolapic"]}}`, "9cba8e32753f91a16c1837ab8abf356af021706ef284aef07380780177d9a06c", ""},
		{"a field that no factory knows", "customization:\n  extensions: [a/b]", "", "not understood"},
		{"a text that is no mapping", "- a", "", "not understood"},
		{"a key beyond a byte", "customization:\n  meta: [{key: 300, value: x}]", "", "not understood"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := ParseSchematic(tt.text)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error is %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if id, err := s.ID(); err != nil || id != tt.id {
				t.Errorf("the id is %s, %v, want %s", id, err, tt.id)
			}
		})
	}
}

func TestAdditionsThatContradictThemselvesAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		additions Additions
		want      string
	}{
		"a meta key twice":         {Additions{Meta: []MetaValue{{10, "a"}, {10, "b"}}}, "key 10 is given twice"},
		"an overlay without name":  {Additions{Overlay: Overlay{Image: "siderolabs/sbc-raspberrypi"}}, "both its image and its name"},
		"an overlay without image": {Additions{Overlay: Overlay{Name: "rpi_generic"}}, "both its image and its name"},
		"options of no overlay":    {Additions{Overlay: Overlay{Options: map[string]any{"a": "b"}}}, "both its image and its name"},
	} {
		if _, err := tt.additions.Schematic(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, tt.want)
		}
	}
}
