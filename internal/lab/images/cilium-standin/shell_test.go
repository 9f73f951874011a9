// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets the test binary be one of the programs, by its name.
func TestMain(m *testing.M) {
	if programs[filepath.Base(os.Args[0])] != nil {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// tools makes a folder with all programs and returns its path.
func tools(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range names() {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// run runs a program with nothing but this binary's tools.
func run(t *testing.T, dir string, argv ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, argv[0]), argv[1:]...)
	cmd.Env = []string{"PATH=" + dir, "BIN_PATH=/opt/cni/bin"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func TestTheShellRunsTheChartsScripts(t *testing.T) {
	dir, host := tools(t), t.TempDir()
	for name, test := range map[string]struct {
		argv []string
		says string
	}{
		"lifecycle hook": {[]string{"bash", "-c", `set -o errexit
set -o pipefail
set -o nounset
if [[ "$(iptables-save | grep -E -c 'AWS-SNAT-CHAIN|AWS-CONNMARK-CHAIN')" != "0" ]];
then
    iptables-save | grep -E -v 'AWS-SNAT-CHAIN|AWS-CONNMARK-CHAIN' | iptables-restore
fi
echo 'Done!'`}, "Done!"},
		"sysctl": {[]string{"bash", "-ec", "cp " + filepath.Join(dir, "cp") + " " + host + "/fix;\n" +
			`nsenter --mount=/hostproc/1/ns/mnt "${BIN_PATH}/cilium-sysctlfix";` + "\nrm " + host + "/fix"}, "left alone"},
		"file systems": {[]string{"bash", "-c", "--", `mount | grep "/sys/fs/none type bpf" || mount -t bpf bpf /sys/fs/bpf`}, "nothing is mounted"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, dir, test.argv...)
			if err != nil || !strings.Contains(out, test.says) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	if left, _ := os.ReadDir(host); len(left) > 0 {
		t.Errorf("left on the host: %v", left)
	}
}

func TestTheShellEndsWithItsScriptsStatus(t *testing.T) {
	_, err := run(t, tools(t), "sh", "-ec", "cat /nowhere; echo not reached")
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 {
		t.Errorf("got %v", err)
	}
}

func TestFindDeletesOnlyWhatBothPatternsName(t *testing.T) {
	dir, folder := tools(t), t.TempDir()
	for _, name := range []string{"05-cilium.conflist", "10-other.conflist", "cilium.txt"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script := "find " + folder + ` -maxdepth 1 -type f -name '*cilium*' -and \( -name '*.conf' -or -name '*.conflist' \) -delete`
	if out, err := run(t, dir, "bash", "-c", script); err != nil {
		t.Fatal(err, out)
	}
	left, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(left) != 2 {
		t.Errorf("left are %v (%v)", left, err)
	}
}
