// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Simulator is a running Proxmox VE cluster.
type Simulator struct {
	opts    Options
	release release
	blobs   *blobs

	mu    sync.Mutex
	state *state
	// running holds the machines that are switched on.
	running map[int]*power
	// live are the tasks whose worker is at work.
	live map[string]*worker
	// vmLocks serialise what is done to one machine.
	vmLocks map[int]*sync.Mutex
	// shortDownload, when above zero, cuts the next download to so many bytes.
	shortDownload int64
	// faults are the rules by which calls go wrong.
	faults []*armed

	listener net.Listener
	server   *http.Server
	ctx      context.Context
	cancel   context.CancelFunc
	// closed stops new tasks; workers counts the goroutines.
	closed  bool
	workers sync.WaitGroup
}

// Start serves a cluster until [Simulator.Close]. ctx bounds the start only.
func Start(ctx context.Context, opts Options) (*Simulator, error) {
	opts, rel, err := opts.complete()
	if err != nil {
		return nil, err
	}
	st, err := loadState(opts)
	if err != nil {
		return nil, err
	}
	files, err := newBlobs(opts.Dir)
	if err != nil {
		return nil, err
	}
	files.prune(st)
	s := &Simulator{
		opts: opts, release: rel, state: st, blobs: files,
		running: map[int]*power{}, live: map[string]*worker{}, vmLocks: map[int]*sync.Mutex{},
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.listen(ctx); err != nil {
		s.cancel()
		return nil, err
	}
	s.powerOnAgain()
	return s, nil
}

// listen opens the API.
func (s *Simulator) listen(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.opts.Address)
	if err != nil {
		return fmt.Errorf("serving the Proxmox VE API: %w", err)
	}
	cert, err := s.state.certificate(l.Addr(), time.Now())
	if err != nil {
		_ = l.Close()
		return err
	}
	s.save()
	s.listener = l
	var handler http.Handler = http.HandlerFunc(s.serve)
	if s.opts.Middleware != nil {
		handler = s.opts.Middleware(handler)
	}
	s.server = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		// pveproxy speaks HTTP/1.1 only.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	s.workers.Add(1)
	go func() {
		defer s.workers.Done()
		if err := s.server.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
			s.opts.Log("serving the Proxmox VE API: %v", err)
		}
	}()
	return nil
}

// Close cuts the power of every machine and ends the API. With a folder the
// cluster can be started again from it; machines that ran are started again then.
func (s *Simulator) Close() error {
	s.cancel()
	err := s.server.Close()
	s.mu.Lock()
	s.closed = true
	var guests []Guest
	for _, p := range s.running {
		if p.guest != nil {
			guests = append(guests, p.guest)
		}
	}
	s.save()
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, g := range guests {
		wg.Go(g.Kill)
	}
	wg.Wait()
	s.workers.Wait()
	return err
}

// URL is the address of the API without its path, as clients are given it:
// "https://127.0.0.1:8006".
func (s *Simulator) URL() string { return "https://" + s.listener.Addr().String() }

// APIURL is the address that API calls are appended to.
func (s *Simulator) APIURL() string { return s.URL() + "/api2/json" }

// CA is the certificate authority of the cluster, PEM.
func (s *Simulator) CA() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.CA
}

// ShortDownload makes the next download end after n bytes without an error, as
// a broken connection does that the downloading tool takes for the end.
func (s *Simulator) ShortDownload(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shortDownload = n
}

// SetNodeOffline cuts a node off or brings it back.
func (s *Simulator) SetNodeOffline(name string, offline bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.opts.Nodes {
		if s.opts.Nodes[i].Name == name {
			s.opts.Nodes[i].Offline = offline
		}
	}
}

// CreateToken makes a token of an existing user without the API's own checks
// and answers its secret: how a test or a lab gets its first credential.
func (s *Simulator) CreateToken(userid, tokenid string, privsep bool) (secret string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.state.Users[userid]
	if u == nil {
		return "", die("no such user ('%s')", userid)
	}
	secret = uuid.NewString()
	u.setToken(tokenid, &token{Privsep: privsep, Hash: tokenHash(secret)})
	s.save()
	return secret, nil
}

func (u *user) setToken(id string, t *token) {
	if u.Tokens == nil {
		u.Tokens = map[string]*token{}
	}
	u.Tokens[id] = t
}

func tokenHash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // crypto/rand.Read never fails
	return b
}

// node answers the member of that name.
func (s *Simulator) node(name string) (*Node, bool) {
	for i := range s.opts.Nodes {
		if s.opts.Nodes[i].Name == name {
			return &s.opts.Nodes[i], true
		}
	}
	return nil, false
}

// Summary answers what the cluster holds.
func (s *Simulator) Summary() Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out Summary
	for _, id := range slices.Sorted(maps.Keys(s.state.VMs)) {
		m := s.state.VMs[id]
		out.VMs = append(out.VMs, VMSummary{
			ID: id, Name: m.Config["name"], Tags: m.Config["tags"], Node: m.Node, UUID: m.uuid(), Running: s.running[id] != nil, Template: m.template(), Lock: m.Config["lock"],
		})
	}
	for _, v := range s.state.Volumes {
		if st := s.state.Storages[v.Storage]; st != nil {
			out.Files = append(out.Files, v.id(st))
		}
	}
	slices.Sort(out.Files)
	for _, name := range slices.Sorted(maps.Keys(s.state.Users)) {
		if name != superuser {
			out.Users = append(out.Users, name)
		}
		for _, id := range slices.Sorted(maps.Keys(s.state.Users[name].Tokens)) {
			out.Tokens = append(out.Tokens, name+"!"+id)
		}
	}
	out.Roles = slices.Sorted(maps.Keys(s.state.Roles))
	out.Pools = slices.Sorted(maps.Keys(s.state.Pools))
	return out
}

// Summary is what the cluster holds, for a person or a test that wants to see
// that nothing was left behind.
type Summary struct {
	VMs    []VMSummary
	Files  []string // volume ids of images to import, ISO images and disks
	Users  []string
	Tokens []string
	Roles  []string // those that are not built in
	Pools  []string
}

// VMSummary is one machine in a [Summary].
type VMSummary struct {
	ID       int
	Name     string
	Tags     string // as the configuration holds them, "a;b"
	Node     string
	UUID     string
	Running  bool
	Template bool
	Lock     string
}
