// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// logOptions are those of core/v1 PodLogOptions.
type logOptions struct {
	follow, previous, timestamps bool
	tail, limit                  int64 // -1 means all
	since                        time.Time
}

// followInterval is how often a followed log is looked at.
const followInterval = 200 * time.Millisecond

// readLog copies a log in the format of the CRI ("<time> <stream> <tag> <text>")
// to out. Followed, it goes on until growing answers false or ctx ends.
func readLog(ctx context.Context, path string, o logOptions, out io.Writer, growing func() bool) error {
	lines, end, err := logLines(path)
	if err != nil {
		return err
	}
	if o.tail >= 0 && int64(len(lines)) > o.tail {
		lines = lines[int64(len(lines))-o.tail:]
	}
	limited := &limitedWriter{w: out, left: o.limit}
	for _, line := range lines {
		if err := writeLogLine(limited, line, o); err != nil {
			return ignoreLimit(err)
		}
	}
	if !o.follow {
		return nil
	}
	return ignoreLimit(followLog(ctx, path, end, o, limited, growing))
}

// logLines answers all whole lines of the log, the rotated part first, and how
// far into the current file they reach.
func logLines(path string) (lines [][]byte, end int64, err error) {
	var all []byte
	for _, name := range []string{path + ".1", path} {
		data, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, 0, err
		}
		data = data[:bytes.LastIndexByte(data, '\n')+1]
		end = int64(len(data))
		all = append(all, data...)
	}
	return slices.Collect(bytes.Lines(all)), end, nil
}

// followLog copies what is added to the log behind the given place.
func followLog(ctx context.Context, path string, from int64, o logOptions, out io.Writer, growing func() bool) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { file.Close() }()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return err
	}
	reader := bufio.NewReader(file)
	var part []byte
	for {
		last := !growing()
		for {
			text, err := reader.ReadBytes('\n')
			part = append(part, text...)
			if err != nil {
				break
			}
			if err := writeLogLine(out, part, o); err != nil {
				return err
			}
			part = nil
		}
		if last || !sleep(ctx, followInterval) {
			return nil
		}
		if rotated(file, path) {
			fresh, err := os.Open(path)
			if err != nil {
				return err
			}
			file.Close()
			file, reader = fresh, bufio.NewReader(fresh)
		}
	}
}

func rotated(file *os.File, path string) bool {
	have, err := file.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && !os.SameFile(have, now)
}

// writeLogLine writes the text of a line; a partial one (tag P) without its end.
func writeLogLine(out io.Writer, line []byte, o logOptions) error {
	parts := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 4)
	if len(parts) < 4 {
		return nil // a torn line
	}
	if !o.since.IsZero() {
		if at, err := time.Parse(time.RFC3339Nano, string(parts[0])); err == nil && at.Before(o.since) {
			return nil
		}
	}
	var text []byte
	if o.timestamps {
		text = append(append(text, parts[0]...), ' ')
	}
	text = append(text, parts[3]...)
	if !bytes.HasPrefix(parts[2], []byte("P")) {
		text = append(text, '\n')
	}
	_, err := out.Write(text)
	return err
}

var errLimit = errors.New("limit reached")

func ignoreLimit(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// limitedWriter ends with errLimit after so many bytes; -1 means never.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.left < 0 {
		return l.w.Write(p)
	}
	cut := p[:min(int64(len(p)), l.left)]
	n, err := l.w.Write(cut)
	l.left -= int64(n)
	if err == nil && l.left == 0 {
		err = errLimit
	}
	return n, err
}

// lastLines answers the end of a log for a termination message; "" when there is
// none.
func lastLines(path string, lines int64, most int) string {
	var out strings.Builder
	if err := readLog(context.Background(), path, logOptions{tail: lines, limit: -1}, &out, nil); err != nil {
		return ""
	}
	text := out.String()
	return text[max(0, len(text)-most):]
}
