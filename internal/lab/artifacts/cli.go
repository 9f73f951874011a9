// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// OpenTofuVersion is what is built where no CLI is installed.
const OpenTofuVersion = "v1.12.6"

// CLI returns the path of a Terraform-compatible command: terraform or tofu
// from the PATH, in this order, else OpenTofu, built once from its Go module
// into the cache, which takes minutes.
func CLI(ctx context.Context, report progress.Reporter) (string, error) {
	for _, name := range []string{"terraform", "tofu"} {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	b := newBuilder(cache, source, report)
	b.programs = []program{{
		Name: "tofu", Module: "opentofu", Package: "github.com/opentofu/opentofu/cmd/tofu", Host: true,
		LDFlags: "-X github.com/opentofu/opentofu/version.dev=no",
	}}
	return b.ensureTool(ctx, b.programs[0])
}

// ensureTool builds a program of this machine into the cache.
func (b *builder) ensureTool(ctx context.Context, p program) (string, error) {
	programKeys, err := b.programKeys(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.cache, "tools", programKeys[p.Name][:20])
	tool := filepath.Join(dir, p.Name)
	if _, err := os.Stat(tool); err == nil {
		return tool, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the lab's cache: %w", err)
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(tool); err == nil {
		return tool, nil
	}
	b.report(ctx, "building", "building "+p.Name+": there is neither terraform nor tofu on the PATH")
	draft := tool + ".part"
	if err := b.compile(ctx, p, draft); err != nil {
		return "", err
	}
	if err := os.Rename(draft, tool); err != nil {
		return "", fmt.Errorf("keeping %s: %w", p.Name, err)
	}
	return tool, nil
}
