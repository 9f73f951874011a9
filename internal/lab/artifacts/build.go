// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// buildsAtOnce is how many modules are built side by side: the programs of one
// link while those of the other compile.
const buildsAtOnce = 2

// heartbeat is how often a running build says that it still runs.
const heartbeat = 15 * time.Second

// modulesDir returns the folder with the nested modules.
func (b *builder) modulesDir() string {
	return filepath.Join(b.source, "internal", "lab", "images")
}

// goVersion returns the version of the Go command. A nested module that wants a
// newer one says so in its go.mod, which is part of every key too.
func goVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("asking the Go command for its version (the lab needs Go): %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// keys are the content addresses of all programs, by name.
type keys map[string]string

func (b *builder) programKeys(ctx context.Context) (keys, error) {
	version, err := goVersion(ctx)
	if err != nil {
		return nil, err
	}
	modules := map[string]string{}
	result := keys{}
	for _, p := range b.programs {
		if modules[p.Module] == "" {
			sum, err := hashFiles(filepath.Join(b.modulesDir(), p.Module))
			if err != nil {
				return nil, fmt.Errorf("reading the module of %s: %w", p.Name, err)
			}
			modules[p.Module] = sum
		}
		result[p.Name] = hashOf("layer 1", version, runtime.GOARCH, modules[p.Module], p)
	}
	return result, nil
}

// setKey is the content address of the whole set. This package's own source is
// part of it, since it decides how things are packed and rendered.
func (b *builder) setKey(ctx context.Context) (string, error) {
	programs, err := b.programKeys(ctx)
	if err != nil {
		return "", err
	}
	own, err := hashFiles(filepath.Join(b.source, "internal", "lab", "artifacts"))
	if err != nil {
		return "", fmt.Errorf("reading the lab's source: %w", err)
	}
	pins := map[string]string{} // of modules that give files only
	for _, c := range b.charts {
		if c.Module == "" {
			continue
		}
		if pins[c.Module], err = hashFiles(filepath.Join(b.modulesDir(), c.Module)); err != nil {
			return "", fmt.Errorf("reading the module of chart %s: %w", c.Name, err)
		}
	}
	return hashOf("set 1", programs, b.images, own, pins)[:20], nil
}

// hashFiles hashes names and contents of the files below dir, tests excepted.
func hashFiles(dir string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", filepath.ToSlash(name), len(content))
		sum.Write(content)
		return nil
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// hashOf hashes values by their JSON, which has a fixed order.
func hashOf(values ...any) string {
	sum := sha256.New()
	encoder := json.NewEncoder(sum)
	for _, v := range values {
		// Strings, maps and flat structs: encoding these cannot fail.
		_ = encoder.Encode(v)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// buildPrograms builds what is missing and returns all programs' layers by
// their names.
func (b *builder) buildPrograms(ctx context.Context, scratch string) (map[string]*layer, error) {
	programKeys, err := b.programKeys(ctx)
	if err != nil {
		return nil, err
	}
	var (
		mu     sync.Mutex
		layers = map[string]*layer{}
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(buildsAtOnce)
	for _, programs := range b.programsByModule() {
		group.Go(func() error {
			for _, p := range programs {
				position := fmt.Sprintf("%d of %d", slices.Index(b.programs, p)+1, len(b.programs))
				made, err := b.programLayer(ctx, p, programKeys[p.Name], scratch, position)
				if err != nil {
					return err
				}
				mu.Lock()
				layers[p.Name] = made
				mu.Unlock()
			}
			return nil
		})
	}
	return layers, group.Wait()
}

// programsByModule groups the programs that are built one after the other: those
// of one module share most of their packages, which two Go commands at once would
// both compile.
func (b *builder) programsByModule() [][]program {
	var groups [][]program
	for _, p := range b.programs {
		i := slices.IndexFunc(groups, func(group []program) bool { return group[0].Module == p.Module })
		if i < 0 {
			groups = append(groups, []program{p})
			continue
		}
		groups[i] = append(groups[i], p)
	}
	return groups
}

// programLayer returns the layer with one program from the cache, or builds it.
func (b *builder) programLayer(ctx context.Context, p program, key, scratch, position string) (*layer, error) {
	dir := filepath.Join(b.cache, "layers", key)
	if found, err := openLayer(dir); err == nil {
		now := time.Now()
		return found, os.Chtimes(dir, now, now)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	binary := filepath.Join(scratch, p.Name)
	defer func() { _ = os.Remove(binary) }()
	start := time.Now()
	b.report(ctx, "building", fmt.Sprintf("building %s (%s)", p.Name, position))
	if err := b.compile(ctx, p, binary); err != nil {
		return nil, err
	}
	made, err := writeLayer(dir, []entry{{path: p.Path, mode: 0o755, file: binary}})
	if err != nil {
		return nil, fmt.Errorf("packing %s: %w", p.Name, err)
	}
	b.report(ctx, "building", fmt.Sprintf("built %s in %s", p.Name, time.Since(start).Round(time.Second)))
	return made, nil
}

// compile runs the Go command on one program.
func (b *builder) compile(ctx context.Context, p program, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false",
		"-ldflags", strings.TrimSpace("-s -w "+p.LDFlags), "-o", out, p.Package)
	cmd.Dir = filepath.Join(b.modulesDir(), p.Module)
	system := "linux"
	if p.Host {
		system = runtime.GOOS
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+runtime.GOARCH, "GOWORK=off")
	// An interrupt lets the Go command remove its own scratch folder.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	output := &lastLines{}
	cmd.Stdout, cmd.Stderr = output, output

	done := make(chan struct{})
	defer close(done)
	go b.watch(ctx, p, output, done)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("building %s: %w", p.Name, ctx.Err())
		}
		return fmt.Errorf("building %s (%s): %w\n%s", p.Name, p.Package, err, output.tail(20))
	}
	return nil
}

// watch reports a build that takes long.
func (b *builder) watch(ctx context.Context, p program, output *lastLines, done <-chan struct{}) {
	start := time.Now()
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
			message := fmt.Sprintf("still building %s, %s", p.Name, time.Since(start).Round(time.Second))
			if line := output.tail(1); line != "" {
				message += ": " + line
			}
			b.report(ctx, "building", message)
		}
	}
}

// lastLines keeps what a command says, for whoever wants the end of it.
type lastLines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lastLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lastLines) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(l.text.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
