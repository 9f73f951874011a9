// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// unpack writes the image's file system into dir, as the ordinary user that runs
// this: owners are not kept, devices are left out, and every folder stays
// writable for its owner so that it can be removed again. All work goes through
// an [os.Root], so that neither a path nor a link in the archive leads out of dir.
func unpack(ctx context.Context, image v1.Image, dir string) error {
	layers, err := image.Layers()
	if err != nil {
		return fmt.Errorf("reading the layers: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	digests, err := diffIDs(image)
	if err != nil {
		return err
	}
	if len(digests) != len(layers) {
		return fmt.Errorf("the image has %d layers, and its configuration names %d", len(layers), len(digests))
	}
	// From the lowest up, since a hard link may lead to a file of a lower layer.
	for i, l := range layers {
		if err := unpackLayer(ctx, l, digests[i], root); err != nil {
			return err
		}
	}
	return nil
}

// diffIDs answers the digests of the layers' content that the configuration
// names. The library's own answer for a layer on disk is computed from what is
// there. The sources check the configuration and what leads to it.
func diffIDs(image v1.Image) ([]v1.Hash, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return config.RootFS.DiffIDs, nil
}

func unpackLayer(ctx context.Context, l v1.Layer, want v1.Hash, root *os.Root) (err error) {
	content, err := checkedContent(l, want)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	archive := tar.NewReader(content)
	written := map[string]bool{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			// The digest is judged over the whole layer, padding included.
			_, err = io.Copy(io.Discard, content)
			return err
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = writeEntry(root, header, archive, written)
		}
		if err != nil {
			return err
		}
	}
}

// Names by which a layer deletes what lower layers hold (OCI image
// specification, layer.md, whiteouts).
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// hide deletes what lower layers hold of a name, or of a whole folder.
func hide(root *os.Root, name string, written map[string]bool) error {
	dir, base := path.Dir(name), path.Base(name)
	if base != opaque {
		hidden := path.Join(dir, strings.TrimPrefix(base, whiteout))
		if written[hidden] {
			return nil
		}
		return root.RemoveAll(hidden)
	}
	entries, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if inner := path.Join(dir, entry.Name()); !written[inner] {
			err = errors.Join(err, root.RemoveAll(inner))
		}
	}
	return err
}

// resolve follows the symbolic links in the folder part of a name as they are
// meant, absolute ones from the image's own root: an [os.Root] would refuse
// these, though every image of Debian has one at /var/run.
func resolve(root *os.Root, name string) (string, error) {
	name = path.Clean("/" + filepath.ToSlash(name))
	if name == "/" {
		return ".", nil
	}
	dir, err := securejoin.SecureJoin(root.Name(), filepath.FromSlash(path.Dir(name)))
	if err != nil {
		return "", err
	}
	inside, err := filepath.Rel(root.Name(), dir)
	if err != nil {
		return "", err
	}
	return path.Join(filepath.ToSlash(inside), path.Base(name)), nil
}

func writeEntry(root *os.Root, header *tar.Header, content io.Reader, written map[string]bool) error {
	name, err := resolve(root, header.Name)
	if err != nil {
		return fmt.Errorf("finding the place of %s: %w", header.Name, err)
	}
	if name == "." {
		return nil
	}
	if strings.HasPrefix(path.Base(name), whiteout) {
		return hide(root, name, written)
	}
	for up := name; up != "."; up = path.Dir(up) {
		written[up] = true
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return fmt.Errorf("making the folder of %s: %w", name, err)
	}
	if err := place(root, name, header, content); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// place writes an entry in place of what is at its name; only a folder is kept
// where one comes.
func place(root *os.Root, name string, header *tar.Header, content io.Reader) error {
	old, err := root.Lstat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && (header.Typeflag != tar.TypeDir || !old.IsDir()) {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	mode := fs.FileMode(header.Mode) & fs.ModePerm
	switch header.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return root.Chmod(name, mode|0o700)
	case tar.TypeReg:
		return writeFile(root, name, mode|0o400, content)
	case tar.TypeSymlink:
		return root.Symlink(header.Linkname, name)
	case tar.TypeLink:
		target, err := resolve(root, header.Linkname)
		if err != nil {
			return err
		}
		return root.Link(target, name)
	}
	return nil
}

func writeFile(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Chmod(mode), file.Close())
}

// checkedContent answers a layer's content, and an error at its end when it is
// not what the image's configuration says: a file on disk may be damaged.
func checkedContent(l v1.Layer, want v1.Hash) (io.ReadCloser, error) {
	if want.Algorithm != "sha256" {
		return nil, fmt.Errorf("the layer's digest %s is not a SHA-256", want)
	}
	content, err := l.Uncompressed()
	if err != nil {
		return nil, err
	}
	return &checkedReader{content, sha256.New(), want.Hex}, nil
}

type checkedReader struct {
	io.ReadCloser
	sum  hash.Hash
	want string
}

func (r *checkedReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && hex.EncodeToString(r.sum.Sum(nil)) != r.want {
		return n, fmt.Errorf("a layer's content is not what its digest sha256:%s says: the source is damaged", r.want)
	}
	return n, err
}

// removeTree removes a tree whose folders an image may have made unwritable.
func removeTree(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return os.Chmod(path, 0o700)
	})
	return errors.Join(err, os.RemoveAll(dir))
}
