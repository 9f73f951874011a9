// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package stack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNotKilled says that an apply ended without the word that was waited for.
var ErrNotKilled = errors.New("the provider was not killed: what was waited for did not happen")

// ApplyKilling applies the configuration and ends the provider with SIGKILL when
// a line of its log matches word, as a runner that is lost does. It answers nil
// when the provider was killed and the CLI noticed, and [ErrNotKilled] when the
// apply came to its end before.
func (s *Stack) ApplyKilling(ctx context.Context, word *regexp.Regexp, variables ...string) error {
	log := filepath.Join(s.dir, "provider.log")
	if err := os.RemoveAll(log); err != nil {
		return err
	}
	if err := errors.Join(s.cli.SetLogPath(log), s.cli.SetLogProvider("INFO")); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	killed := make(chan error, 1)
	go func() { killed <- s.killAt(ctx, log, word) }()
	err := s.Apply(ctx, variables...)
	select {
	case killErr := <-killed:
		if killErr != nil {
			return killErr
		}
		if err == nil {
			return errors.New("the provider was killed, and the apply succeeded all the same")
		}
		return nil
	default:
		cancel()
		<-killed
		return errors.Join(ErrNotKilled, err)
	}
}

func (s *Stack) killAt(ctx context.Context, log string, word *regexp.Regexp) error {
	if err := waitForLine(ctx, log, word); err != nil {
		return err
	}
	pids, err := s.plugins()
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return errors.New("the log shows the word, but the provider's process is not found")
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("killing the provider (process %d): %w", pid, err)
		}
	}
	return nil
}

// waitForLine reads a growing file until a line matches.
func waitForLine(ctx context.Context, path string, word *regexp.Regexp) error {
	var file *os.File
	defer func() {
		if file != nil {
			_ = file.Close()
		}
	}()
	var reader *bufio.Reader
	rest := ""
	for {
		if file == nil {
			if opened, err := os.Open(path); err == nil {
				file, reader = opened, bufio.NewReader(opened)
			}
		}
		for file != nil {
			line, err := reader.ReadString('\n')
			rest += line
			if err == nil {
				if word.MatchString(rest) {
					return nil
				}
				rest = ""
				continue
			}
			if !errors.Is(err, io.EOF) {
				return err
			}
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// plugins finds the processes of this stack's provider that the CLI started:
// those with the plugin protocol's cookie and this working folder. Supervisors of
// ephemeral clusters, which run the same program, were started by the provider
// and have their own session.
func (s *Stack) plugins() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue
		}
		arguments := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		if len(arguments) != 1 || filepath.Base(arguments[0]) != program {
			continue
		}
		environment, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err == nil && strings.Contains(string(environment), "TF_CLI_CONFIG_FILE="+filepath.Join(s.dir, "cli.tfrc")) && strings.Contains(string(environment), "TF_PLUGIN_MAGIC_COOKIE=") {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
