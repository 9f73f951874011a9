// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"time"
)

// Cut says when the connection of a call is cut.
type Cut int

const (
	// CutNot leaves the connection alone.
	CutNot Cut = iota
	// CutBefore cuts it before the call is carried out.
	CutBefore
	// CutAfter carries the call out, so that only its answer is lost.
	CutAfter
)

// Fault is a rule by which calls go wrong. Of the rules that match a call, the
// first that is not used up counts.
type Fault struct {
	// Method of the calls; empty means any.
	Method string
	// Path is a pattern as path.Match has it, on the path below /api2/json:
	// "/nodes/*/qemu". Empty means any.
	Path string
	// Nth is the first of the matching calls that goes wrong, from 1; zero means
	// the first.
	Nth int
	// Times is how many calls go wrong; zero means one, a negative number all
	// from the Nth on.
	Times int

	// Delay holds the call back before anything else is done.
	Delay time.Duration
	// Status, when not zero, answers the call instead of carrying it out, with
	// Message as Proxmox VE words it: in the reason phrase, and from 8.4 in the body.
	Status  int
	Message string
	// Body, when not empty, is answered with status 200 instead of carrying it out.
	Body string
	// Task, when not empty, is the text with which the task that the call starts
	// fails, without doing anything.
	Task string
	// Cut cuts the connection.
	Cut Cut
}

// armed is a fault with what was seen of it.
type armed struct {
	Fault
	seen, struck int
}

// Inject adds faults. They last until they are used up or [Simulator.ClearFaults].
func (s *Simulator) Inject(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range faults {
		s.faults = append(s.faults, &armed{Fault: f})
	}
}

// ClearFaults removes all faults and answers how many calls they have struck.
func (s *Simulator) ClearFaults() (struck int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		struck += f.struck
	}
	s.faults = nil
	return struck
}

// fault answers the rule that strikes a call, or nil.
func (s *Simulator) fault(r *http.Request) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	where := strings.TrimPrefix(r.URL.Path, apiRoot)
	for _, f := range s.faults {
		if f.Method != "" && f.Method != r.Method {
			continue
		}
		if ok, err := path.Match(f.Path, where); f.Path != "" && (err != nil || !ok) {
			continue
		}
		f.seen++
		if f.seen < max(1, f.Nth) || (f.Times >= 0 && f.struck >= max(1, f.Times)) {
			continue
		}
		f.struck++
		return &f.Fault
	}
	return nil
}

// strike does what a fault asks for in the place of an answer. done is false
// where the call is to be carried out and answered all the same.
func (s *Simulator) strike(w http.ResponseWriter, r *http.Request, f *Fault) (done bool) {
	if f.Delay > 0 {
		select {
		case <-s.opts.Clock.After(f.Delay):
		case <-r.Context().Done():
		case <-s.ctx.Done():
		}
	}
	switch {
	case f.Status != 0:
		// What pveproxy itself answers for another node, or for a login, has no body.
		bare := f.Status == http.StatusUnauthorized || f.Status > 590
		s.refuse(w, &refusal{status: f.Status, message: f.Message, bare: bare})
		return true
	case f.Body != "":
		_, _ = w.Write([]byte(f.Body))
		return true
	case f.Cut == CutAfter:
		s.answer(httptest.NewRecorder(), r, f.Task)
		panic(http.ErrAbortHandler)
	case f.Cut == CutBefore:
		panic(http.ErrAbortHandler)
	}
	return false
}

// fork starts a task of this call, which fails where a fault says so.
func (c *call) fork(node, typ, id string, who principal, takes time.Duration, do func(*worker) error) string {
	if text := c.failTask; text != "" {
		do = func(w *worker) error {
			return w.locked(func() error {
				if typ == "qmcreate" { // which leaves nothing when it fails
					w.state.forgetVM(c.integer("vmid"))
				}
				return errors.New(text)
			})
		}
	}
	return c.Simulator.fork(node, typ, id, who, takes, do)
}
