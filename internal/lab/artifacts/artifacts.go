// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package artifacts builds what the lab runs from Go modules alone: images of
// the real control plane and Cluster API programs as one OCI layout, a
// clusterctl repository on disk and the charts. Nothing but the Go module
// proxy is asked. It is for tests and for the lab's command, which run inside
// a checkout of this project; the provider does not use it.
//
// Everything lies in a cache that is addressed by content: a set's folder is
// named by a hash over the Go version, the nested modules, the build flags and
// this package, is complete as soon as it is there, and never changes. So
// checkouts of different states share one cache, and one of them building does
// not disturb the labs of another.
package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// CacheEnv names the environment variable with the folder of the cache. Without
// it the cache is terraform-provider-capi/lab in the user's cache folder.
const CacheEnv = "CAPI_LAB_CACHE"

// unusedFor is how long a set or a layer stays in the cache without being asked
// for, once another set is built.
const unusedFor = 14 * 24 * time.Hour

// Set is one consistent set of artifacts on disk. Nothing in it may be changed.
type Set struct {
	// Dir is the folder that holds the others.
	Dir string
	// ImageLayout is an OCI layout with all images. The index names each by
	// the annotation org.opencontainers.image.ref.name, which holds the full
	// reference, such as registry.k8s.io/etcd:3.6.8-0.
	ImageLayout string
	// Repository is the root of a clusterctl repository on disk:
	// <label>/<version>/{<components>,metadata.yaml} for every one of
	// Providers, and cert-manager/<version>/cert-manager.yaml.
	Repository string
	// Charts are the files of the charts by their names.
	Charts map[string]string
}

// CacheDir returns the folder of the cache.
func CacheDir() (string, error) {
	if dir := os.Getenv(CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a folder for the lab's cache (set %s to choose one): %w", CacheEnv, err)
	}
	return filepath.Join(dir, "terraform-provider-capi", "lab"), nil
}

// Ensure returns the set of this checkout, after building what the cache lacks
// of it. Builders at the same time wait for one another, and one that was
// killed leaves a cache that the next one goes on with. A cold build takes many
// minutes, and a complete cache a fraction of a second.
func Ensure(ctx context.Context, report progress.Reporter) (*Set, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	source, err := sourceDir()
	if err != nil {
		return nil, err
	}
	return newBuilder(cache, source, report).ensure(ctx)
}

// builder makes one set.
type builder struct {
	cache    string
	source   string // the project's checkout
	report   progress.Reporter
	programs []program
	images   []image
	charts   []chart
	releases []release
}

func newBuilder(cache, source string, report progress.Reporter) *builder {
	var mu sync.Mutex
	return &builder{
		cache:  cache,
		source: source,
		report: func(ctx context.Context, phase, message string) {
			mu.Lock()
			defer mu.Unlock()
			report.Report(ctx, phase, message)
		},
		programs: programs(),
		images:   images(),
		charts:   charts(),
		releases: releases(),
	}
}

func (b *builder) ensure(ctx context.Context) (*Set, error) {
	key, err := b.setKey(ctx)
	if err != nil {
		return nil, err
	}
	set := b.set(key)
	if set.touch() {
		return set, nil
	}
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return nil, fmt.Errorf("making the lab's cache: %w", err)
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if set.touch() { // by whoever held the lock before
		return set, nil
	}
	if err := b.build(ctx, set); err != nil {
		return nil, fmt.Errorf("building the lab's artifacts in %s: %w", b.cache, err)
	}
	return set, b.prune(set)
}

func (b *builder) set(key string) *Set {
	return b.setIn(filepath.Join(b.cache, "sets", key))
}

func (b *builder) setIn(dir string) *Set {
	set := &Set{
		Dir:         dir,
		ImageLayout: filepath.Join(dir, "images"),
		Repository:  filepath.Join(dir, "repository"),
		Charts:      map[string]string{},
	}
	for _, c := range b.charts {
		set.Charts[c.Name] = filepath.Join(dir, "charts", c.file())
	}
	return set
}

// touch tells whether the set is complete, and notes that it was asked for.
func (s *Set) touch() bool {
	now := time.Now()
	// Another user's cache can be used without leave to write to it.
	if err := os.Chtimes(s.Dir, now, now); err != nil {
		_, err = os.Stat(s.Dir)
		return err == nil
	}
	return true
}

// lock waits for the cache's lock. The system frees it when its holder dies.
func (b *builder) lock(ctx context.Context) (func(), error) {
	lock := flock.New(filepath.Join(b.cache, "lock"))
	locked, err := lock.TryLock()
	if err == nil && !locked {
		b.report(ctx, "waiting", "waiting for another process that builds in "+b.cache)
		_, err = lock.TryLockContext(ctx, 200*time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the lab's cache %s: %w", b.cache, err)
	}
	return func() { _ = lock.Unlock() }, nil
}

// build makes the set beside its place and moves it there.
func (b *builder) build(ctx context.Context, set *Set) error {
	// The lock is held: what lies here was left by a builder that was killed.
	if err := os.RemoveAll(b.work()); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.work()) }()
	draft, scratch := b.setIn(filepath.Join(b.work(), "set")), filepath.Join(b.work(), "scratch")
	for _, dir := range []string{draft.Dir, scratch, filepath.Dir(set.Dir)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	layers, err := b.buildPrograms(ctx, scratch)
	if err != nil {
		return err
	}
	b.report(ctx, "packing", fmt.Sprintf("packing %d images", len(b.images)))
	if err := b.writeLayout(ctx, draft.ImageLayout, filepath.Join(scratch, "layers"), layers); err != nil {
		return err
	}
	if err := b.writeCharts(ctx, filepath.Join(draft.Dir, "charts"), scratch); err != nil {
		return err
	}
	if err := b.writeRepository(ctx, draft.Repository, scratch); err != nil {
		return err
	}
	if file, ok := draft.Charts[CertManagerChart]; ok {
		if err := b.writeCertManager(ctx, draft.Repository, file); err != nil {
			return err
		}
	}
	return os.Rename(draft.Dir, set.Dir)
}

// work is where things are made before they are moved to their places.
func (b *builder) work() string { return filepath.Join(b.cache, "work") }

// prune removes what has not been asked for in a long time.
func (b *builder) prune(current *Set) error {
	for _, folder := range []string{"sets", "layers"} {
		entries, err := os.ReadDir(filepath.Join(b.cache, folder))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("looking for old artifacts: %w", err)
		}
		for _, entry := range entries {
			path := filepath.Join(b.cache, folder, entry.Name())
			info, err := entry.Info()
			if err != nil || path == current.Dir || time.Since(info.ModTime()) < unusedFor {
				continue
			}
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("removing old artifacts: %w", err)
			}
		}
	}
	return nil
}

// sourceDir finds the checkout of this project: the one around the working
// directory, else the one that this package was compiled in.
func sourceDir() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		starts = append(starts, filepath.Dir(file))
	}
	for _, dir := range starts {
		for {
			if _, err := os.Stat(filepath.Join(dir, "internal", "lab", "images", "kubernetes", "go.mod")); err == nil {
				return dir, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", errors.New("the lab builds its images from the sources of terraform-provider-capi: run it inside a checkout")
}
