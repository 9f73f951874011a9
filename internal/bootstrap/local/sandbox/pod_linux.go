// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// defaultNameserver is a link-local address that nothing answers: what is sent
// to it is redirected.
var defaultNameserver = netip.AddrFrom4([4]byte{169, 254, 1, 53})

// Pod is a running pod.
type Pod struct {
	config PodConfig
	shim   *shim
	// relay serves the network; nil where the pod shares another's.
	relay *relay

	mu         sync.Mutex
	containers map[string]*Container
	listeners  []net.Listener
	stopping   bool
	scratch    int

	done     chan struct{}
	stopOnce sync.Once
}

// Start makes the pod's namespaces and network; it has no containers yet.
// When ctx ends during the call nothing is left behind; afterwards ctx has no
// meaning for the pod.
func Start(ctx context.Context, config PodConfig) (*Pod, error) {
	p := &Pod{config: config, containers: map[string]*Container{}, done: make(chan struct{})}
	if p.config.Hostname == "" {
		p.config.Hostname = path.Base(config.Name)
	}
	if !p.config.Nameserver.IsValid() {
		p.config.Nameserver = defaultNameserver
	}
	if err := p.start(ctx); err != nil {
		return nil, fmt.Errorf("starting pod %s: %w", config.Name, err)
	}
	go p.watch()
	return p, nil
}

func (p *Pod) start(ctx context.Context) error {
	if p.config.Dir == "" {
		return errors.New("it has no directory")
	}
	if shared := p.config.ShareNetwork; shared != nil {
		p.shim = shared.shim
		p.config.IP = shared.config.IP
	} else if !p.config.IP.Is4() {
		return fmt.Errorf("its address %s is not an IPv4 address", p.config.IP)
	}
	if err := os.MkdirAll(filepath.Join(p.config.Dir, "etc"), 0o700); err != nil {
		return fmt.Errorf("making its directory: %w", err)
	}
	if err := p.writeEtc(); err != nil {
		return errors.Join(err, p.cleanUp())
	}
	if p.shim != nil {
		return nil
	}
	s, sockets, err := startShim(ctx, p.config.Name, p.config.IP)
	if err != nil {
		return errors.Join(explain(err), p.cleanUp())
	}
	p.shim = s
	if p.relay, err = newRelay(sockets, p.config.Outbound, p.config.DNS); err != nil {
		s.kill()
		<-s.done
		return errors.Join(err, p.cleanUp())
	}
	return nil
}

// explain adds to an error of the kernel what it usually means.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w (this system does not let an ordinary user have user namespaces)", err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w (user.max_user_namespaces or user.max_net_namespaces is used up)", err)
	}
	return err
}

// writeEtc writes the files of /etc that containers find.
func (p *Pod) writeEtc() error {
	var hosts strings.Builder
	fmt.Fprintf(&hosts, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n%s\t%s\n", p.config.IP, p.config.Hostname)
	for _, a := range p.config.HostAliases {
		fmt.Fprintf(&hosts, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	var resolv strings.Builder
	fmt.Fprintf(&resolv, "nameserver %s\n", p.config.Nameserver)
	if len(p.config.Search) > 0 {
		fmt.Fprintf(&resolv, "search %s\n", strings.Join(p.config.Search, " "))
	}
	if len(p.config.DNSOptions) > 0 {
		fmt.Fprintf(&resolv, "options %s\n", strings.Join(p.config.DNSOptions, " "))
	}
	for name, content := range map[string]string{
		"hosts": hosts.String(), "resolv.conf": resolv.String(), "hostname": p.config.Hostname + "\n",
	} {
		file := filepath.Join(p.config.Dir, "etc", name)
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			return fmt.Errorf("writing /etc/%s: %w", name, err)
		}
	}
	return nil
}

// watch ends the pod when its shim has ended.
func (p *Pod) watch() {
	select {
	case <-p.shim.done:
		p.finish()
	case <-p.done:
	}
}

// finish releases what the starter holds of a pod that has no process left.
func (p *Pod) finish() {
	p.stopOnce.Do(func() {
		p.mu.Lock()
		p.stopping = true
		listeners := p.listeners
		p.listeners = nil
		p.mu.Unlock()
		for _, l := range listeners {
			l.Close()
		}
		if p.relay != nil {
			p.relay.close()
		}
		close(p.done)
	})
	<-p.done
}

// Name is the configured name.
func (p *Pod) Name() string { return p.config.Name }

// IP is the pod's address (that of ShareNetwork's pod where it shares).
func (p *Pod) IP() netip.Addr { return p.config.IP }

// Done is closed when the pod has ended, by Stop or because its shim died.
func (p *Pod) Done() <-chan struct{} { return p.done }

// Dial opens a connection from inside the pod's network namespace; this is how
// others reach the pod: network "tcp", address "10.244.0.7:9443" or
// "127.0.0.1:8080". The connection is a *net.TCPConn. Errors keep the system's
// error number (ECONNREFUSED and the like).
func (p *Pod) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	m := message{Op: opDial, Network: network, Address: address, Timeout: dialTimeout}
	if deadline, ok := ctx.Deadline(); ok {
		m.Timeout = max(time.Until(deadline), time.Millisecond)
	}
	a, err := p.shim.call(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", p.config.Name, err)
	}
	defer closeAll(a.files)
	if len(a.files) != 1 {
		return nil, fmt.Errorf("pod %s: dialling %s: the shim sent no connection", p.config.Name, address)
	}
	return net.FileConn(a.files[0])
}

// Listen opens a TCP listener inside the pod's network namespace that is served
// by the caller, outside it. It is closed by Stop.
func (p *Pod) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	a, err := p.shim.call(ctx, message{Op: opListen, Network: network, Address: address})
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", p.config.Name, err)
	}
	defer closeAll(a.files)
	if len(a.files) != 1 {
		return nil, fmt.Errorf("pod %s: listening on %s: the shim sent no listener", p.config.Name, address)
	}
	l, err := net.FileListener(a.files[0])
	if err != nil {
		return nil, fmt.Errorf("pod %s: listening on %s: %w", p.config.Name, address, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		l.Close()
		return nil, fmt.Errorf("pod %s: %w", p.config.Name, ErrNotRunning)
	}
	p.listeners = append(p.listeners, l)
	return l, nil
}

// Stop kills all containers, waits until no process of the pod is left and
// removes what it wrote outside its volumes. It may be called again.
func (p *Pod) Stop(ctx context.Context) error {
	p.mu.Lock()
	p.stopping = true
	var containers []*Container
	for _, c := range p.containers {
		containers = append(containers, c)
	}
	p.mu.Unlock()
	if p.config.ShareNetwork == nil {
		p.shim.kill()
		if err := p.wait(ctx, p.shim.done); err != nil {
			return err
		}
	}
	for _, c := range containers {
		if err := p.wait(ctx, c.launched); err != nil {
			return err
		}
		if err := c.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, ErrNotRunning) {
			return fmt.Errorf("stopping pod %s: %w", p.config.Name, err)
		}
		if err := p.wait(ctx, c.done); err != nil {
			return err
		}
	}
	p.finish()
	if err := p.cleanUp(); err != nil {
		return fmt.Errorf("stopping pod %s: %w", p.config.Name, err)
	}
	return nil
}

func (p *Pod) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of pod %s: %w", p.config.Name, ctx.Err())
	}
}

// cleanUp removes the files that this package made for the pod, and its
// directory if nobody else put anything there.
func (p *Pod) cleanUp() error {
	for _, name := range []string{"etc", "containers"} {
		if err := removeAll(filepath.Join(p.config.Dir, name)); err != nil {
			return fmt.Errorf("removing the pod's files: %w", err)
		}
	}
	err := os.Remove(p.config.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return fmt.Errorf("removing the pod's directory: %w", err)
	}
	return nil
}

// removeAll removes a tree in which directories may have modes that keep their
// owner out, such as overlayfs' own.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, os.ErrPermission) {
		return err
	}
	walkErr := filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			if chmodErr := os.Chmod(file, 0o700); chmodErr != nil {
				return chmodErr
			}
		}
		return nil
	})
	return errors.Join(walkErr, os.RemoveAll(dir))
}
