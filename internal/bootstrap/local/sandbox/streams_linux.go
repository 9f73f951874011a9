// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// sink takes what a process writes to one of its streams. flush is called once
// after the last byte.
type sink interface {
	io.Writer
	flush()
}

// writerSink is a sink over a plain writer. A writer that fails gets no more,
// and the process does not notice. The lock is that of both streams, since the
// writer may be the same.
type writerSink struct {
	w      io.Writer
	lock   *sync.Mutex
	failed bool
}

func writerSinks(stdout, stderr io.Writer) (outs, errs []sink) {
	lock := &sync.Mutex{}
	if stdout != nil {
		outs = append(outs, &writerSink{w: stdout, lock: lock})
	}
	if stderr != nil {
		errs = append(errs, &writerSink{w: stderr, lock: lock})
	}
	return outs, errs
}

func (s *writerSink) Write(b []byte) (int, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if !s.failed {
		_, err := s.w.Write(b)
		s.failed = err != nil
	}
	return len(b), nil
}

func (s *writerSink) flush() {}

// outputs are the two output streams of a process: the ends it writes to, and
// the pumps that read the other ends.
type outputs struct {
	stdout, stderr *os.File
	pumps          []pump
	after          func()
	wg             sync.WaitGroup
}

type pump struct {
	from *os.File
	to   []sink
}

// newOutputs opens the log and the pipes of a container.
func newOutputs(config ContainerConfig) (*outputs, error) {
	outs, errs := writerSinks(config.Stdout, config.Stderr)
	after := func() {}
	if config.LogPath != "" {
		log, err := openLog(config.LogPath, config.MaxLogSize)
		if err != nil {
			return nil, err
		}
		outs, errs = append(outs, log.stream("stdout")), append(errs, log.stream("stderr"))
		after = log.close
	}
	o, err := pipes(outs, errs)
	if err != nil {
		after()
		return nil, err
	}
	o.after = after
	return o, nil
}

// pipes makes the two pipes.
func pipes(outs, errs []sink) (*outputs, error) {
	o := &outputs{after: func() {}}
	for _, s := range []struct {
		end   **os.File
		sinks []sink
	}{{&o.stdout, outs}, {&o.stderr, errs}} {
		r, w, err := os.Pipe()
		if err != nil {
			o.abort()
			return nil, fmt.Errorf("making a pipe for the output: %w", err)
		}
		*s.end = w
		o.pumps = append(o.pumps, pump{from: r, to: s.sinks})
	}
	return o, nil
}

// begin is called when the process has its ends: ours are closed and reading
// begins.
func (o *outputs) begin() {
	o.stdout.Close()
	o.stderr.Close()
	for _, p := range o.pumps {
		o.wg.Go(p.run)
	}
}

func (p pump) run() {
	buf := make([]byte, 32<<10)
	for {
		n, err := p.from.Read(buf)
		for _, s := range p.to {
			// Sinks take everything.
			_, _ = s.Write(buf[:n])
		}
		if err != nil {
			break
		}
	}
	for _, s := range p.to {
		s.flush()
	}
}

// finish is called when the process has ended: it waits until its output is
// read, but not for what it left behind with its streams.
func (o *outputs) finish() {
	timer := time.AfterFunc(lingerTime, func() {
		for _, p := range o.pumps {
			p.from.Close()
		}
	})
	o.wg.Wait()
	timer.Stop()
	for _, p := range o.pumps {
		p.from.Close()
	}
	o.after()
}

// abort closes everything where no process was started.
func (o *outputs) abort() {
	for _, f := range []*os.File{o.stdout, o.stderr} {
		if f != nil {
			f.Close()
		}
	}
	for _, p := range o.pumps {
		p.from.Close()
	}
	o.after()
}

// input is the input stream of a process.
type input struct {
	theirs *os.File
	ours   *os.File
	from   io.Reader
}

// newStreams makes the streams of an exec'd command.
func newStreams(stdin io.Reader, stdout, stderr io.Writer) (*input, *outputs, error) {
	in := &input{from: stdin}
	var err error
	if stdin == nil {
		in.theirs, err = os.Open(os.DevNull)
	} else {
		in.theirs, in.ours, err = os.Pipe()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("making the input: %w", err)
	}
	out, err := pipes(writerSinks(stdout, stderr))
	if err != nil {
		in.close()
		return nil, nil, err
	}
	return in, out, nil
}

// begin copies the input, in the background: a reader that never ends outlives
// the command, as with os/exec.
func (in *input) begin() {
	in.theirs.Close()
	if in.ours == nil {
		return
	}
	go func() {
		// An error means that the command reads no more.
		_, _ = io.Copy(in.ours, in.from)
		in.ours.Close()
	}()
}

// close ends the input.
func (in *input) close() {
	in.theirs.Close()
	if in.ours != nil {
		in.ours.Close()
	}
}
