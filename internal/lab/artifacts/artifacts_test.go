// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// messages collects what a builder reports.
type messages struct {
	mu   sync.Mutex
	text []string
}

func (m *messages) report(_ context.Context, _, message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.text = append(m.text, message)
}

func (m *messages) starting(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.text), func(s string) bool { return !strings.HasPrefix(s, prefix) })
}

// tinySource makes a checkout with one nested module of two small programs.
func tinySource(t *testing.T) string {
	t.Helper()
	source := t.TempDir()
	files := map[string]string{
		"internal/lab/artifacts/doc.go":          "package artifacts\n",
		"internal/lab/images/tiny/go.mod":        "module lab.invalid/images/tiny\n\ngo 1.26.0\n",
		"internal/lab/images/tiny/one/main.go":   "package main\n\nfunc main() { println(1) }\n",
		"internal/lab/images/tiny/two/main.go":   "package main\n\nfunc main() { println(2) }\n",
		"internal/lab/images/tiny/three/main.go": "package main\n\nfunc main() { println(3) }\n",
	}
	for name, content := range files {
		path := filepath.Join(source, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return source
}

func tinyBuilder(cache, source string, m *messages) *builder {
	b := newBuilder(cache, source, m.report)
	b.charts, b.releases = nil, nil
	b.programs, b.images = nil, nil
	for _, name := range []string{"one", "two", "three"} {
		b.programs = append(b.programs, program{Name: name, Module: "tiny", Package: "./" + name, Path: "/" + name})
		b.images = append(b.images, image{Names: []string{"lab.invalid/" + name + ":v1"}, Program: name, User: nonroot, Entrypoint: []string{"/" + name}})
	}
	return b
}

func ensureTiny(t *testing.T, cache, source string) (*Set, *messages) {
	t.Helper()
	m := &messages{}
	set, err := tinyBuilder(cache, source, m).ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return set, m
}

// tree lists all files below dir with their contents.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestASecondEnsureBuildsNothing(t *testing.T) {
	cache, source := t.TempDir(), tinySource(t)
	first, m := ensureTiny(t, cache, source)
	if got := len(m.starting("building")); got != 3 {
		t.Errorf("the first one built %d programs, want 3: %q", got, m.text)
	}
	second, m := ensureTiny(t, cache, source)
	if len(m.text) != 0 {
		t.Errorf("the second one was not silent: %q", m.text)
	}
	if first.Dir != second.Dir {
		t.Errorf("they answered %s and %s", first.Dir, second.Dir)
	}
}

func TestAChangedModuleMakesANewSetBesideTheOldOne(t *testing.T) {
	cache, source := t.TempDir(), tinySource(t)
	first, _ := ensureTiny(t, cache, source)
	before := tree(t, first.Dir)
	changed := filepath.Join(source, "internal", "lab", "images", "tiny", "one", "main.go")
	if err := os.WriteFile(changed, []byte("package main\n\nfunc main() { println(11) }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	second, _ := ensureTiny(t, cache, source)
	if first.Dir == second.Dir {
		t.Fatal("the changed module made no new set")
	}
	after := tree(t, first.Dir)
	for name, content := range before {
		if after[name] != content {
			t.Errorf("%s of the old set changed", name)
		}
	}
}

func TestTheSameSourcesGiveTheSameBytes(t *testing.T) {
	source := tinySource(t)
	first, _ := ensureTiny(t, t.TempDir(), source)
	second, _ := ensureTiny(t, t.TempDir(), source)
	one, two := tree(t, first.Dir), tree(t, second.Dir)
	if len(one) == 0 || len(one) != len(two) {
		t.Fatalf("the sets have %d and %d files", len(one), len(two))
	}
	for name, content := range one {
		if two[name] != content {
			t.Errorf("%s differs", name)
		}
	}
}

func TestTwoAtOnceBuildEachProgramOnce(t *testing.T) {
	cache, source := t.TempDir(), tinySource(t)
	m := &messages{}
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			if _, err := tinyBuilder(cache, source, m).ensure(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if got := m.starting("building"); len(got) != 3 {
		t.Errorf("%d builds, want 3: %q", len(got), got)
	}
}

func TestACancelledEnsureSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := tinyBuilder(t.TempDir(), tinySource(t), &messages{}).ensure(ctx)
	if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("got %v", err)
	}
}

func TestAFailedBuildShowsTheCompilersWords(t *testing.T) {
	source := tinySource(t)
	broken := filepath.Join(source, "internal", "lab", "images", "tiny", "two", "main.go")
	if err := os.WriteFile(broken, []byte("package main\n\nfunc main() { nowhere() }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	_, err := tinyBuilder(cache, source, &messages{}).ensure(t.Context())
	if err == nil || !strings.Contains(err.Error(), "undefined: nowhere") || !strings.Contains(err.Error(), "building two") {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(cache, "work")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// killEnv makes the test binary a builder that is to be killed.
const killEnv = "CAPI_LAB_TEST_KILLED_BUILDER"

func TestMain(m *testing.M) {
	if args := os.Getenv(killEnv); args != "" {
		cache, source, _ := strings.Cut(args, string(os.PathListSeparator))
		b := tinyBuilder(cache, source, &messages{})
		b.report = func(_ context.Context, phase, _ string) {
			if phase == "packing" { // all is built and nothing is packed
				if self, err := os.FindProcess(os.Getpid()); err == nil {
					_ = self.Kill()
				}
			}
		}
		_, _ = b.ensure(context.Background())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestTheNextEnsureFinishesWhatAKilledOneBegan(t *testing.T) {
	cache, source := t.TempDir(), tinySource(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	killed := exec.CommandContext(t.Context(), self)
	killed.Env = append(os.Environ(), killEnv+"="+cache+string(os.PathListSeparator)+source)
	if err := killed.Run(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("the first builder was not killed: %v", err)
	}
	if _, err := os.Stat(filepath.Join(cache, "work")); err != nil {
		t.Fatalf("the killed builder left no work: %v", err)
	}
	set, m := ensureTiny(t, cache, source)
	if got := m.starting("building"); len(got) != 0 {
		t.Errorf("what was built already was built again: %q", got)
	}
	if _, err := os.Stat(filepath.Join(cache, "work")); !os.IsNotExist(err) {
		t.Errorf("the killed builder's work is still there: %v", err)
	}
	index, err := layout.ImageIndexFromPath(set.ImageLayout)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 3 {
		t.Errorf("the layout has %d images, want 3", len(manifest.Manifests))
	}
}

func TestAToolIsBuiltOnceForThisMachine(t *testing.T) {
	cache, source := t.TempDir(), tinySource(t)
	m := &messages{}
	var paths []string
	for range 2 {
		b := tinyBuilder(cache, source, m)
		b.programs = []program{{Name: "one", Module: "tiny", Package: "./one", Host: true}}
		path, err := b.ensureTool(t.Context(), b.programs[0])
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if paths[0] != paths[1] || len(m.starting("building")) != 1 {
		t.Errorf("got %q after %q", paths, m.text)
	}
	if out, err := exec.CommandContext(t.Context(), paths[0]).CombinedOutput(); err != nil || string(out) != "1\n" {
		t.Errorf("it says %q (%v)", out, err)
	}
}

func TestTheCLIOnThePathIsTaken(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for _, name := range []string{"tofu", "terraform"} { // the latter comes first, once it is there
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if got, err := CLI(t.Context(), nil); err != nil || got != path {
			t.Errorf("got %s (%v), want %s", got, err, path)
		}
	}
}
