// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const loopback = "127.0.0.1"

func fakeConfigIn(dir, programs string) Config {
	return Config{
		Dir: dir, Address: netip.MustParseAddr(loopback), StartTimeout: 20 * time.Second,
		Binaries: Binaries{
			Etcd:              filepath.Join(programs, "etcd"),
			APIServer:         filepath.Join(programs, "kube-apiserver"),
			ControllerManager: filepath.Join(programs, "kube-controller-manager"),
			Scheduler:         filepath.Join(programs, "kube-scheduler"),
		},
	}
}

// fakeConfig answers a configuration whose programs are this test binary.
func fakeConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	programs := filepath.Join(dir, "programs")
	if err := os.Mkdir(programs, 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "starter"} {
		if err := os.Symlink(self, filepath.Join(programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	return fakeConfigIn(dir, programs)
}

// events answers the notes of the fakes and the pids of those that started.
func events(t *testing.T, dir string) (lines []string, pids map[string]int) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "events"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	pids = map[string]int{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		lines = append(lines, strings.Join(fields[:2], " "))
		if fields[0] == "start" {
			if pids[fields[1]], err = strconv.Atoi(fields[2]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return lines, pids
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up waiting until %s", what)
		}
	}
}

func touch(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func checkAllGone(t *testing.T, dir string, programs int) {
	t.Helper()
	_, pids := events(t, dir)
	if len(pids) != programs {
		t.Errorf("%d programs were started (%v), want %d", len(pids), pids, programs)
	}
	for name, pid := range pids {
		eventually(t, name+" is gone", func() bool { return gone(pid) })
	}
}

func TestStopEndsTheProgramsInReverseOrderWithTheAPIServerBeforeEtcd(t *testing.T) {
	t.Parallel()
	cfg := fakeConfig(t)
	c, err := Start(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"start etcd", "start kube-apiserver", "start kube-controller-manager", "start kube-scheduler",
		"stop kube-scheduler", "stop kube-controller-manager", "stop kube-apiserver", "stop etcd",
	}
	got, _ := events(t, cfg.Dir)
	if i := slices.Index(got, "start kube-controller-manager"); i == 3 { // the last two start side by side
		got[2], got[3] = got[3], got[2]
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	checkAllGone(t, cfg.Dir, 4)
	if err := c.Err(); err != nil {
		t.Errorf("a control plane that was told to stop reports %v", err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("the second stop: %v", err)
	}
}

func TestProgramThatDoesNotEndIsKilledWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	cfg := fakeConfig(t)
	touch(t, cfg.Dir, "kube-apiserver-is-deaf")
	c, err := Start(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	checkAllGone(t, cfg.Dir, 4)
}

func TestStartThatFailsQuotesTheLogAndLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file, want string
		timeout          time.Duration
		started          int
	}{
		{"a program that ends at once", "kube-apiserver-fails", "fatal: kube-apiserver cannot go on", 20 * time.Second, 2},
		{"the last program ends at once", "kube-scheduler-fails", "fatal: kube-scheduler cannot go on", 20 * time.Second, 3},
		{"a program that never gets ready", "kube-apiserver-is-sick", "500 Internal Server Error: [-]stomach failed", time.Second, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := fakeConfig(t)
			cfg.StartTimeout = tt.timeout
			touch(t, cfg.Dir, tt.file)
			_, err := Start(t.Context(), cfg, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want one with %q", err, tt.want)
			}
			// The controller-manager, which starts beside the scheduler, may be ended
			// before it has written down that it runs.
			_, pids := events(t, cfg.Dir)
			if len(pids) < tt.started {
				t.Errorf("%d programs were started (%v), want %d", len(pids), pids, tt.started)
			}
			checkAllGone(t, cfg.Dir, len(pids))
		})
	}
}

func TestTheEndOfALogIsItsCauseAndNotTheStacksAfterIt(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("info\n", 50)
	stacks := "panic: failed to create WAL\n\ngoroutine 1 [running]:\n" + strings.Repeat("main.main()\n\tmain.go:31 +0x28\n", 40)
	for name, test := range map[string]struct{ log, want string }{
		"a panic":                {many + "no space left on device\n" + stacks, "info\nno space left on device\npanic: failed to create WAL"},
		"a program that says it": {many + "fatal\n", "info\ninfo\ninfo\nfatal"},
		"few lines":              {"fatal\n", "fatal"},
		"stacks alone":           {"goroutine 1 [running]:\nmain.main()\n", "goroutine 1 [running]:\nmain.main()"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(file, []byte(test.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := tail(file, 4); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestEndedContextEndsTheStartAndLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	cfg := fakeConfig(t)
	touch(t, cfg.Dir, "kube-apiserver-is-sick")
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := Start(ctx, cfg, nil)
		result <- err
	}()
	eventually(t, "the API server has started", func() bool {
		_, pids := events(t, cfg.Dir)
		return pids["kube-apiserver"] != 0
	})
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want the context's", err)
	}
	checkAllGone(t, cfg.Dir, 2)
}

func TestProgramThatIsLostIsReported(t *testing.T) {
	t.Parallel()
	cfg := fakeConfig(t)
	c, err := Start(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop(context.Background()) })
	if err := c.Err(); err != nil {
		t.Fatalf("a running control plane reports %v", err)
	}
	_, pids := events(t, cfg.Dir)
	if err := syscall.Kill(pids["etcd"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the loss of etcd was not noticed")
	}
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "etcd is gone (signal: killed)") {
		t.Errorf("got %v", err)
	}
}

func TestKilledStarterLeavesNoProcess(t *testing.T) {
	t.Parallel()
	cfg := fakeConfig(t)
	cmd := exec.Command(filepath.Join(cfg.Dir, "programs", "starter"))
	cmd.Env = append(os.Environ(), "CP_DIR="+cfg.Dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "started\n" {
		t.Errorf("the starter said %q (%v)", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // says that it was killed
	checkAllGone(t, cfg.Dir, 4)
}

func TestTakenPortIsNamedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := fakeConfig(t)
	cfg.Port = l.Addr().(*net.TCPAddr).Port
	_, err = Start(t.Context(), cfg, nil)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "the port for the API server") {
		t.Errorf("got error %v", err)
	}
	checkAllGone(t, cfg.Dir, 0)
}

func TestReservedPortIsRefusedToOthersAndOpenToTheProgram(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr(loopback)
	r, err := reserve(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer r.release()
	if err := checkFree(t.Context(), addr, r.port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second listener got %v", err)
	}
	other, err := reserve(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer other.release()
	if other.port == r.port {
		t.Errorf("the port %d was given out twice", r.port)
	}
}

func TestConfigThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, want string
		change     func(*Config)
	}{
		{"no folder", "no folder given", func(c *Config) { c.Dir = "" }},
		{"no address", "one address of this host is needed", func(c *Config) { c.Address = netip.Addr{} }},
		{"all addresses", "one address of this host is needed", func(c *Config) { c.Address = netip.IPv4Unspecified() }},
		{"no program", "no path of kube-scheduler given", func(c *Config) { c.Binaries.Scheduler = "" }},
		{"absent program", "no such file", func(c *Config) { c.Binaries.Etcd += "x" }},
		{"a folder as program", "is not a program", func(c *Config) { c.Binaries.Etcd = filepath.Dir(c.Binaries.Etcd) }},
		{"broken authority", "no PEM certificate", func(c *Config) { c.PKI = &PKI{} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := fakeConfig(t)
			tt.change(&cfg)
			if _, err := Start(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want one with %q", err, tt.want)
			}
		})
	}
}
