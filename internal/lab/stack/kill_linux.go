// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// ErrNotKilled says that an apply ended without the word that was waited for.
var ErrNotKilled = errors.New("the provider was not killed: what was waited for did not happen")

// ApplyKilling applies the configuration and ends the provider with SIGKILL when
// a line of its log matches word, as a runner that is lost does. It answers nil
// when the provider was killed and the CLI noticed, and [ErrNotKilled] when the
// apply came to its end before.
func (s *Stack) ApplyKilling(ctx context.Context, word *regexp.Regexp, variables ...string) error {
	log, err := s.log()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	killed := make(chan error, 1)
	go func() { killed <- s.killAt(ctx, log, word) }()
	err = s.Apply(ctx, variables...)
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
		<-killed //nolint:errcheck // it ends with the context, and the answer says that none was killed
		return errors.Join(ErrNotKilled, err)
	}
}

func (s *Stack) killAt(ctx context.Context, log string, word *regexp.Regexp) error {
	if err := lines(ctx, log, word.MatchString); err != nil {
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
		if err == nil && strings.Contains(string(environment), "TF_CLI_CONFIG_FILE="+filepath.Join(s.dir, ConfigurationFile)) && strings.Contains(string(environment), "TF_PLUGIN_MAGIC_COOKIE=") {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
