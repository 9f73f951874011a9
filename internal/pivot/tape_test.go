// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// tape stands between a run and both API servers and counts the run's writes. It
// can make something happen right before or right after one of them.
type tape struct {
	// open are the requests under way.
	open   sync.WaitGroup
	mu     sync.Mutex
	writes []string
	// at is the write (from 1) at which strike is called: before it is sent on, or
	// after the API server has carried it out and before the run gets the answer.
	at     int
	after  bool
	strike func()
	// on chooses it by what it is, once, in place of at.
	on func(write string) bool
	// cut drops every request to a side from then on.
	cut map[string]bool
	// addresses lead through the tape to the sides.
	addresses map[string]string
}

// newTape starts a tape in front of the sides. Only the run under test goes
// through it; the test itself looks at the API servers directly.
func newTape(t testing.TB, configs map[string]*rest.Config) *tape {
	t.Helper()
	tp := &tape{cut: map[string]bool{}, addresses: map[string]string{}}
	for name, config := range configs {
		target, err := url.Parse(config.Host)
		if err != nil {
			t.Fatal(err)
		}
		transport, err := rest.TransportFor(config)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httputil.NewSingleHostReverseProxy(target)
		proxy.Transport = transport
		proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: tp.handler(name, proxy), ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		tp.addresses[name] = "http://" + listener.Addr().String()
	}
	return tp
}

// isWrite leaves out what changes nothing, and the lease, which is renewed at
// any moment.
func isWrite(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && !r.URL.Query().Has("dryRun") && !strings.Contains(r.URL.Path, "/leases")
}

func (tp *tape) handler(side string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tp.open.Add(1)
		defer tp.open.Done()
		if !isWrite(r) {
			tp.dropIfCut(side)
			next.ServeHTTP(w, r)
			return
		}
		tp.mu.Lock()
		tp.writes = append(tp.writes, side+" "+r.Method+" "+r.URL.Path)
		hit := len(tp.writes) == tp.at
		if tp.on != nil && tp.on(tp.writes[len(tp.writes)-1]) {
			hit, tp.on = true, nil
		}
		after, strike := tp.after, tp.strike
		tp.mu.Unlock()
		if hit && !after {
			strike()
		}
		tp.dropIfCut(side)
		if hit && after {
			held := &heldAnswer{header: http.Header{}}
			// The API server carries it out whether or not the run is still there.
			next.ServeHTTP(held, r.WithContext(context.WithoutCancel(r.Context())))
			strike()
			tp.dropIfCut(side)
			held.send(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (tp *tape) dropIfCut(side string) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	if tp.cut[side] {
		panic(http.ErrAbortHandler) // the connection breaks
	}
}

// arm rewinds the tape and sets the next strike.
func (tp *tape) arm(at int, after bool, strike func()) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.writes, tp.at, tp.after, tp.strike, tp.on, tp.cut = nil, at, after, strike, nil, map[string]bool{}
}

// armOn is arm for the first write of a side, a method and a resource.
func (tp *tape) armOn(side, method, resource string, after bool, strike func()) {
	tp.arm(0, after, strike)
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.on = func(write string) bool {
		return strings.HasPrefix(write, side+" "+method+" ") && strings.Contains(write, "/"+resource)
	}
}

func (tp *tape) cutOff(sides ...string) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	for _, side := range sides {
		tp.cut[side] = true
	}
}

func (tp *tape) recorded() []string {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return append([]string(nil), tp.writes...)
}

// heldAnswer keeps an API server's answer until the strike is over.
type heldAnswer struct {
	header http.Header
	code   int
	body   []byte
}

func (h *heldAnswer) Header() http.Header { return h.header }
func (h *heldAnswer) WriteHeader(code int) {
	if h.code == 0 {
		h.code = code
	}
}
func (h *heldAnswer) Write(p []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	h.body = append(h.body, p...)
	return len(p), nil
}

func (h *heldAnswer) send(w http.ResponseWriter) {
	for key, values := range h.header {
		w.Header()[key] = values
	}
	w.WriteHeader(h.code)
	_, _ = w.Write(h.body)
}

// settle waits until the API servers have answered all that was sent to them.
func (tp *tape) settle() { tp.open.Wait() }
