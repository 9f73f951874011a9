// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// blobs keeps the content of files and disks on disk, each under the SHA-256 of
// what it holds. Clones of a disk share one.
type blobs struct {
	dir string
	// temporary says that dir is ours to remove.
	temporary bool
}

// newBlobs opens the store below dir, or a temporary one.
func newBlobs(dir string) (*blobs, error) {
	if dir == "" {
		tmp, err := os.MkdirTemp("", "pvesim-")
		if err != nil {
			return nil, fmt.Errorf("making the folder of simulated disks: %w", err)
		}
		return &blobs{dir: tmp, temporary: true}, nil
	}
	dir = filepath.Join(dir, "blobs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of simulated disks: %w", err)
	}
	return &blobs{dir: dir}, nil
}

func (b *blobs) close() {
	if b.temporary {
		_ = os.RemoveAll(b.dir)
	}
}

// put stores what r yields and answers its name and length.
func (b *blobs) put(r io.Reader) (name string, size int64, err error) {
	f, err := os.CreateTemp(b.dir, "new-")
	if err != nil {
		return "", 0, fmt.Errorf("storing a simulated file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	h := sha256.New()
	size, err = io.Copy(io.MultiWriter(f, h), r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "", 0, err
	}
	name = hex.EncodeToString(h.Sum(nil))
	if err = os.Rename(f.Name(), b.path(name)); err != nil {
		return "", 0, fmt.Errorf("storing a simulated file: %w", err)
	}
	return name, size, nil
}

func (b *blobs) path(name string) string { return filepath.Join(b.dir, name) }

func (b *blobs) open(name string) (*os.File, error) { return os.Open(b.path(name)) }

// prune removes what no volume refers to.
func (b *blobs) prune(st *state) {
	used := map[string]bool{}
	for _, v := range st.Volumes {
		used[v.Blob] = true
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !used[e.Name()] {
			_ = os.Remove(b.path(e.Name()))
		}
	}
}
