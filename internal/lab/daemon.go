// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// Files in a lab's folder.
const (
	lockFile   = "lock"
	statusFile = "status.json"
	logFile    = "lab.log"
)

// Status is what a running lab says of itself.
type Status struct {
	PID       int    `json:"pid"`
	Block     string `json:"block"`
	Proxmox   string `json:"proxmox"`
	Factory   string `json:"factory"`
	Variables string `json:"variables"`
}

// ErrNotRunning says that no lab runs in a folder.
var ErrNotRunning = errors.New("no lab runs here")

// Serve runs a lab in this process until ctx ends. Only one process at a time
// serves a folder.
func Serve(ctx context.Context, o Options) (err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("making the lab's folder: %w", err)
	}
	lock := flock.New(filepath.Join(o.Dir, lockFile))
	got, err := lock.TryLock()
	if err != nil {
		return fmt.Errorf("locking the lab's folder: %w", err)
	}
	if !got {
		return fmt.Errorf("a lab runs in %s already", o.Dir)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	l, err := Start(ctx, o)
	if err != nil {
		return err
	}
	status := filepath.Join(o.Dir, statusFile)
	defer func() { err = errors.Join(err, os.Remove(status), l.Close()) }()
	if err := l.announce(status); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// announce writes the variables and, as the sign that the lab is ready, the status.
func (l *Lab) announce(status string) error {
	variables := filepath.Join(l.Dir, VariablesFile)
	// The variables hold the administrator's token.
	if err := writeJSON(variables, l.Variables()); err != nil {
		return err
	}
	return writeJSON(status, Status{
		PID: os.Getpid(), Block: l.Block.String(), Proxmox: l.PVE.URL(), Factory: l.Factory.URL(), Variables: variables,
	})
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Find answers the status of the lab that runs in dir, or [ErrNotRunning].
func Find(dir string) (Status, error) {
	if held, err := locked(dir); err != nil || !held {
		return Status{}, errors.Join(err, ErrNotRunning)
	}
	data, err := os.ReadFile(filepath.Join(dir, statusFile))
	if err != nil {
		return Status{}, fmt.Errorf("the lab in %s is starting or stopping: %w", dir, err)
	}
	var st Status
	if err := json.Unmarshal(data, &st); err != nil {
		return Status{}, fmt.Errorf("reading the status of the lab in %s: %w", dir, err)
	}
	return st, nil
}

// locked says whether a process serves dir.
func locked(dir string) (bool, error) {
	path := filepath.Join(dir, lockFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	lock := flock.New(path)
	got, err := lock.TryLock()
	if err != nil {
		return false, fmt.Errorf("asking for the lock of the lab in %s: %w", dir, err)
	}
	if !got {
		return true, nil
	}
	return false, lock.Unlock()
}

// Detach starts a lab in a process of its own, by calling this program with
// arguments that make it call [Serve] on dir, and returns when it is ready. The
// program is copied first, since one that "go run" built goes away.
func Detach(ctx context.Context, dir string, arguments ...string) (Status, error) {
	if _, err := Find(dir); !errors.Is(err, ErrNotRunning) {
		return Status{}, errors.Join(fmt.Errorf("a lab runs in %s already", dir), err)
	}
	program, err := copyProgram(dir)
	if err != nil {
		return Status{}, fmt.Errorf("copying the lab's program: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return Status{}, fmt.Errorf("opening the lab's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	daemon := exec.Command(program, arguments...)
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := daemon.Start(); err != nil {
		return Status{}, fmt.Errorf("starting the lab's process: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	st, err := awaitReady(ctx, dir, ended)
	if err != nil {
		_ = daemon.Process.Kill()
		return Status{}, fmt.Errorf("%w; its log is %s:\n%s", err, log.Name(), tail(log.Name()))
	}
	return st, nil
}

const pollInterval = 50 * time.Millisecond

// awaitReady waits for the status or for the end of the process.
func awaitReady(ctx context.Context, dir string, ended <-chan error) (Status, error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case err := <-ended:
			return Status{}, fmt.Errorf("the lab's process ended: %w", errors.Join(err, ErrNotRunning))
		case <-ctx.Done():
			return Status{}, fmt.Errorf("waiting for the lab: %w", ctx.Err())
		}
		if st, err := Find(dir); err == nil {
			return st, nil
		}
	}
}

// copyProgram puts this program beside the lab.
func copyProgram(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	in, err := os.Open(self)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	target := filepath.Join(dir, "program")
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	out, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o700)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	return target, errors.Join(err, out.Close())
}

// tail answers the end of a file.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	const most = 4096
	return string(data[max(0, len(data)-most):])
}

// stopTime is how long a lab has to stop everything in it.
const stopTime = 90 * time.Second

// Stop ends the lab in dir, if one runs, and removes dir unless keep.
func Stop(ctx context.Context, dir string, keep bool) error {
	st, err := Find(dir)
	switch {
	case errors.Is(err, ErrNotRunning):
	case err != nil:
		return err
	default:
		if err := terminate(ctx, dir, st.PID); err != nil {
			return fmt.Errorf("stopping the lab in %s: %w", dir, err)
		}
	}
	if keep {
		return nil
	}
	return removeLab(dir)
}

// terminate asks the process to end, and takes it away when it does not.
func terminate(ctx context.Context, dir string, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	patience := time.NewTimer(stopTime)
	defer patience.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if held, err := locked(dir); err != nil || !held {
			return err
		}
		select {
		case <-tick.C:
		case <-patience.C:
			// The lock says that this is still the lab's process.
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// removeLab removes a lab's folder, and refuses a folder that holds no lab.
func removeLab(dir string) error {
	for _, mark := range []string{lockFile, savedFile} {
		if _, err := os.Stat(filepath.Join(dir, mark)); err == nil {
			return os.RemoveAll(dir)
		}
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("%s holds no lab, so it is not removed", dir)
}
