// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Store unpacks images by digest below one directory. Several stores, also of
// several processes, may share it.
//
//	roots/<digest>   the root file system of an image
//	refs/<reference> what a reference led to the last time
//	locks/<digest>   held while an image is unpacked
type Store struct {
	dir     string
	sources []Source
}

// NewStore returns a store over dir, which is made when it is needed. Sources
// are asked in their order.
func NewStore(dir string, sources ...Source) *Store {
	return &Store{dir: dir, sources: sources}
}

// record is what refs keeps, so that a cluster starts again from its data when
// its sources are out of reach.
type record struct {
	Digest string    `json:"digest"`
	Config v1.Config `json:"config"`
}

// Unpack finds the image and unpacks it unless that was done before. An error
// that is kube.ErrAbsent says that no source has it. An image that was unpacked
// before is still answered when the sources cannot be asked.
func (s *Store) Unpack(ctx context.Context, ref string) (*Image, error) {
	image, err := s.find(ctx, ref)
	if err != nil {
		if known, ok := s.known(ref); ok {
			return known, nil
		}
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, fmt.Errorf("reading the manifest of image %s: %w", ref, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of image %s: %w", ref, err)
	}
	found := &Image{Ref: ref, Digest: digest.String(), Root: s.root(digest.String()), Config: config.Config}
	if err := s.ensureRoot(ctx, image, found); err != nil {
		return nil, fmt.Errorf("unpacking image %s: %w", ref, err)
	}
	return found, s.remember(found)
}

func (s *Store) find(ctx context.Context, ref string) (v1.Image, error) {
	var unknown []error
	for _, source := range s.sources {
		image, err := source.Image(ctx, ref)
		if err == nil {
			return image, nil
		}
		if !kube.IsAbsent(err) {
			unknown = append(unknown, err)
		}
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("finding image %s: %w", ref, errors.Join(unknown...))
	}
	names := make([]string, 0, len(s.sources))
	for _, source := range s.sources {
		names = append(names, source.String())
	}
	return nil, fmt.Errorf("image %s is not in %s: %w", ref, strings.Join(names, ", "), kube.ErrAbsent)
}

func (s *Store) root(digest string) string {
	return filepath.Join(s.dir, "roots", strings.ReplaceAll(digest, ":", "-"))
}

func (s *Store) refFile(ref string) string {
	return filepath.Join(s.dir, "refs", url.PathEscape(ref))
}

func (s *Store) known(ref string) (*Image, bool) {
	content, err := os.ReadFile(s.refFile(ref))
	if err != nil {
		return nil, false
	}
	var r record
	if json.Unmarshal(content, &r) != nil || r.Digest == "" {
		return nil, false
	}
	root := s.root(r.Digest)
	if _, err := os.Stat(root); err != nil {
		return nil, false
	}
	return &Image{Ref: ref, Digest: r.Digest, Root: root, Config: r.Config}, true
}

func (s *Store) remember(i *Image) error {
	content, err := json.Marshal(record{Digest: i.Digest, Config: i.Config})
	if err != nil {
		return err
	}
	file := s.refFile(i.Ref)
	if old, err := os.ReadFile(file); err == nil && string(old) == string(content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	scratch, err := os.CreateTemp(filepath.Dir(file), ".ref-*")
	if err != nil {
		return err
	}
	_, err = scratch.Write(content)
	err = errors.Join(err, scratch.Close())
	if err == nil {
		err = os.Rename(scratch.Name(), file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("remembering image %s: %w", i.Ref, err), os.Remove(scratch.Name()))
	}
	return nil
}

// ensureRoot unpacks beside the place and renames, so that a root is whole or
// not there. What a killed run left beside it is removed under the lock.
func (s *Store) ensureRoot(ctx context.Context, image v1.Image, found *Image) error {
	if _, err := os.Stat(found.Root); err == nil {
		return nil
	}
	locks := filepath.Join(s.dir, "locks")
	for _, dir := range []string{locks, filepath.Dir(found.Root)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	lock := flock.New(filepath.Join(locks, filepath.Base(found.Root)))
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		return fmt.Errorf("waiting for another process that unpacks it: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if _, err := os.Stat(found.Root); err == nil {
		return nil
	}
	scratch := filepath.Join(filepath.Dir(found.Root), ".unpacking-"+filepath.Base(found.Root))
	if err := removeTree(scratch); err != nil {
		return err
	}
	if err := unpack(ctx, image, scratch); err != nil {
		return errors.Join(err, removeTree(scratch))
	}
	return os.Rename(scratch, found.Root)
}
