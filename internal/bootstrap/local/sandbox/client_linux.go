// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
)

// readyID is the number of the request that every shim answers unasked.
const readyID = 1

// answer is what a request comes to.
type answer struct {
	message message
	files   []*os.File
}

// shim is the starter's side of a running shim.
type shim struct {
	name    string
	wire    *wire
	process *os.Process
	stderr  tail

	mu      sync.Mutex
	last    uint64
	pending map[uint64]chan answer
	exits   map[uint64]chan uint32

	// done is closed when no process of the pod is left.
	done chan struct{}
}

// startShim starts a shim and returns it with the sockets of its network.
func startShim(ctx context.Context, name string, ip netip.Addr) (*shim, []*os.File, error) {
	ours, theirs, err := wirePair()
	if err != nil {
		return nil, nil, err
	}
	w, err := newWire(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	first := make(chan answer, 1)
	s := &shim{
		name: name, wire: w, last: readyID,
		pending: map[uint64]chan answer{readyID: first},
		exits:   map[uint64]chan uint32{},
		done:    make(chan struct{}),
	}
	err = s.launch(theirs, ip)
	// From here on only the shim has it, and its end shows on ours.
	theirs.Close()
	if err != nil {
		w.close()
		return nil, nil, err
	}
	ready, err := s.await(ctx, readyID, first)
	if err == nil {
		err = ready.message.failed()
	}
	if err != nil {
		closeAll(ready.files)
		s.kill()
		<-s.done
		return nil, nil, fmt.Errorf("setting up the pod's network: %w", err)
	}
	return s, ready.files, nil
}

// launch forks the shim and begins to listen to it.
func (s *shim) launch(theirs *os.File, ip netip.Addr) error {
	config, err := memoryFile(shimConfig{IP: ip})
	if err != nil {
		return err
	}
	defer config.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	s.process, err = spawnShim(s.name, w, theirs, config)
	w.Close()
	if err != nil {
		r.Close()
		return fmt.Errorf("starting the pod's shim in new user, network and PID namespaces: %w", err)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		defer r.Close()
		s.stderr.readFrom(r)
	}()
	go s.listen(drained)
	return nil
}

// listen takes the shim's answers and events until it is gone.
func (s *shim) listen(drained <-chan struct{}) {
	for {
		m, files, err := s.wire.receive()
		if err != nil {
			break
		}
		s.mu.Lock()
		if m.Op == opExit {
			if c := s.exits[m.Process]; c != nil {
				c <- m.Status
				delete(s.exits, m.Process)
			}
		} else if c := s.pending[m.ID]; c != nil {
			delete(s.pending, m.ID)
			c <- answer{m, files}
			files = nil
		}
		s.mu.Unlock()
		closeAll(files)
	}
	s.kill()
	// An error means that somebody else has waited for it; it is gone all the same.
	_, _ = s.process.Wait()
	<-drained
	s.wire.close()
	close(s.done)
}

func (s *shim) kill() { _ = s.process.Kill() }

// number gives out a number for a request or a process.
func (s *shim) number() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// expectExit returns a number for a process and the channel that gets its wait
// status.
func (s *shim) expectExit() (uint64, chan uint32) {
	n := s.number()
	c := make(chan uint32, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exits[n] = c
	return n, c
}

func (s *shim) forgetExit(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.exits, n)
}

// call makes a request and waits for its answer. An error of the request itself
// is returned as error.
func (s *shim) call(ctx context.Context, m message, files ...*os.File) (answer, error) {
	m.ID = s.number()
	c := make(chan answer, 1)
	s.mu.Lock()
	s.pending[m.ID] = c
	s.mu.Unlock()
	if err := s.wire.send(m, files...); err != nil {
		s.forget(m.ID)
		return answer{}, s.gone()
	}
	a, err := s.await(ctx, m.ID, c)
	if err != nil {
		return answer{}, err
	}
	if err := a.message.failed(); err != nil {
		closeAll(a.files)
		return answer{}, err
	}
	return a, nil
}

// await waits for the answer to a request, which comes on c.
func (s *shim) await(ctx context.Context, id uint64, c <-chan answer) (answer, error) {
	select {
	case a := <-c:
		return a, nil
	case <-s.done:
		select {
		case a := <-c:
			return a, nil
		default:
			return answer{}, s.gone()
		}
	case <-ctx.Done():
		s.forget(id)
		// It may have come at the last moment: its descriptors are nobody's then.
		select {
		case a := <-c:
			closeAll(a.files)
		default:
		}
		return answer{}, ctx.Err()
	}
}

func (s *shim) forget(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, id)
}

// gone is the error of whoever needs a shim that has ended.
func (s *shim) gone() error {
	if text := s.stderr.text(); text != "" {
		return fmt.Errorf("pod %s: %w: its shim said: %s", s.name, ErrNotRunning, text)
	}
	return fmt.Errorf("pod %s: %w", s.name, ErrNotRunning)
}

// tail keeps the last bytes of a stream.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) readFrom(f *os.File) {
	chunk := make([]byte, 4096)
	for {
		n, err := f.Read(chunk)
		t.mu.Lock()
		t.buf = append(t.buf, chunk[:n]...)
		if over := len(t.buf) - len(chunk); over > 0 {
			t.buf = t.buf[over:]
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf))
}
