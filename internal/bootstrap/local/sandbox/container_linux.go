// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// lingerTime is how long the output of a process is read on after its end, in
// case something it started keeps its streams.
const lingerTime = time.Second

// initConfig is what a container's init, or a command's, is told on its
// descriptor 3.
type initConfig struct {
	Hostname        string
	Root            string
	Scratch         string
	Etc             string
	Args            []string
	Env             []string
	Dir             string
	UID, GID        int
	ReadOnlyRoot    bool
	Privileged      bool
	NoNewPrivileges bool
	Mounts          []Mount
	// Join says that the process was forked into a running container.
	Join bool
}

// Container is a container that was started.
type Container struct {
	pod     *Pod
	config  ContainerConfig
	init    initConfig
	process uint64
	scratch string
	started time.Time

	// launched is closed when launch is over, done when the container is.
	launched chan struct{}
	done     chan struct{}
	exit     Exit
	err      error
}

// StartContainer starts a container and returns once its command was executed.
func (p *Pod) StartContainer(ctx context.Context, config ContainerConfig) (*Container, error) {
	c, err := p.startContainer(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("starting container %s of pod %s: %w", config.Name, p.config.Name, err)
	}
	return c, nil
}

func (p *Pod) startContainer(ctx context.Context, config ContainerConfig) (*Container, error) {
	if len(config.Args) == 0 {
		return nil, errors.New("it has no command")
	}
	c, err := p.reserve(config)
	if err != nil {
		return nil, err
	}
	err = c.launch()
	close(c.launched)
	if err != nil {
		p.release(c)
		close(c.done)
		return nil, errors.Join(err, removeAll(c.scratch))
	}
	if ctx.Err() != nil {
		// It fails where the container has ended by itself.
		_ = c.Signal(syscall.SIGKILL)
		<-c.done
		return nil, ctx.Err()
	}
	return c, nil
}

// reserve takes the container's name and makes its directory.
func (p *Pod) reserve(config ContainerConfig) (*Container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return nil, ErrNotRunning
	}
	if p.containers[config.Name] != nil {
		return nil, errors.New("a container of this name is running")
	}
	p.scratch++
	scratch := filepath.Join(p.config.Dir, "containers", strconv.Itoa(p.scratch))
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.MkdirAll(filepath.Join(scratch, name), 0o755); err != nil {
			return nil, fmt.Errorf("making its directory: %w", err)
		}
	}
	c := &Container{
		pod: p, config: config, scratch: scratch, launched: make(chan struct{}), done: make(chan struct{}),
		init: initConfig{
			Hostname: p.config.Hostname, Root: config.Root, Scratch: scratch,
			Etc:  filepath.Join(p.config.Dir, "etc"),
			Args: config.Args, Env: config.Env, Dir: config.Dir, UID: config.UID, GID: config.GID,
			ReadOnlyRoot: config.ReadOnlyRoot, Privileged: config.Privileged,
			NoNewPrivileges: config.NoNewPrivileges, Mounts: config.Mounts,
		},
	}
	p.containers[config.Name] = c
	return c, nil
}

func (p *Pod) release(c *Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.containers[c.config.Name] == c {
		delete(p.containers, c.config.Name)
	}
}

// launch has the shim start the container's init and follows it.
//
// The context of the caller has no part in it: an answer that nobody awaits
// would leave a container running.
func (c *Container) launch() error {
	out, err := newOutputs(c.config)
	if err != nil {
		return err
	}
	config, err := memoryFile(c.init)
	if err != nil {
		out.abort()
		return err
	}
	defer config.Close()
	shim := c.pod.shim
	process, exit := shim.expectExit()
	c.process = process
	m := message{Op: opStart, Process: c.process}
	if _, err := shim.call(context.Background(), m, config, out.stdout, out.stderr); err != nil {
		shim.forgetExit(c.process)
		out.abort()
		return err
	}
	c.started = time.Now()
	out.begin()
	go c.follow(exit, out)
	return nil
}

// follow waits for the end of the container.
func (c *Container) follow(exit <-chan uint32, out *outputs) {
	shim := c.pod.shim
	var err error
	select {
	case status := <-exit:
		c.exit = exitOf(syscall.WaitStatus(status))
	case <-shim.done:
		select {
		case status := <-exit:
			c.exit = exitOf(syscall.WaitStatus(status))
		default:
			c.exit = exitOf(syscall.WaitStatus(syscall.SIGKILL))
			err = shim.gone()
		}
	}
	c.exit.StartedAt, c.exit.FinishedAt = c.started, time.Now()
	out.finish()
	c.err = errors.Join(err, removeAll(c.scratch))
	c.pod.release(c)
	close(c.done)
}

func exitOf(status syscall.WaitStatus) Exit {
	if status.Signaled() {
		return Exit{Code: 128 + int(status.Signal()), Signal: status.Signal()}
	}
	return Exit{Code: status.ExitStatus()}
}

// Name is the configured name.
func (c *Container) Name() string { return c.config.Name }

// Done is closed when the container has ended and its output is written.
func (c *Container) Done() <-chan struct{} { return c.done }

// Wait waits for the end of the container and of its output. The error is that
// of ctx, or says that the pod's shim died and took the container along (Exit
// then is that of a SIGKILL).
func (c *Container) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-c.done:
		return c.exit, c.err
	case <-ctx.Done():
		return Exit{}, fmt.Errorf("waiting for the end of container %s of pod %s: %w", c.config.Name, c.pod.config.Name, ctx.Err())
	}
}

// Signal sends a signal to the container's first process. As in any container
// that one does not die of a signal it has no handler for, SIGKILL excepted.
// ErrNotRunning says that it has ended.
func (c *Container) Signal(sig syscall.Signal) error {
	return c.pod.shim.signal(context.Background(), c.process, sig)
}

func (s *shim) signal(ctx context.Context, process uint64, sig syscall.Signal) error {
	_, err := s.call(ctx, message{Op: opSignal, Process: process, Signal: int(sig)})
	return err
}

// Stop sends SIGTERM, waits for the grace period, sends SIGKILL and waits.
func (c *Container) Stop(ctx context.Context, grace time.Duration) (Exit, error) {
	if err := c.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, ErrNotRunning) {
		return Exit{}, err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
		return c.exit, c.err
	case <-ctx.Done():
	case <-timer.C:
	}
	if err := c.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, ErrNotRunning) {
		return Exit{}, err
	}
	return c.Wait(ctx)
}

// Exec runs a command in the container, with its environment, user and working
// directory, and returns its exit code (128 plus the signal's number if it died
// of one). When ctx ends the command is killed. Nil streams are /dev/null. Mounts
// that the container makes later are not seen by the command, nor its by the
// container.
func (c *Container) Exec(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	code, err := c.exec(ctx, argv, stdin, stdout, stderr)
	if err != nil {
		return 0, fmt.Errorf("executing a command in container %s of pod %s: %w", c.config.Name, c.pod.config.Name, err)
	}
	return code, nil
}

func (c *Container) exec(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	if len(argv) == 0 {
		return 0, errors.New("it is empty")
	}
	in, out, err := newStreams(stdin, stdout, stderr)
	if err != nil {
		return 0, err
	}
	defer in.close()
	told := c.init
	told.Args, told.Mounts, told.Join = argv, nil, true
	config, err := memoryFile(told)
	if err != nil {
		out.abort()
		return 0, err
	}
	defer config.Close()
	shim := c.pod.shim
	process, exit := shim.expectExit()
	defer shim.forgetExit(process)
	m := message{Op: opExec, Process: process, Container: c.process}
	// Without ctx: an answer that nobody awaits would leave a command running.
	if _, err := shim.call(context.WithoutCancel(ctx), m, config, in.theirs, out.stdout, out.stderr); err != nil {
		out.abort()
		return 0, err
	}
	in.begin()
	out.begin()
	defer out.finish()
	select {
	case status := <-exit:
		return exitOf(syscall.WaitStatus(status)).Code, nil
	case <-shim.done:
		return 0, shim.gone()
	case <-ctx.Done():
		// It fails where the command has ended meanwhile.
		_ = shim.signal(context.WithoutCancel(ctx), process, syscall.SIGKILL)
		return 0, ctx.Err()
	}
}
