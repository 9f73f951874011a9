// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talos_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/factory"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

func startFactory(t *testing.T, options factory.Options) (*factory.Factory, talos.Factory) {
	t.Helper()
	f, err := factory.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f, talos.Factory{Address: f.URL()}
}

// awkward are strings that YAML writers quote, fold or escape in their own ways.
var awkward = []string{
	"", " ", "a b", "no", "yes", "true", "null", "~", "1", "0x10", "1e3", "-", "- a", "a: b", "a:b", "#", "a #b", "'", `"`, `\`, "{}", "[]", "*", "&a", "!", "|", ">",
	"%", "@", "`", "ä", "日本", "a\nb", "a\n", "\ta", "2001-01-01", "console=ttyS0,115200", "net.ifnames=0", "talos.config=https://example/?a=b&c=d", strings.Repeat("long ", 40),
}

// The simulator marshals with another library and other code than the provider,
// and answers the id that it found; Register compares the two.
func TestIDsAgreeWithAFactoryForAnySchematic(t *testing.T) {
	_, client := startFactory(t, factory.Options{})
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's choice of inputs
	pick := func(from []string) []string {
		var out []string
		for range random.IntN(4) {
			out = append(out, from[random.IntN(len(from))])
		}
		return out
	}
	schematics := []talos.Schematic{{}}
	for _, text := range awkward {
		schematics = append(schematics, talos.Schematic{Customization: talos.Customization{ExtraKernelArgs: []string{text}, Meta: []talos.MetaValue{{Key: 10, Value: text}}}})
	}
	for range 100 {
		s, err := talos.NewSchematic(pick(factory.DefaultExtensions()), pick(awkward))
		if err != nil {
			t.Fatal(err)
		}
		s.Customization = shaken(random, s.Customization)
		if random.IntN(3) == 0 {
			s.Overlay = talos.Overlay{Image: "siderolabs/sbc-raspberrypi", Name: "rpi_generic"}
			if text := pick(awkward); len(text) > 0 {
				s.Overlay.Options = map[string]any{"configTxtAppend": text[0], "b": "x", "a": random.IntN(2) == 0, "c": random.IntN(99)}
			}
		}
		schematics = append(schematics, s)
	}
	for _, s := range schematics {
		id, err := client.Register(t.Context(), s)
		if err != nil {
			text, _ := s.Marshal()
			t.Fatalf("%v\n%s", err, text)
		}
		back, err := client.Schematic(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := back.ID(); err != nil || again != id {
			t.Errorf("what was registered as %s reads back as %s, %v", id, again, err)
		}
	}
}

// shaken adds some of the customizations that are rarely used.
func shaken(random *rand.Rand, c talos.Customization) talos.Customization {
	if random.IntN(4) == 0 {
		c.Meta = []talos.MetaValue{{Key: uint8(random.IntN(256)), Value: awkward[random.IntN(len(awkward))]}, {Key: 12, Value: "x"}} //nolint:gosec // below 256
	}
	if random.IntN(4) == 0 {
		c.SecureBoot = talos.SecureBoot{EnrollKeys: "force", IncludeWellKnownCertificates: random.IntN(2) == 0}
	}
	if random.IntN(4) == 0 {
		c.DiskImage.SectorSize = 4096
	}
	if random.IntN(4) == 0 {
		c.Bootloader, c.EmbeddedMachineConfiguration = "dual-boot", "machine:\n  type: worker\n"
	}
	return c
}

func TestASchematicThatOnlyItsIDNamesMustBeKnown(t *testing.T) {
	f, client := startFactory(t, factory.Options{})
	known := func(id string) *talos.DiskImage {
		t.Helper()
		image, err := talos.KnownDiskImage(talos.Image{Factory: f.URL(), Version: "v1.13.7", Schematic: id}, talos.Factory{})
		if err != nil {
			t.Fatal(err)
		}
		return image
	}
	s, err := talos.NewSchematic([]string{talos.QEMUGuestAgent}, nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := s.ID()
	if err != nil {
		t.Fatal(err)
	}
	if err := known(id).Prepare(t.Context()); !errors.Is(err, talos.ErrNotServed) {
		t.Errorf("before it is registered: %v", err)
	}
	if _, err := client.Register(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := known(id).Prepare(t.Context()); err != nil {
		t.Error(err)
	}
	if size, err := known(id).Size(t.Context()); err != nil || size == 0 {
		t.Errorf("its size is %d, %v", size, err)
	}
}

func TestAFactoryIsAskedWhatItServes(t *testing.T) {
	_, client := startFactory(t, factory.Options{})
	tests := []struct {
		name, version string
		extensions    []string
		want          string
	}{
		{"what is there", "v1.13.7", []string{talos.QEMUGuestAgent}, ""},
		{"nothing added", "v1.13.7", nil, ""},
		{"an unknown version", "v1.99.0", nil, "talos v1.99.0"},
		{"an unknown extension", "v1.13.7", []string{talos.QEMUGuestAgent, "siderolabs/nope"}, "siderolabs/nope for Talos v1.13.7"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := client.Check(t.Context(), tt.version, tt.extensions)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (!errors.Is(err, talos.ErrNotServed) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
		})
	}
	silent := talos.Factory{Address: "http://127.0.0.1:1"}
	if err := silent.Check(t.Context(), "v1.13.7", nil); err == nil || errors.Is(err, talos.ErrNotServed) {
		t.Errorf("a factory that is silent proves that it does not serve: %v", err)
	}
}

func TestAnImageIsMadeReadyMeasuredAndFetched(t *testing.T) {
	for _, redirect := range []bool{false, true} {
		f, _ := startFactory(t, factory.Options{Redirect: redirect})
		s, err := talos.NewSchematic([]string{talos.QEMUGuestAgent}, nil)
		if err != nil {
			t.Fatal(err)
		}
		image, err := talos.NewDiskImage(s, talos.Image{Factory: f.URL(), Version: "v1.13.7"}, talos.Factory{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := image.Size(t.Context()); !errors.Is(err, talos.ErrNotServed) {
			t.Errorf("before the schematic is known: %v", err)
		}
		if err := image.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		size, err := image.Size(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var content bytes.Buffer
		got, err := image.Download(t.Context(), &content)
		if err != nil || got != size || int64(content.Len()) != size || !bytes.HasPrefix(content.Bytes(), []byte("QFI\xfb")) {
			t.Errorf("redirect %v: got %d of %d bytes, %v", redirect, got, size, err)
		}
		if err := image.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		posts := 0
		for _, request := range f.Requests() {
			if request == "POST /schematics" {
				posts++
			}
		}
		if posts != 1 {
			t.Errorf("the schematic was posted %d times, want once", posts)
		}
	}
}

func TestWhatAFactoryGetsWrongIsAnError(t *testing.T) {
	answers := func(status int, body string, header ...string) talos.Factory {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(server.Close)
		return talos.Factory{Address: server.URL}
	}
	tests := []struct {
		name string
		call func() error
		want string
	}{
		{"another id than the computed one", func() error {
			_, err := answers(201, `{"id":"abc"}`).Register(t.Context(), talos.Schematic{})
			return err
		}, "marshals schematics in another way"},
		{"a page instead of JSON", func() error {
			_, err := answers(200, "<html>").Versions(t.Context())
			return err
		}, "not the JSON"},
		{"a failure with a reason", func() error {
			_, err := answers(500, "out of disk\n").Versions(t.Context())
			return err
		}, "answered 500: out of disk"},
		{"a failure without one", func() error {
			_, err := answers(503, "").Versions(t.Context())
			return err
		}, "answered 503: Service Unavailable"},
		{"a body that is cut short", func() error {
			f := answers(200, "short", "Content-Length", "100")
			_, err := f.Download(t.Context(), f.Address+"/image", io.Discard)
			return err
		}, "after 5 bytes"},
		{"no length", func() error {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "0") }))
			defer server.Close()
			_, err := talos.Factory{}.Size(t.Context(), server.URL)
			return err
		}, "has no length"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.call(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
		})
	}
}
