// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	defaultMaxLogSize = 10 << 20
	// maxLogLine is where a line is cut into parts with the tag P, as container
	// engines do it.
	maxLogLine = 16 << 10
)

// logFile is a container's log in the format of the CRI
// (kubernetes/design-proposals-archive, node/kubelet-cri-logging.md).
type logFile struct {
	path string
	max  int64

	mu     sync.Mutex
	file   *os.File
	size   int64
	closed bool
}

func openLog(path string, maxSize int64) (*logFile, error) {
	if maxSize <= 0 {
		maxSize = defaultMaxLogSize
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("making the log's directory: %w", err)
	}
	l := &logFile{path: path, max: maxSize}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("opening the log: %w", err)
	}
	l.file, l.size = f, info.Size()
	return nil
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// line writes a line, or with the tag P a part of one. What cannot be written
// (a full disk) is lost: the container goes on.
func (l *logFile) line(stream, tag string, text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.size >= l.max || l.file == nil {
		l.rotate()
	}
	if l.file == nil {
		return
	}
	entry := fmt.Appendf(nil, "%s %s %s %s\n", time.Now().UTC().Format(time.RFC3339Nano), stream, tag, text)
	n, _ := l.file.Write(entry)
	l.size += int64(n)
}

// rotate begins a new file.
func (l *logFile) rotate() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
	// Where this fails the old file grows on, or lines are lost until it does not.
	_ = os.Rename(l.path, l.path+".1")
	_ = l.open()
}

// logStream cuts one stream into lines.
type logStream struct {
	log  *logFile
	name string
	rest []byte
}

func (l *logFile) stream(name string) *logStream { return &logStream{log: l, name: name} }

// Write takes all of b; lines without an end wait for it.
func (s *logStream) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		room := maxLogLine - len(s.rest)
		end := bytes.IndexByte(b, '\n')
		switch {
		case end >= 0 && end <= room:
			s.emit("F", append(s.rest, b[:end]...))
			b = b[end+1:]
		case len(b) >= room && room > 0:
			s.emit("P", append(s.rest, b[:room]...))
			b = b[room:]
		default:
			s.rest = append(s.rest, b...)
			b = nil
		}
	}
	return n, nil
}

func (s *logStream) emit(tag string, text []byte) {
	s.log.line(s.name, tag, text)
	s.rest = s.rest[:0]
}

// flush writes what has no end of line.
func (s *logStream) flush() {
	if len(s.rest) > 0 {
		s.emit("F", s.rest)
	}
}
