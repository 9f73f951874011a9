// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package factory

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/lima-vm/go-qcow2reader"
	"github.com/lima-vm/go-qcow2reader/image/qcow2"
	"github.com/ulikunitz/xz"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

func start(t *testing.T, opts Options) *Factory {
	t.Helper()
	f, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// answered is what came back.
type answered struct {
	status int
	// length is what the header promises.
	length int64
	data   []byte
}

// do sends a request.
func do(t *testing.T, method, url, body string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.ContentLength, data}
}

func post(t *testing.T, f *Factory, schematic string) string {
	t.Helper()
	got := do(t, "POST", f.URL()+"/schematics", schematic)
	if got.status != http.StatusCreated {
		t.Fatalf("POST /schematics: %d: %s", got.status, got.data)
	}
	var out struct{ ID string }
	if err := json.Unmarshal(got.data, &out); err != nil {
		t.Fatal(err)
	}
	return out.ID
}

// The ids are those of the public factory.
func TestSchematicsGetTheRealFactorysIDs(t *testing.T) {
	f := start(t, Options{})
	for name, tc := range map[string]struct{ in, want string }{
		"nothing":          {"", "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"},
		"no customization": {"customization: {}\n", "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"},
		"the guest agent": {
			"customization:\n  systemExtensions:\n    officialExtensions: [siderolabs/qemu-guest-agent]\n",
			"ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515",
		},
		"the guest agent as JSON": {
			`{"customization":{"systemExtensions":{"officialExtensions":["siderolabs/qemu-guest-agent"]}}}`,
			"ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515",
		},
		"kernel arguments": {
			"customization:\n  extraKernelArgs: [noapic, nolapic]\n",
			"9cba8e32753f91a16c1837ab8abf356af021706ef284aef07380780177d9a06c",
		},
		"a meta value": {
			"customization:\n  meta:\n    - {key: 10, value: foo}\n",
			"d308a2a5ee2277bed5fbaa104fcbc8d59122abfa737df987a95b4ca763459a7f",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := post(t, f, tc.in); got != tc.want {
				t.Errorf("id %s, want %s", got, tc.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	f := start(t, Options{})
	plain := post(t, f, "")
	unknown := post(t, f, "customization: {systemExtensions: {officialExtensions: [siderolabs/nope]}}")
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
	}{
		"an unknown field of a schematic":       {"POST", "/schematics", "customisation: {}", 400},
		"text that is no YAML":                  {"POST", "/schematics", "{", 400},
		"a schematic nobody posted":             {"GET", "/schematics/" + strings.Repeat("0", 64), "", 404},
		"an image of an unknown schematic":      {"GET", "/image/" + strings.Repeat("0", 64) + "/v1.13.7/nocloud-amd64.qcow2", "", 404},
		"a malformed version":                   {"GET", "/image/" + plain + "/latest/nocloud-amd64.qcow2", "", 500},
		"a version that is not on offer":        {"GET", "/image/" + plain + "/v1.1.0/nocloud-amd64.qcow2", "", 404},
		"a malformed image path":                {"GET", "/image/" + plain + "/v1.13.7/nocloud.qcow2", "", 400},
		"an unknown compression":                {"GET", "/image/" + plain + "/v1.13.7/nocloud-amd64.raw.lzma", "", 400},
		"a checksum":                            {"GET", "/image/" + plain + "/v1.13.7/nocloud-amd64.qcow2.sha256", "", 402},
		"an unknown extension, with the image":  {"HEAD", "/image/" + unknown + "/v1.13.7/nocloud-amd64.qcow2", "", 400},
		"extensions of a malformed version":     {"GET", "/version/x/extensions/official", "", 500},
		"a path that the factory does not know": {"GET", "/nope", "", 404},
	} {
		t.Run(name, func(t *testing.T) {
			if got := do(t, tc.method, f.URL()+tc.path, tc.body); got.status != tc.status {
				t.Errorf("status %d, want %d: %s", got.status, tc.status, got.data)
			}
		})
	}
}

func TestImagesAreValidAndSayWhichTheyAre(t *testing.T) {
	f := start(t, Options{Redirect: true})
	id := post(t, f, "")
	want := pvesim.ImageMagic + `{"schematic":"` + id + `","version":"v1.13.7","platform":"nocloud-amd64"}` + "\n"
	base := f.URL() + "/image/" + id + "/v1.13.7/nocloud-amd64."
	unpack := map[string]func(io.Reader) (io.Reader, error){
		"raw":     func(r io.Reader) (io.Reader, error) { return r, nil },
		"raw.gz":  func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"raw.xz":  func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) },
		"raw.zst": func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) },
	}
	for format, open := range unpack {
		t.Run(format, func(t *testing.T) {
			image := do(t, "GET", base+format, "")
			if image.status != 200 {
				t.Fatalf("%d: %s", image.status, image.data)
			}
			if head := do(t, "HEAD", base+format, ""); head.length != int64(len(image.data)) {
				t.Errorf("HEAD promises %d bytes, GET gave %d", head.length, len(image.data))
			}
			r, err := open(bytes.NewReader(image.data))
			if err != nil {
				t.Fatal(err)
			}
			disk, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(disk, []byte(want)) || len(disk) != rawSize {
				t.Errorf("a disk of %d bytes that begins with %q", len(disk), disk[:min(200, len(disk))])
			}
		})
	}
	t.Run("qcow2", func(t *testing.T) {
		data := do(t, "GET", base+"qcow2", "").data
		img, err := qcow2reader.OpenWithType(bytes.NewReader(data), qcow2.Type)
		if err != nil {
			t.Fatal(err)
		}
		if err := img.Readable(); err != nil || img.Size() != virtualSize {
			t.Fatalf("size %d, readable: %v", img.Size(), err)
		}
		got := make([]byte, len(want))
		if _, err := img.ReadAt(got, 0); err != nil || string(got) != want {
			t.Errorf("first sector %q (%v), want %q", got, err, want)
		}
		end := make([]byte, 512)
		if n, err := img.ReadAt(end, virtualSize-512); n != len(end) || err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(end, make([]byte, 512)) {
			t.Errorf("the end of the disk is not empty: %v", err)
		}
	})
}

func TestListsOfVersionsAndExtensions(t *testing.T) {
	f := start(t, Options{})
	data := do(t, "GET", f.URL()+"/versions", "").data
	var versions []string
	if err := json.Unmarshal(data, &versions); err != nil || len(versions) == 0 {
		t.Fatalf("versions %s: %v", data, err)
	}
	data = do(t, "GET", f.URL()+"/version/"+versions[0]+"/extensions/official", "").data
	var list []extension
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, e := range list {
		names[e.Name] = e.Ref != "" && e.Digest != ""
	}
	if !names["siderolabs/qemu-guest-agent"] {
		t.Errorf("the guest agent is not among %v", names)
	}
}

func TestSchematicsComeBackFromTheFolder(t *testing.T) {
	dir := t.TempDir()
	f := start(t, Options{Dir: dir})
	id := post(t, f, "customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent]}}")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	again := start(t, Options{Dir: dir})
	if got := again.Extensions(id); len(got) != 1 || got[0] != "siderolabs/qemu-guest-agent" {
		t.Errorf("extensions %v", got)
	}
	if got := do(t, "HEAD", again.URL()+"/image/"+id+"/v1.13.7/nocloud-amd64.qcow2", ""); got.status != 200 {
		t.Errorf("the image: %d", got.status)
	}
}
