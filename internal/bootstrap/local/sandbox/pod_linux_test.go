// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"bytes"
	"context"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
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
		config.Name = "test/" + "pod"
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
