// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"archive/tar"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func folder(name string, mode int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}
}

func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}

func hardLink(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

// tree reads a folder: what files hold, where links lead, a slash for folders.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == root {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			got[name] = "/"
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(file)
			got[name] = "-> " + to
			return err
		default:
			b, err := os.ReadFile(file)
			got[name] = string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestLayersAreLaidOnEachOther(t *testing.T) {
	for name, test := range map[string]struct {
		layers [][]tar.Header
		want   map[string]string
	}{
		"through a link that is absolute in the image": {
			[][]tar.Header{{link("var/run", "/run")}, {file("var/run/app/pid", "1")}},
			map[string]string{"var": "/", "var/run": "-> /run", "run": "/", "run/app": "/", "run/app/pid": "1"},
		},
		"through a link that is relative": {
			[][]tar.Header{{folder("usr/lib", 0o755), link("lib", "usr/lib")}, {file("lib/x.so", "x")}},
			map[string]string{"usr": "/", "usr/lib": "/", "lib": "-> usr/lib", "usr/lib/x.so": "x"},
		},
		"through a link that climbs out, which ends at the root": {
			[][]tar.Header{{link("up", "../../..")}, {file("up/x", "x")}},
			map[string]string{"up": "-> ../../..", "x": "x"},
		},
		"a file in place of a folder": {
			[][]tar.Header{{file("a/b/c", "x")}, {file("a", "y")}},
			map[string]string{"a": "y"},
		},
		"a folder in place of a link": {
			[][]tar.Header{{folder("real", 0o755), link("a", "real")}, {folder("a", 0o755), file("a/x", "x")}},
			map[string]string{"real": "/", "a": "/", "a/x": "x"},
		},
		"a folder on a folder, which keeps its content": {
			[][]tar.Header{{file("a/x", "x")}, {folder("a", 0o700), file("a/y", "y")}},
			map[string]string{"a": "/", "a/x": "x", "a/y": "y"},
		},
		"a link in place of a file": {
			[][]tar.Header{{file("a", "x"), file("b", "y")}, {link("a", "b")}},
			map[string]string{"a": "-> b", "b": "y"},
		},
		"a hard link to a lower layer's file, by an absolute name through a link": {
			[][]tar.Header{{link("var/run", "/run"), file("run/x", "x")}, {hardLink("y", "/var/run/x")}},
			map[string]string{"var": "/", "var/run": "-> /run", "run": "/", "run/x": "x", "y": "x"},
		},
		"a file that is changed, not its other names": {
			[][]tar.Header{{file("a", "x"), hardLink("b", "a")}, {file("a", "y")}},
			map[string]string{"a": "y", "b": "x"},
		},
		"a whiteout hides a lower layer's folder": {
			[][]tar.Header{{file("a/b/c", "x"), file("a/d", "d")}, {file("a/.wh.b", "")}},
			map[string]string{"a": "/", "a/d": "d"},
		},
		"a whiteout of nothing": {
			[][]tar.Header{{file("a", "x")}, {file("b/.wh.c", "")}},
			map[string]string{"a": "x"},
		},
		"a whiteout leaves what its own layer brings": {
			[][]tar.Header{{file("a/old", "x")}, {file("a/new", "y"), file("a/.wh.new", ""), file("a/.wh.old", "")}},
			map[string]string{"a": "/", "a/new": "y"},
		},
		"an opaque folder hides all of the lower layers": {
			[][]tar.Header{{file("a/old", "x"), file("a/deep/old", "x")}, {file("a/new", "y"), file("a/.wh..wh..opq", "")}},
			map[string]string{"a": "/", "a/new": "y"},
		},
		"devices are left out": {
			[][]tar.Header{{{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, {Name: "pipe", Typeflag: tar.TypeFifo}, file("a", "x")}},
			map[string]string{"a": "x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var layers []v1.Layer
			for _, headers := range test.layers {
				layers = append(layers, layer(t, headers...))
			}
			image, err := NewStore(t.TempDir(), Layout{Path: writeLayout(t, ref, layers...)}).Unpack(context.Background(), ref)
			if err != nil {
				t.Fatal(err)
			}
			got := tree(t, image.Root)
			for name, want := range test.want {
				if got[name] != want {
					t.Errorf("%s is %q, not %q", name, got[name], want)
				}
				delete(got, name)
			}
			if len(got) > 0 {
				t.Errorf("there is more: %v", got)
			}
		})
	}
}

func TestModesLetTheOwnerInAndGiveNobodyAnotherUser(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such modes")
	}
	image, err := NewStore(t.TempDir(), Layout{Path: writeLayout(t, ref, layer(t,
		folder("closed", 0o111), file("closed/x", "x"),
		tar.Header{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o4755},
		tar.Header{Name: "shadow", Typeflag: tar.TypeReg, Mode: 0},
	))}).Unpack(context.Background(), ref)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"closed": fs.ModeDir | 0o711, "suid": 0o755, "shadow": 0o400, "closed/x": 0o755} {
		if info, err := os.Lstat(filepath.Join(image.Root, name)); err != nil || info.Mode() != want {
			t.Errorf("%s has the mode %v (%v), not %v", name, info.Mode(), err, want)
		}
	}
}

func TestManyUnpackTheSameImageAtOnce(t *testing.T) {
	source := Layout{Path: writeLayout(t, ref, layer(t, file("app", "x")))}
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			// A store of its own for each, as several processes have.
			image, err := NewStore(dir, source).Unpack(context.Background(), ref)
			if err != nil {
				t.Error(err)
				return
			}
			if b, err := os.ReadFile(filepath.Join(image.Root, "app")); err != nil || string(b) != "x" {
				t.Errorf("the file holds %q (%v)", b, err)
			}
		})
	}
	wg.Wait()
	if entries, err := os.ReadDir(filepath.Join(dir, "roots")); err != nil || len(entries) != 1 {
		t.Errorf("there are %d roots (%v)", len(entries), err)
	}
}

func TestWhatAKilledRunLeftIsReplaced(t *testing.T) {
	dir := writeLayout(t, ref, layer(t, file("app", "x")))
	image, err := Layout{Path: dir}.Image(context.Background(), ref)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(t.TempDir(), Layout{Path: dir})
	left := filepath.Join(store.dir, "roots", ".unpacking-"+filepath.Base(store.root(digest.String())), "half")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	unpacked, err := store.Unpack(context.Background(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := tree(t, unpacked.Root); len(got) != 1 || got["app"] != "x" {
		t.Errorf("the root holds %v", got)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the half root: %v", err)
	}
}

func TestAnUnpackingThatIsGivenUpLeavesNoRoot(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	store := NewStore(t.TempDir(), Layout{Path: writeLayout(t, ref, layer(t, file("app", "x")))})
	if _, err := store.Unpack(ctx, ref); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(store.dir, "roots")); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v (%v)", entries, err)
	}
}
