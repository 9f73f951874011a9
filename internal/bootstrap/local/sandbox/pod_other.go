// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package sandbox

import (
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// ReexecMain returns at once unless the process was started as a helper of this
// package, in which case it does the helper's work and exits. It must be the
// first call of main and of TestMain.
func ReexecMain() {}

// Pod is a running pod.
type Pod struct{}

// Start makes the pod's namespaces and network; it has no containers yet.
// When ctx ends during the call nothing is left behind; afterwards ctx has no
// meaning for the pod.
func Start(context.Context, PodConfig) (*Pod, error) { return nil, ErrUnsupported }

// Name is the configured name.
func (p *Pod) Name() string { return "" }

// IP is the pod's address (that of ShareNetwork's pod where it shares).
func (p *Pod) IP() netip.Addr { return netip.Addr{} }

// Dial opens a connection from inside the pod's network namespace; this is how
// others reach the pod: network "tcp", address "10.244.0.7:9443" or
// "127.0.0.1:8080". The connection is a *net.TCPConn.
func (p *Pod) Dial(context.Context, string, string) (net.Conn, error) { return nil, ErrUnsupported }

// Listen opens a TCP listener inside the pod's network namespace that is served
// by the caller, outside it. It is closed by Stop.
func (p *Pod) Listen(context.Context, string, string) (net.Listener, error) {
	return nil, ErrUnsupported
}

// Done is closed when the pod has ended, by Stop or because its shim died.
func (p *Pod) Done() <-chan struct{} { return nil }

// Stop kills all containers, waits until no process of the pod is left and
// removes what it wrote outside its volumes. It may be called again.
func (p *Pod) Stop(context.Context) error { return ErrUnsupported }

// StartContainer starts a container and returns once its command was executed.
func (p *Pod) StartContainer(context.Context, ContainerConfig) (*Container, error) {
	return nil, ErrUnsupported
}

// Container is a container that was started.
type Container struct{}

// Name is the configured name.
func (c *Container) Name() string { return "" }

// Done is closed when the container has ended and its output is written.
func (c *Container) Done() <-chan struct{} { return nil }

// Wait waits for the end of the container and of its output. The error is that
// of ctx, or says that the pod's shim died and took the container along.
func (c *Container) Wait(context.Context) (Exit, error) { return Exit{}, ErrUnsupported }

// Signal sends a signal to the container's first process. As in any container
// that one does not die of a signal it has no handler for, SIGKILL excepted.
// ErrNotRunning says that it has ended.
func (c *Container) Signal(syscall.Signal) error { return ErrUnsupported }

// Stop sends SIGTERM, waits for the grace period, sends SIGKILL and waits.
func (c *Container) Stop(context.Context, time.Duration) (Exit, error) {
	return Exit{}, ErrUnsupported
}

// Exec runs a command in the container, with its environment, user and working
// directory, and returns its exit code (128 plus the signal's number if it died
// of one). When ctx ends the command is killed. Nil streams are /dev/null. Mounts
// that the container makes later are not seen by the command, nor its by the
// container.
func (c *Container) Exec(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	return 0, ErrUnsupported
}
