// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

const ref = "registry.example/team/app:v1"

func layer(t *testing.T, headers ...tar.Header) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := []byte(h.Uname)
		h.Uname = ""
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// file is a regular file; its content travels in Uname.
func file(name, content string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Uname: content}
}

// imageWith is an image for this platform.
func imageWith(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.Config(image, v1.Config{Entrypoint: []string{"/app"}})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func writeLayout(t *testing.T, named string, layers ...v1.Layer) string {
	t.Helper()
	image := imageWith(t, layers...)
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(image, layout.WithAnnotations(map[string]string{refName: named})); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAnImageOfALayoutIsUnpackedOnce(t *testing.T) {
	dir := writeLayout(t, ref, layer(t, file("bin/app", "one"), file("etc/gone", "x")),
		layer(t, file("etc/.wh.gone", ""), tar.Header{Name: "app", Typeflag: tar.TypeSymlink, Linkname: "bin/app"}, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "bin/app"}))
	store := NewStore(t.TempDir(), Layout{Path: dir})
	image, err := store.Unpack(context.Background(), ref)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"bin/app": "one", "app": "one", "hard": "one"} {
		if content, err := os.ReadFile(filepath.Join(image.Root, name)); err != nil || string(content) != want {
			t.Errorf("%s holds %q (%v), want %q", name, content, err, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(image.Root, "etc/gone")); !os.IsNotExist(err) {
		t.Errorf("a file that the upper layer deleted is there: %v", err)
	}
	if len(image.Config.Entrypoint) != 1 {
		t.Errorf("the configuration is lost: %+v", image.Config)
	}
	before, err := os.Stat(filepath.Join(image.Root, "bin/app"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := NewStore(store.dir).Unpack(context.Background(), ref)
	if err != nil {
		t.Fatalf("without its source: %v", err)
	}
	after, err := os.Stat(filepath.Join(again.Root, "bin/app"))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the image was unpacked again (%v)", err)
	}
}

func TestAnArchiveCannotWriteOutsideOfItsRoot(t *testing.T) {
	outside := t.TempDir()
	tests := map[string][]tar.Header{
		"by a path that climbs":          {file("../../escaped", "x")},
		"by an absolute path":            {file("/../../escaped", "x")},
		"through a symlink to elsewhere": {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: outside}, file("out/escaped", "x")},
		"by a hard link to elsewhere":    {{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../../../../../../etc/passwd"}},
	}
	for name, headers := range tests {
		t.Run(name, func(t *testing.T) {
			store := NewStore(t.TempDir(), Layout{Path: writeLayout(t, ref, layer(t, headers...))})
			image, err := store.Unpack(context.Background(), ref)
			found, globErr := filepath.Glob(filepath.Join(outside, "*"))
			if globErr != nil || len(found) > 0 {
				t.Errorf("written outside: %v %v", found, globErr)
			}
			if err != nil {
				return
			}
			// What was taken must lie inside.
			walkErr := filepath.WalkDir(store.dir, func(path string, _ os.DirEntry, err error) error { return err })
			if walkErr != nil {
				t.Error(walkErr)
			}
			if info, err := os.Stat(filepath.Join(image.Root, "hard")); err == nil {
				passwd, err := os.Stat("/etc/passwd")
				if err == nil && os.SameFile(info, passwd) {
					t.Error("a hard link leads out of the root")
				}
			}
		})
	}
}

func TestADamagedLayerIsRefused(t *testing.T) {
	dir := writeLayout(t, ref, layer(t, file("app", "content")))
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
	if err != nil {
		t.Fatal(err)
	}
	other := layer(t, file("app", "other"))
	content, err := other.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	damaged, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	for _, blob := range blobs {
		head, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		if head[0] == 0x1f { // gzip: the layer
			if err := os.WriteFile(blob, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	store := NewStore(t.TempDir(), Layout{Path: dir})
	if _, err := store.Unpack(context.Background(), ref); err == nil {
		t.Fatal("a damaged layer was unpacked")
	}
	left, err := os.ReadDir(filepath.Join(store.dir, "roots"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestAReferenceIsFoundBy(t *testing.T) {
	dir := writeLayout(t, ref, layer(t, file("app", "x")))
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest := manifest.Manifests[0].Digest.String()
	const other = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	tests := map[string]struct {
		ref    string
		ignore bool
		absent bool
	}{
		"its tag":                       {ref: ref},
		"its digest":                    {ref: "registry.example/team/app@" + digest},
		"tag and digest":                {ref: ref + "@" + digest},
		"not by another tag":            {ref: "registry.example/team/app:v2", absent: true},
		"not by tag and another digest": {ref: ref + "@" + other, absent: true},
		"by tag and another digest where allowed":    {ref: ref + "@" + other, ignore: true},
		"not by another digest alone, never allowed": {ref: "registry.example/team/app@" + other, ignore: true, absent: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Layout{Path: dir, IgnoreDigest: test.ignore}.Image(context.Background(), test.ref)
			if kube.IsAbsent(err) != test.absent || err != nil && !test.absent {
				t.Errorf("error %v, absent wanted: %v", err, test.absent)
			}
		})
	}
}
