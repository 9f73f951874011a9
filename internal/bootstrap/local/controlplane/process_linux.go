// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a running program whose output goes to a log file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	// err is how it ended; valid once done is closed.
	err error
}

// spawn runs f on one operating system thread that lives as long as this
// process. Pdeathsig fires when the *thread* that started a child ends (see
// prctl(2), PR_SET_PDEATHSIG), and Go ends the thread of a goroutine that exits
// while locked to it.
var spawn = sync.OnceValue(func() func(func() error) error {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return func(f func() error) error {
		result := make(chan error)
		work <- func() { result <- f() }
		return <-result
	}
})

// startProcess starts a program that is killed when this process ends, however
// it ends.
func startProcess(name, log, dir, binary string, args []string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer file.Close()
	cmd := exec.Command(binary, args...) //nolint:gosec // the programs of the caller's images
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = file, file
	// Nothing of the caller's environment: it may hold secrets and proxies.
	cmd.Env = []string{"HOME=" + dir, "PATH=/usr/bin:/bin", "TMPDIR=" + os.TempDir()}
	// A process group of its own: Ctrl-C at a terminal is for the supervisor,
	// which stops its processes in the right order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := spawn()(cmd.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &process{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop ends the process: SIGTERM, then SIGKILL when it is still there after
// patience or when ctx ends.
func (p *process) stop(ctx context.Context, patience time.Duration) error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// ended answers the error of a process that was not asked to end.
func (p *process) ended() error {
	how := "it ended by itself"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s is gone (%s); its log %s ends with:\n%s", p.name, how, p.log, tail(p.log, logLines))
}

// logLines is how many of a log's last lines an error quotes.
const logLines = 12

// tail answers the last lines of a log, or why it cannot: those before the
// stacks, where the program has ended by a panic, since they tell the cause.
func tail(path string, lines int) string {
	file, err := os.Open(path)
	if err != nil {
		return "(" + err.Error() + ")"
	}
	defer file.Close()
	const most = 16 << 10
	info, err := file.Stat()
	if err != nil {
		return "(" + err.Error() + ")"
	}
	start := max(0, info.Size()-most)
	data := make([]byte, info.Size()-start)
	n, _ := file.ReadAt(data, start) // a log that shrinks meanwhile gives less
	all := strings.Split(strings.TrimRight(string(data[:n]), "\n"), "\n")
	if i := slices.IndexFunc(all, func(line string) bool { return strings.HasPrefix(line, "goroutine ") }); i > 0 {
		all = all[:i]
	}
	return strings.TrimSpace(strings.Join(all[max(0, len(all)-lines):], "\n"))
}
