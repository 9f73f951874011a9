// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// testTime bounds each test: it never takes long, but the machine may be busy.
const testTime = 60 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

func startPod(t testing.TB, config PodConfig) *Pod {
	t.Helper()
	if config.Name == "" {
		config.Name = "test/pod"
	}
	if config.Dir == "" {
		config.Dir = filepath.Join(t.TempDir(), "pod")
	}
	if !config.IP.IsValid() {
		config.IP = netip.MustParseAddr("10.244.0.7")
	}
	p, err := Start(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTime)
		defer cancel()
		if err := p.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

// buffer is a bytes.Buffer that may be written and read at once, and waited on.
type buffer struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func newBuffer() *buffer { return &buffer{changed: make(chan struct{}, 1)} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.changed <- struct{}{}:
	default:
	}
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// await waits until the buffer holds text.
func (b *buffer) await(t testing.TB, text string) {
	t.Helper()
	deadline := time.After(testTime)
	for !strings.Contains(b.String(), text) {
		select {
		case <-b.changed:
		case <-deadline:
			t.Fatalf("%q did not come, but %q", text, b.String())
		}
	}
}

// startContainer runs the test program with the given arguments.
func startContainer(t testing.TB, p *Pod, config ContainerConfig, args ...string) (*Container, *buffer) {
	t.Helper()
	if config.Name == "" {
		config.Name = "main"
	}
	if config.Root == "" {
		config.Root = imageRoot
	}
	out := newBuffer()
	config.Args = append([]string{"/bin/" + program}, args...)
	config.Mounts = append(libraries(t), config.Mounts...)
	config.Stdout, config.Stderr = out, out
	c, err := p.StartContainer(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	return c, out
}

// run runs the test program to its end.
func run(t testing.TB, p *Pod, config ContainerConfig, args ...string) (Exit, string) {
	t.Helper()
	c, out := startContainer(t, p, config, args...)
	exit, err := c.Wait(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return exit, out.String()
}

func TestContainerRunsAsTheConfiguredUserInItsOwnNamespaces(t *testing.T) {
	for _, test := range []struct {
		name   string
		config ContainerConfig
		want   []string
	}{
		{
			"user 0 has the usual capabilities",
			ContainerConfig{},
			[]string{"uid=0 gid=0 pid=1 host=pod dir=/ home=/root", "CapEff:\t00000000a80425fb", "NoNewPrivs:\t"},
		},
		{
			"another user has none",
			ContainerConfig{UID: 65532, GID: 65533, Dir: "/var/lib/thing", Env: []string{"A=b"}},
			[]string{"uid=65532 gid=65533 pid=1 host=pod dir=/var/lib/thing home=/\n", "CapEff:\t0000000000000000", "env 3"},
		},
		{
			"no new privileges",
			ContainerConfig{UID: 1000, GID: 1000, NoNewPrivileges: true},
			[]string{"NoNewPrivs:\t1"},
		},
		{
			"a privileged user 0 has all capabilities",
			ContainerConfig{Privileged: true},
			[]string{"uid=0", "CapEff:\t000001ffffffffff"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, out := run(t, startPod(t, PodConfig{}), test.config, "identity")
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in:\n%s", want, out)
				}
			}
		})
	}
}

func TestEveryEndOfAContainerIsReportedExactly(t *testing.T) {
	pod := startPod(t, PodConfig{})
	for _, test := range []struct {
		name   string
		args   []string
		signal syscall.Signal
		want   Exit
	}{
		{"success", []string{"exit", "0"}, 0, Exit{Code: 0}},
		{"an exit code", []string{"exit", "42"}, 0, Exit{Code: 42}},
		{"a signal that is handled", []string{"wait"}, syscall.SIGUSR1, Exit{Code: 7}},
		{"a graceful end", []string{"wait"}, syscall.SIGTERM, Exit{Code: 0}},
		{"a kill", []string{"wait"}, syscall.SIGKILL, Exit{Code: 137, Signal: syscall.SIGKILL}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, out := startContainer(t, pod, ContainerConfig{}, test.args...)
			if test.signal != 0 {
				out.await(t, "ready")
				if err := c.Signal(test.signal); err != nil {
					t.Fatal(err)
				}
			}
			exit, err := c.Wait(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			if exit.Code != test.want.Code || exit.Signal != test.want.Signal {
				t.Errorf("the exit was %+v, not %+v", exit, test.want)
			}
			if exit.StartedAt.IsZero() || exit.FinishedAt.Before(exit.StartedAt) {
				t.Errorf("it ran from %v to %v", exit.StartedAt, exit.FinishedAt)
			}
			if err := c.Signal(syscall.SIGTERM); !errors.Is(err, ErrNotRunning) {
				t.Errorf("a signal to an ended container: %v", err)
			}
		})
	}
}

func TestStopKillsAContainerThatIgnoresTheFirstSignal(t *testing.T) {
	c, out := startContainer(t, startPod(t, PodConfig{}), ContainerConfig{}, "ignore")
	out.await(t, "ready")
	exit, err := c.Stop(testContext(t), 50*time.Millisecond)
	if err != nil || exit.Signal != syscall.SIGKILL {
		t.Errorf("the exit was %+v, error %v", exit, err)
	}
}

func TestAContainerEndsWithItsFirstProcessWhateverThatLeft(t *testing.T) {
	exit, _ := run(t, startPod(t, PodConfig{}), ContainerConfig{}, "leave")
	if exit.Code != 0 || exit.FinishedAt.Sub(exit.StartedAt) > testTime/2 {
		t.Errorf("the exit was %+v", exit)
	}
}

func TestWhatCannotBeStartedSaysWhy(t *testing.T) {
	pod := startPod(t, PodConfig{})
	for _, test := range []struct {
		name   string
		config ContainerConfig
		want   string
	}{
		{"no command", ContainerConfig{Root: imageRoot}, "it has no command"},
		{"a command that is nowhere", ContainerConfig{Root: imageRoot, Args: []string{"nonesuch"}}, `exec: "nonesuch": executable file not found in $PATH`},
		{"a path that is nowhere", ContainerConfig{Root: imageRoot, Args: []string{"/nonesuch"}}, "no such file or directory"},
		{"a file that is no program", ContainerConfig{Root: imageRoot, Args: []string{"/greeting"}}, "permission denied"},
		{"no image", ContainerConfig{Root: "/nonesuch", Args: []string{"x"}}, "opening the image: open /nonesuch"},
		{
			"a volume that is not there",
			ContainerConfig{Root: imageRoot, Args: []string{"x"}, Mounts: []Mount{{Source: "/nonesuch", Target: "/v"}}},
			"mounting /v: stat /nonesuch: no such file or directory",
		},
		{
			"a relative target",
			ContainerConfig{Root: imageRoot, Args: []string{"x"}, Mounts: []Mount{{Tmpfs: true, Target: "v"}}},
			`"v" is not an absolute path`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.config.Name = "c"
			_, err := pod.StartContainer(testContext(t), test.config)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "container c of pod test/pod") {
				t.Errorf("the error is %v, not %q", err, test.want)
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(pod.config.Dir, "containers", "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestANameIsUsedByOneRunningContainerAtATime(t *testing.T) {
	pod := startPod(t, PodConfig{})
	c, out := startContainer(t, pod, ContainerConfig{}, "wait")
	out.await(t, "ready")
	_, err := pod.StartContainer(testContext(t), ContainerConfig{Name: "main", Root: imageRoot, Args: []string{"x"}})
	if err == nil || !strings.Contains(err.Error(), "a container of this name is running") {
		t.Errorf("the error is %v", err)
	}
	if _, err := c.Stop(testContext(t), testTime); err != nil {
		t.Fatal(err)
	}
	run(t, pod, ContainerConfig{}, "exit", "0")
}

func TestStopLeavesNothingOfThePod(t *testing.T) {
	dir := t.TempDir()
	pod := startPod(t, PodConfig{Dir: filepath.Join(dir, "pod")})
	_, out := startContainer(t, pod, ContainerConfig{}, "ignore")
	out.await(t, "ready")
	pid := pod.shim.process.Pid
	if err := pod.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the shim: %v", err)
	}
	if _, err := pod.StartContainer(testContext(t), ContainerConfig{Name: "late", Root: imageRoot, Args: []string{"x"}}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a container in a stopped pod: %v", err)
	}
	if err := pod.Stop(testContext(t)); err != nil {
		t.Errorf("stopping again: %v", err)
	}
}

func TestADeadShimEndsThePod(t *testing.T) {
	pod := startPod(t, PodConfig{})
	c, out := startContainer(t, pod, ContainerConfig{}, "ignore")
	out.await(t, "ready")
	if err := pod.shim.process.Kill(); err != nil {
		t.Fatal(err)
	}
	exit, err := c.Wait(testContext(t))
	if !errors.Is(err, ErrNotRunning) || exit.Signal != syscall.SIGKILL {
		t.Errorf("the container's end: %+v %v", exit, err)
	}
	<-pod.Done()
	if _, err := pod.Dial(testContext(t), "tcp", "127.0.0.1:80"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("dialling into a dead pod: %v", err)
	}
}

func TestAStartThatIsGivenUpLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Start(ctx, PodConfig{Name: "test/pod", Dir: filepath.Join(dir, "pod"), IP: netip.MustParseAddr("10.244.0.7")})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

func TestNothingOutlivesAStarterThatIsKilled(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	mounts, err := json.Marshal(libraries(t))
	if err != nil {
		t.Fatal(err)
	}
	out := newBuffer()
	starter := exec.Command("/proc/self/exe", "starter", dir)
	starter.Env = append(os.Environ(), "IMAGE="+imageRoot, "MOUNTS="+string(mounts))
	starter.Stdout, starter.Stderr = out, out
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"shim ", "holding 0", "holding 1", "holding 2"} {
		out.await(t, text)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Fatalf("the container does not hold the lock: %v", err)
	}
	if err := starter.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = starter.Wait()
	released := make(chan error, 1)
	go func() { released <- syscall.Flock(int(lock.Fd()), syscall.LOCK_EX) }()
	select {
	case err := <-released:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testTime):
		t.Error("something still holds the container's lock")
	}
	if err := removeAll(filepath.Join(dir, "pod")); err != nil {
		t.Error(err)
	}
}

func TestPodsAndContainersSideBySide(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		pod := startPod(t, PodConfig{})
		for _, name := range []string{"a", "b", "c"} {
			wg.Go(func() {
				c, err := pod.StartContainer(testContext(t), ContainerConfig{
					Name: name, Root: imageRoot, Args: []string{"/bin/" + program, "exit", "5"}, Mounts: libraries(t),
				})
				if err != nil {
					t.Error(err)
					return
				}
				if exit, err := c.Wait(testContext(t)); err != nil || exit.Code != 5 {
					t.Errorf("the exit was %+v, error %v", exit, err)
				}
			})
		}
	}
	wg.Wait()
}

func TestStoppingWhileContainersStart(t *testing.T) {
	node := startPod(t, PodConfig{Name: "node"})
	for _, share := range []*Pod{nil, node} {
		for range 5 {
			pod := startPod(t, PodConfig{ShareNetwork: share})
			var wg sync.WaitGroup
			for _, name := range []string{"a", "b", "c"} {
				wg.Go(func() {
					c, err := pod.StartContainer(testContext(t), ContainerConfig{
						Name: name, Root: imageRoot, Args: []string{"/bin/" + program, "ignore"}, Mounts: libraries(t),
					})
					if err == nil {
						_, err = c.Wait(testContext(t))
					}
					if err != nil && !errors.Is(err, ErrNotRunning) {
						t.Error(err)
					}
				})
			}
			if err := pod.Stop(testContext(t)); err != nil {
				t.Error(err)
			}
			wg.Wait()
		}
	}
}

func TestAContainerThatIsGivenUpIsKilled(t *testing.T) {
	pod := startPod(t, PodConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := pod.StartContainer(ctx, ContainerConfig{Name: "c", Root: imageRoot, Args: []string{"/bin/" + program, "ignore"}, Mounts: libraries(t)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(pod.config.Dir, "containers", "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestPodsLeaveNoDescriptorsOpen(t *testing.T) {
	once := func() {
		pod := startPod(t, PodConfig{Outbound: (&recorder{}).dial})
		c, out := startContainer(t, pod, ContainerConfig{LogPath: filepath.Join(t.TempDir(), "log")}, "serve", ":8080")
		out.await(t, "ready")
		conn, err := pod.Dial(testContext(t), "tcp", "127.0.0.1:8080")
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if _, err := c.Exec(testContext(t), []string{program, "copy"}, strings.NewReader("x"), out, out); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Exec(testContext(t), []string{"nonesuch"}, nil, nil, nil); err == nil {
			t.Fatal("a command that is nowhere ran")
		}
		run(t, pod, ContainerConfig{Name: "fetch"}, "fetch", "http://192.0.2.7")
		if err := pod.Stop(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	once()
	before := open()
	for range 5 {
		once()
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors are open, and %d were before", after, before)
	}
}

func BenchmarkPodStart(b *testing.B) {
	for b.Loop() {
		dir := filepath.Join(b.TempDir(), "pod")
		pod, err := Start(context.Background(), PodConfig{Name: "test/pod", Dir: dir, IP: netip.MustParseAddr("10.244.0.7")})
		if err != nil {
			b.Fatal(err)
		}
		if _, out := run(b, pod, ContainerConfig{}, "print", "a", "b"); !strings.Contains(out, "a") {
			b.Fatal(out)
		}
		if err := pod.Stop(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
