// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

const otherDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// content unpacks ref from the source and reads the file app.
func content(t *testing.T, source Source, ref string) string {
	t.Helper()
	image, err := NewStore(t.TempDir(), source).Unpack(context.Background(), ref)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(image.Root, "app"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// tarFolder packs a folder into an archive.
func tarFolder(t *testing.T, dir string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return writeBytes(t, b.Bytes())
}

func writeBytes(t *testing.T, b []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func dockerArchive(t *testing.T, image v1.Image) string {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(path, tag, image); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnArchiveIsReadWhicheverToolWroteIt(t *testing.T) {
	image := imageWith(t, layer(t, file("app", "in an archive")))
	for name, path := range map[string]string{
		"an OCI layout":    tarFolder(t, writeLayout(t, ref, layer(t, file("app", "in an archive")))),
		"a docker archive": dockerArchive(t, image),
	} {
		t.Run(name, func(t *testing.T) {
			if got := content(t, Archive{Path: path}, ref); got != "in an archive" {
				t.Errorf("the file holds %q", got)
			}
			if got := content(t, Archive{Path: path, IgnoreDigest: true}, ref+"@"+otherDigest); got != "in an archive" {
				t.Errorf("the file holds %q", got)
			}
			for _, absent := range []string{"registry.example/team/app:v2", ref + "@" + otherDigest} {
				if _, err := (Archive{Path: path}).Image(context.Background(), absent); !kube.IsAbsent(err) {
					t.Errorf("%s: %v", absent, err)
				}
			}
		})
	}
}

func TestAnImageOfADockerArchiveIsKnownByItsConfiguration(t *testing.T) {
	image := imageWith(t, layer(t, file("app", "x")))
	want, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := NewStore(t.TempDir(), Archive{Path: dockerArchive(t, image)}).Unpack(context.Background(), ref)
	if err != nil || unpacked.Digest != want.String() {
		t.Errorf("the digest is %+v (%v), not %s", unpacked, err, want)
	}
}

func TestWhatIsNoArchiveIsSaidToBeNone(t *testing.T) {
	for name, test := range map[string]struct{ path, want string }{
		"a compressed file":   {writeBytes(t, []byte{0x1f, 0x8b, 8, 0}), "no uncompressed tar file"},
		"another tar file":    {tarFolder(t, t.TempDir()), "neither an OCI layout nor a docker archive"},
		"a file that is gone": {"/nonesuch.tar", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Archive{Path: test.path}.Image(context.Background(), ref)
			if err == nil || kube.IsAbsent(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// indexLayout is a layout with one index of images for two platforms.
func indexLayout(t *testing.T, platforms ...v1.Platform) (dir string, inner v1.Hash) {
	t.Helper()
	index := mutate.IndexMediaType(empty.Index, "application/vnd.oci.image.index.v1+json")
	for _, p := range platforms {
		image := imageWith(t, layer(t, file("app", p.String())))
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &p}})
		var err error
		if inner, err = image.Digest(); err != nil {
			t.Fatal(err)
		}
	}
	dir = t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{containerdName: ref, refName: "v1"})); err != nil {
		t.Fatal(err)
	}
	return dir, inner
}

func TestThePlatformOfThisMachineIsChosen(t *testing.T) {
	mine, other := platform(), v1.Platform{OS: "linux", Architecture: "s390x"}
	dir, last := indexLayout(t, other, mine)
	if got := content(t, Layout{Path: dir}, ref); got != mine.String() {
		t.Errorf("the image is that for %s", got)
	}
	if got := content(t, Layout{Path: dir}, "registry.example/team/app@"+last.String()); got != mine.String() {
		t.Errorf("by its own digest the image is that for %s", got)
	}
	dir, _ = indexLayout(t, other)
	if _, err := (Layout{Path: dir}).Image(context.Background(), ref); err == nil || !strings.Contains(err.Error(), "no image for linux/") {
		t.Errorf("the error is %v", err)
	}
}

func TestADamagedManifestOrConfigurationIsRefused(t *testing.T) {
	for _, part := range []string{`"config":`, `"rootfs":`} {
		dir := writeLayout(t, ref, layer(t, file("app", "x")))
		blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
		if err != nil {
			t.Fatal(err)
		}
		changed := 0
		for _, blob := range blobs {
			b, err := os.ReadFile(blob)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(b, []byte(part)) && bytes.HasPrefix(b, []byte("{")) && (part == `"rootfs":` || !bytes.Contains(b, []byte(`"rootfs":`))) {
				changed++
				if err := os.WriteFile(blob, append(b, ' '), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if changed != 1 {
			t.Fatalf("%s is in %d blobs", part, changed)
		}
		_, err = NewStore(t.TempDir(), Layout{Path: dir}).Unpack(context.Background(), ref)
		if err == nil || !strings.Contains(err.Error(), "the source is damaged") {
			t.Errorf("with another %s the error is %v", part, err)
		}
	}
}

// registryServer is a registry that holds image as team/app:v1, and answers
// with a status instead where that is not 0.
func registryServer(t *testing.T, image v1.Image, status int) (host string) {
	t.Helper()
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(real)
	t.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	if image != nil {
		tag, err := name.NewTag(host + "/team/app:v1")
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(tag, image); err != nil {
			t.Fatal(err)
		}
	}
	if status != 0 {
		server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	}
	return host
}

func TestARegistryIsAskedAfterItsMirrors(t *testing.T) {
	image := imageWith(t, layer(t, file("app", "pulled")))
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	full, none, broken := registryServer(t, image, 0), registryServer(t, nil, 0), registryServer(t, nil, http.StatusForbidden)
	for name, test := range map[string]struct {
		registry string
		mirrors  []string
		suffix   string
		outcome  string // found, absent or unknown
	}{
		"by its tag":            {full, nil, ":v1", "found"},
		"by its digest":         {full, nil, "@" + digest.String(), "found"},
		"by tag and digest":     {full, nil, ":v1@" + digest.String(), "found"},
		"not by another digest": {full, nil, ":v1@" + otherDigest, "absent"},
		"no such image":         {none, nil, ":v1", "absent"},
		"from the mirror alone": {none, []string{full}, ":v1", "found"},
		"from the registry when the mirror has none":      {full, []string{none}, ":v1", "found"},
		"from the registry when the mirror fails":         {full, []string{broken}, ":v1", "found"},
		"a mirror's failure leaves it open":               {none, []string{broken}, ":v1", "unknown"},
		"a refusal is no absence":                         {broken, nil, ":v1", "unknown"},
		"a mirror that nothing listens on leaves it open": {none, []string{"127.0.0.1:1"}, ":v1", "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			source := Registry{Mirrors: map[string][]string{test.registry: test.mirrors}}
			found, err := source.Image(context.Background(), test.registry+"/team/app"+test.suffix)
			outcome := "unknown"
			switch {
			case err == nil:
				outcome = "found"
			case kube.IsAbsent(err):
				outcome = "absent"
			}
			if outcome != test.outcome {
				t.Fatalf("the image is %s (%v), not %s", outcome, err, test.outcome)
			}
			if err != nil {
				return
			}
			if got, err := found.Digest(); err != nil || got != digest {
				t.Errorf("the digest is %s (%v)", got, err)
			}
		})
	}
	if got := content(t, Registry{}, full+"/team/app:v1"); got != "pulled" {
		t.Errorf("the file holds %q", got)
	}
}

func TestCandidatesKeepTheReferenceOnMirrorsWithAPath(t *testing.T) {
	r := Registry{
		Mirrors:  map[string][]string{"docker.io": {"mirror.example:5000/hub"}, "registry.k8s.io": {"127.0.0.1:5000"}},
		Insecure: []string{"mirror.example:5000"},
	}
	for ref, want := range map[string][]string{
		"nginx":                                       {"http://mirror.example:5000/hub/library/nginx:latest", "https://index.docker.io/library/nginx:latest"},
		"registry.k8s.io/pause:3.10":                  {"http://127.0.0.1:5000/pause:3.10", "https://registry.k8s.io/pause:3.10"},
		"quay.io/a/b:c@" + otherDigest:                {"https://quay.io/a/b@" + otherDigest},
		"mirror.example:5000/direct:v1":               {"http://mirror.example:5000/direct:v1"},
		"registry.k8s.io/etcd:3.6.8-0@" + otherDigest: {"http://127.0.0.1:5000/etcd@" + otherDigest, "https://registry.k8s.io/etcd@" + otherDigest},
	} {
		candidates, err := r.candidates(ref)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range candidates {
			got = append(got, c.Context().Scheme()+"://"+c.Name())
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: asked are %v, not %v", ref, got, want)
		}
	}
}

func TestSourcesAsConfigurationsWriteThem(t *testing.T) {
	for text, want := range map[string]Source{
		"registry":           Registry{},
		"oci-layout:/a:b":    Layout{Path: "/a:b"},
		"archive:images.tar": Archive{Path: "images.tar"},
	} {
		got, err := ParseSource(text)
		if err != nil || got.String() != want.String() {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "layout:/x", "archive:", "/x"} {
		if got, err := ParseSource(text); err == nil {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
}
