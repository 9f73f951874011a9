// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package acceptance

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// processesOf lists the processes that have dir in their command line, their
// environment or the path of their program.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		proc := filepath.Join("/proc", entry.Name())
		cmdline, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err != nil || len(cmdline) == 0 {
			continue // no process, gone by now, or a kernel thread
		}
		environ, _ := os.ReadFile(filepath.Join(proc, "environ")) // not readable: another user's
		program, _ := os.Readlink(filepath.Join(proc, "exe"))
		if bytes.Contains(cmdline, []byte(dir)) || bytes.Contains(environ, []byte(dir)) || strings.Contains(program, dir) {
			found = append(found, entry.Name()+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

// TestAnInterruptLeavesNothing interrupts the main job while both the bootstrap
// cluster and the first machine are up.
func TestAnInterruptLeavesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("", "int")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	run := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestTheMainJob$", "-test.v")
	run.Env = append(os.Environ(), "TMPDIR="+dir)
	// Its verdict, a failure, must not read like one of this run.
	var verdict bytes.Buffer
	run.Stdout = &verdict
	output, err := run.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	interrupted := false
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !interrupted && strings.Contains(lines.Text(), "control plane: ready at") {
			interrupted = true
			if err := run.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		}
	}
	var exit *exec.ExitError
	if err := run.Wait(); !interrupted || !errors.As(err, &exit) {
		t.Errorf("it was interrupted: %v; it ended with %v, want a failed test:\n%s", interrupted, err, strings.ReplaceAll(verdict.String(), "--- ", "    "))
	}
	if left := processesOf(t, dir); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("files are left: %v, %v", entries, err)
	}
}
