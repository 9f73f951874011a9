// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package lab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

// serveArgument makes the test's program serve a lab instead of testing.
const serveArgument = "serve-lab"

func TestMain(m *testing.M) {
	local.ReexecMain()
	if len(os.Args) == 3 && os.Args[1] == serveArgument {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err := lab.Serve(ctx, lab.Options{Dir: os.Args[2]})
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func start(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	l, err := lab.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestTwoLabsLieInBlocksOfTheirOwn(t *testing.T) {
	a, b := start(t, lab.Options{Dir: t.TempDir()}), start(t, lab.Options{Dir: t.TempDir()})
	if a.Block == b.Block {
		t.Errorf("both lie in %s", a.Block)
	}
	_, err := lab.Start(t.Context(), lab.Options{Dir: t.TempDir(), Block: a.Block})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a third lab in %s: %v", a.Block, err)
	}
}

func TestALabComesBackWhereItWas(t *testing.T) {
	dir := t.TempDir()
	before := start(t, lab.Options{Dir: dir})
	secret, ca := before.TokenSecret(), string(before.PVE.CA())
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	after := start(t, lab.Options{Dir: dir})
	if after.Block != before.Block || after.TokenSecret() != secret || string(after.PVE.CA()) != ca {
		t.Errorf("block %s, then %s; the secret or the CA changed: %v, %v", before.Block, after.Block, after.TokenSecret() != secret, string(after.PVE.CA()) != ca)
	}
	if got := after.PVE.Summary().Tokens; len(got) != 1 || got[0] != lab.TokenID {
		t.Errorf("tokens %v", got)
	}
}

func TestBlocksThatAreNone(t *testing.T) {
	for _, text := range []string{"10.0.0.0/24", "127.0.0.0/16", "::1/128"} {
		t.Run(text, func(t *testing.T) {
			if l, err := lab.Start(t.Context(), lab.Options{Dir: t.TempDir(), Block: netip.MustParsePrefix(text)}); err == nil {
				_ = l.Close()
				t.Error("it started")
			}
		})
	}
}

// TestTheVariablesAreTheExamples compares with the declarations of the example.
func TestTheVariablesAreTheExamples(t *testing.T) {
	hcl, err := os.ReadFile(filepath.Join("..", "..", "examples", "talos-proxmox", "variables.tf"))
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^variable "([a-z_]+)"`).FindAllStringSubmatch(string(hcl), -1) {
		declared[m[1]] = true
	}
	set := &artifacts.Set{ImageLayout: "/images", Repository: "/repository", Charts: map[string]string{
		"cilium": "1.tgz", "talos-cloud-controller-manager": "2.tgz", "cert-manager": "3.tgz", "cluster-api-operator": "4.tgz",
	}}
	for name, value := range start(t, lab.Options{Dir: t.TempDir(), Artifacts: set}).Variables() {
		if !declared[name] {
			t.Errorf("the example has no variable %s", name)
		}
		if text := fmt.Sprint(value); text == "" || text == "[]" {
			t.Errorf("%s is empty", name)
		}
	}
}

func TestADetachedLabOutlivesItsStarterAndLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	t.Cleanup(func() { _ = lab.Stop(context.WithoutCancel(t.Context()), dir, false) })
	if _, err := lab.Find(dir); !errors.Is(err, lab.ErrNotRunning) {
		t.Fatalf("before: %v", err)
	}
	st, err := lab.Detach(t.Context(), dir, serveArgument, dir)
	if err != nil {
		t.Fatal(err)
	}
	if group, err := syscall.Getpgid(st.PID); err != nil || group != st.PID {
		t.Errorf("process %d is in group %d (%v): a signal to its starter would end it", st.PID, group, err)
	}
	if _, err := lab.Detach(t.Context(), dir, serveArgument, dir); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second one in the same folder: %v", err)
	}
	var out bytes.Buffer
	if err := lab.Describe(t.Context(), dir, &out); err != nil {
		t.Error(err)
	}
	for _, secret := range []string{lab.VariablesFile, "lab.json", "pve/state.json"} {
		if info, err := os.Stat(filepath.Join(dir, secret)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", secret, info, err)
		}
	}

	if err := lab.Stop(t.Context(), dir, true); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Find(dir); !errors.Is(err, lab.ErrNotRunning) {
		t.Errorf("after the stop: %v", err)
	}
	again, err := lab.Detach(t.Context(), dir, serveArgument, dir)
	if err != nil {
		t.Fatal(err)
	}
	if again.Block != st.Block || again.Proxmox != st.Proxmox {
		t.Errorf("it came back elsewhere: %+v, then %+v", st, again)
	}
	// Killed outright, it is not running, and can be cleaned up all the same.
	if err := syscall.Kill(again.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the killed lab is seen to be gone", func() bool {
		_, err := lab.Find(dir)
		return errors.Is(err, lab.ErrNotRunning)
	})
	if err := lab.Stop(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}

func TestALabThatCannotStartSaysWhy(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "lab.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := lab.Detach(t.Context(), dir, serveArgument, dir)
	if err == nil || !strings.Contains(err.Error(), "unexpected end of JSON input") {
		t.Errorf("error %v", err)
	}
}

func TestOnlyALabsFolderIsRemoved(t *testing.T) {
	dir := t.TempDir()
	if err := lab.Stop(t.Context(), dir, false); err == nil {
		t.Error("a folder that holds no lab was removed")
	}
	if err := lab.Stop(t.Context(), filepath.Join(dir, "missing"), false); err != nil {
		t.Errorf("a folder that does not exist: %v", err)
	}
}

func TestTheForegroundEndsOnAnInterrupt(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, serveArgument, dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the lab is ready", func() bool { _, err := lab.Find(dir); return err == nil })
	data, err := os.ReadFile(filepath.Join(dir, lab.VariablesFile))
	if err != nil || !json.Valid(data) {
		t.Errorf("variables %s: %v", data, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waiting until %s: %v", what, ctx.Err())
		}
	}
}
