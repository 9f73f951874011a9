// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package stack

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// logFile is where the CLI writes the provider's log.
const logFile = "provider.log"

// progressLine matches a line of the provider's log that tells progress: the
// CLI's log has the message before the fields, of which phase is one.
var progressLine = regexp.MustCompile(`\[INFO\]\s+provider\.[^:]*: (.*?): (?:@|tf_|phase=|timestamp=).*\bphase=(\S+)`)

// log has the CLI write the provider's progress into a new file.
func (s *Stack) log() (string, error) {
	path := filepath.Join(s.dir, logFile)
	if err := os.RemoveAll(path); err != nil {
		return "", err
	}
	return path, errors.Join(s.cli.SetLogPath(path), s.cli.SetLogProvider("INFO"))
}

// Follow passes the progress of the provider on until ctx ends: the CLI itself
// says no more than that a resource is still being created.
func (s *Stack) Follow(ctx context.Context, report progress.Reporter) {
	path, err := s.log()
	if err != nil {
		report.Report(ctx, "log", "the provider's progress cannot be shown: "+err.Error())
		return
	}
	go func() {
		_ = lines(ctx, path, func(line string) bool {
			if found := progressLine.FindStringSubmatch(line); found != nil {
				report.Report(ctx, found[2], found[1])
			}
			return false
		})
	}()
}

// lines calls take for every line of a growing file, which may not be there yet,
// until it answers true or ctx ends.
func lines(ctx context.Context, path string, take func(line string) bool) error {
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
			part, err := reader.ReadString('\n')
			rest += part
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if take(rest) {
				return nil
			}
			rest = ""
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
