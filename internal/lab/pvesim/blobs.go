// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// blobs keeps the content of files and disks, each under the SHA-256 of what it
// holds. Clones of a disk share one.
type blobs struct {
	// dir holds them; without one they are kept in memory.
	dir string

	mu     sync.Mutex
	memory map[string][]byte
}

// content is an open blob.
type content struct {
	*io.SectionReader
	io.Closer
}

// newBlobs opens the store below dir, or one in memory.
func newBlobs(dir string) (*blobs, error) {
	if dir == "" {
		return &blobs{memory: map[string][]byte{}}, nil
	}
	dir = filepath.Join(dir, "blobs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of simulated disks: %w", err)
	}
	return &blobs{dir: dir}, nil
}

// put stores what r yields and answers its name and length.
func (b *blobs) put(r io.Reader) (name string, size int64, err error) {
	if b.dir == "" {
		data, err := io.ReadAll(r)
		if err != nil {
			return "", 0, err
		}
		sum := sha256.Sum256(data)
		name = hex.EncodeToString(sum[:])
		b.mu.Lock()
		defer b.mu.Unlock()
		b.memory[name] = data
		return name, int64(len(data)), nil
	}
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
	if err = os.Rename(f.Name(), filepath.Join(b.dir, name)); err != nil {
		return "", 0, fmt.Errorf("storing a simulated file: %w", err)
	}
	return name, size, nil
}

// open answers the content of a stored file.
func (b *blobs) open(name string) (*content, error) {
	if b.dir == "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		data, ok := b.memory[name]
		if !ok {
			return nil, fmt.Errorf("reading a simulated file: %w", os.ErrNotExist)
		}
		return &content{io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data))), io.NopCloser(nil)}, nil
	}
	f, err := os.Open(filepath.Join(b.dir, name))
	if err != nil {
		return nil, fmt.Errorf("reading a simulated file: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("reading a simulated file: %w", err)
	}
	return &content{io.NewSectionReader(f, 0, info.Size()), f}, nil
}

// prune removes what no volume refers to.
func (b *blobs) prune(st *state) {
	if b.dir == "" {
		return
	}
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
			_ = os.Remove(filepath.Join(b.dir, e.Name()))
		}
	}
}
