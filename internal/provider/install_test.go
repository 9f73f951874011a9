// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstalledProviderIsFoundWithoutARegistry runs make install, but for the
// build, and lets the CLI initialise a configuration as the README has it.
func TestInstalledProviderIsFoundWithoutARegistry(t *testing.T) {
	cli, home, bin, dir := cliPath(t), t.TempDir(), t.TempDir(), t.TempDir()
	write := func(file, text string, mode os.FileMode) {
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	// Nothing starts it: an initialisation looks at names and sums alone.
	write(filepath.Join(bin, "terraform-provider-capi"), "#!/bin/sh\n", 0o755)
	write(filepath.Join(dir, "main.tf"), `terraform {
  required_providers {
    capi = { source = "terraform-provider-capi/capi" }
  }
}
`, 0o644)
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if name != "HOME" && !strings.HasPrefix(name, "TF_") && !strings.HasPrefix(name, "XDG_") && !strings.HasPrefix(name, "MAKE") {
			env = append(env, entry)
		}
	}
	env = append(env, "HOME="+home, "CHECKPOINT_DISABLE=1")
	run := func(in, program string, arguments ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), program, arguments...)
		command.Dir, command.Env = in, env
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(arguments, " "), err, output)
		}
	}
	for range 2 { // the second time over what is there
		run(filepath.Join("..", ".."), "make", "-o", "build", "install", "BIN="+bin)
	}
	run(dir, cli, "init", "-input=false", "-no-color")
}
