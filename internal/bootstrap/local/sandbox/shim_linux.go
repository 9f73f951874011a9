// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// shimConfig is what the starter tells a shim on descriptor 4.
type shimConfig struct {
	IP netip.Addr
}

// capabilities are all those of this kernel. A container's init gets them in its
// own user namespace to build the container; they are raised as ambient ones,
// since exec takes others from a user other than 0, and under no_new_privs even
// user 0 only keeps what it had.
var capabilities = sync.OnceValues(func() ([]uintptr, error) {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return nil, err
	}
	last, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("reading /proc/sys/kernel/cap_last_cap: %w", err)
	}
	var all []uintptr
	for c := range last + 1 {
		all = append(all, uintptr(c))
	}
	return all, nil
})

// shimServer is the shim's side of the socket.
type shimServer struct {
	wire     *wire
	mu       sync.Mutex
	children map[uint64]*child
}

// child is a running process of the shim; pidfd stays valid when its number is
// used again.
type child struct {
	process *os.Process
	pidfd   int
}

// shimMain is the life of a shim: it serves the starter on descriptor 3 until
// that one is gone, and everything in its PID namespace goes with it.
func shimMain() error {
	w, err := newWire(os.NewFile(3, "starter"))
	if err != nil {
		return err
	}
	var config shimConfig
	f := os.NewFile(4, "configuration")
	if err := json.NewDecoder(f).Decode(&config); err != nil {
		return fmt.Errorf("reading the pod's configuration: %w", err)
	}
	f.Close()
	sockets, err := setUpNetwork(config.IP)
	ready := message{Op: opReady, ID: readyID}
	if err != nil {
		ready = failure(err)
		ready.ID = readyID
	}
	err = w.send(ready, sockets...)
	closeAll(sockets)
	if err != nil {
		return err
	}
	s := &shimServer{wire: w, children: map[uint64]*child{}}
	for {
		m, files, err := w.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		go s.serve(m, files)
	}
}

// serve answers one request.
func (s *shimServer) serve(m message, files []*os.File) {
	answer, passed, after := s.do(m, files)
	answer.ID = m.ID
	// An error here means that the starter is gone, which receive notices too.
	_ = s.wire.send(answer, passed...)
	closeAll(passed)
	if after != nil {
		after()
	}
}

// do carries out a request. after, if any, is called when the answer is out.
func (s *shimServer) do(m message, files []*os.File) (answer message, passed []*os.File, after func()) {
	defer closeAll(files)
	var err error
	switch m.Op {
	case opDial:
		passed, err = s.dial(m)
	case opListen:
		passed, err = s.listen(m)
	case opStart:
		after, err = s.start(m, files)
	case opExec:
		after, err = s.exec(m, files)
	case opSignal:
		err = s.signal(m)
	default:
		err = fmt.Errorf("the shim has no operation %q", m.Op)
	}
	if err != nil {
		return failure(err), nil, nil
	}
	return message{}, passed, after
}

func (s *shimServer) dial(m message) ([]*os.File, error) {
	d := net.Dialer{Timeout: m.Timeout}
	c, err := d.DialContext(context.Background(), m.Network, m.Address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("cannot dial network %q in a pod", m.Network)
	}
	f, err := t.File()
	return []*os.File{f}, err
}

func (s *shimServer) listen(m message) ([]*os.File, error) {
	l, err := net.Listen(m.Network, m.Address)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	t, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("cannot listen on network %q in a pod", m.Network)
	}
	f, err := t.File()
	return []*os.File{f}, err
}

func (s *shimServer) signal(m message) error {
	s.mu.Lock()
	c := s.children[m.Process]
	s.mu.Unlock()
	if c == nil {
		return ErrNotRunning
	}
	err := c.process.Signal(syscall.Signal(m.Signal))
	if errors.Is(err, os.ErrProcessDone) {
		return ErrNotRunning
	}
	return err
}

// start forks a container's init: configuration, stdout and stderr come along.
func (s *shimServer) start(m message, files []*os.File) (func(), error) {
	if len(files) != 3 {
		return nil, fmt.Errorf("starting a container takes 3 files, not %d", len(files))
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return s.fork(m.Process, files[0], []*os.File{null, files[1], files[2]},
		syscall.CLONE_NEWUSER|syscall.CLONE_NEWNS|syscall.CLONE_NEWPID|syscall.CLONE_NEWUTS|syscall.CLONE_NEWIPC)
}

// exec forks a command into a running container: configuration, stdin, stdout
// and stderr come along. A process with threads cannot enter a user namespace,
// so the command gets one of its own with the same user, beside the container's,
// and with it a mount namespace that gets a copy of the container's mounts. It
// begins with the host's root, since the program that becomes the command may
// need libraries from there. The other namespaces are entered by a thread that
// forks and ends.
func (s *shimServer) exec(m message, files []*os.File) (func(), error) {
	if len(files) != 4 {
		return nil, fmt.Errorf("executing a command takes 4 files, not %d", len(files))
	}
	var tree *os.File
	err := s.inContainer(m.Container, unix.CLONE_NEWNS, func() error {
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("copying the container's mounts: %w", err)
		}
		tree = os.NewFile(uintptr(fd), "mounts")
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	var after func()
	err = s.inContainer(m.Container, unix.CLONE_NEWPID|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC, func() error {
		var err error
		after, err = s.fork(m.Process, files[0], files[1:], unix.CLONE_NEWUSER|unix.CLONE_NEWNS, tree)
		return err
	})
	return after, err
}

// inContainer calls f on a thread of its own that is in the given namespaces of
// a container. The thread ends with it: it is of no other use.
func (s *shimServer) inContainer(container uint64, namespaces int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := s.enter(container, namespaces)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// enter moves the calling thread into namespaces of a container.
func (s *shimServer) enter(container uint64, namespaces int) error {
	// A mount namespace may only be entered with a root and working directory
	// that no other thread shares.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("preparing a thread for the container: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.children[container]
	if c == nil {
		return ErrNotRunning
	}
	err := unix.Setns(c.pidfd, namespaces)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EBADF) {
		return ErrNotRunning
	}
	if err != nil {
		return fmt.Errorf("entering the container's namespaces (Linux 5.8 or newer): %w", err)
	}
	return nil
}

// fork starts the init helper with the given standard streams and waits until
// it has executed the container's command. The function returned, to be called
// once the answer is out, reports the end of the process.
func (s *shimServer) fork(number uint64, config *os.File, streams []*os.File, flags uintptr, more ...*os.File) (func(), error) {
	all, err := capabilities()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	pidfd := -1
	p, err := os.StartProcess(selfExe, []string{initName}, &os.ProcAttr{
		Dir:   "/",
		Env:   helperEnvironment(),
		Files: slices.Concat(streams, []*os.File{config, w}, more),
		Sys: &syscall.SysProcAttr{
			Cloneflags:  flags,
			AmbientCaps: all,
			Setsid:      true,
			PidFD:       &pidfd,
		},
	})
	w.Close()
	if err != nil {
		return nil, fmt.Errorf("starting the container's init: %w", err)
	}
	c := &child{process: p, pidfd: pidfd}
	s.mu.Lock()
	s.children[number] = c
	s.mu.Unlock()
	text, err := io.ReadAll(io.LimitReader(r, maxMessage/4))
	if err == nil && len(text) > 0 {
		err = errors.New(string(text))
	}
	if err != nil {
		s.reap(number, c)
		return nil, err
	}
	return func() {
		status := s.reap(number, c)
		_ = s.wire.send(message{Op: opExit, Process: number, Status: status})
	}, nil
}

// reap waits for a child and forgets it.
func (s *shimServer) reap(number uint64, c *child) uint32 {
	var status syscall.WaitStatus
	if state, err := c.process.Wait(); err == nil {
		status, _ = state.Sys().(syscall.WaitStatus)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.children, number)
	if c.pidfd >= 0 {
		_ = unix.Close(c.pidfd)
	}
	return uint32(status)
}
