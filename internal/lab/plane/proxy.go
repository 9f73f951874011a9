// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package plane

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// Proxy stands before a plane and can fail. It needs no credentials: it has the
// plane's.
type Proxy struct {
	// URL is where it listens.
	URL string

	mu      sync.Mutex
	down    bool
	revoked bool
	writes  int
	at      int
	struck  func()
	refuse  func(*http.Request) bool
}

// Proxy starts a proxy, which ends with the test.
func (p *Plane) Proxy(t testing.TB) *Proxy {
	t.Helper()
	target, err := url.Parse(p.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &Proxy{}
	forward := &httputil.ReverseProxy{
		Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorLog: log.New(io.Discard, "", 0),
	}
	server := httptest.NewServer(proxy.failing(forward))
	t.Cleanup(server.Close)
	proxy.URL = server.URL
	return proxy
}

// Kubeconfig is a kubeconfig that leads through the proxy.
func (x *Proxy) Kubeconfig() []byte {
	return fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: lab\nclusters: [{name: lab, cluster: {server: %q}}]\n"+
		"contexts: [{name: lab, context: {cluster: lab, user: lab}}]\nusers: [{name: lab, user: {}}]\n", x.URL)
}

// Config is a client configuration that leads through the proxy.
func (x *Proxy) Config() *rest.Config { return &rest.Config{Host: x.URL, QPS: 200, Burst: 400} }

// Strike chooses a writing call, from 1; zero for none. It is carried out,
// struck is called, and its answer is lost. Strike answers how many writing
// calls there were since the last time. Renewals of leases, which come by the
// clock, do not count.
func (x *Proxy) Strike(at int, struck func()) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	writes := x.writes
	x.writes, x.at, x.struck = 0, at, struck
	return writes
}

// SetDown lets the API server answer nothing but errors, or again as it is.
func (x *Proxy) SetDown(down bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.down = down
}

// SetRevoked refuses the credentials of all calls, or takes them again.
func (x *Proxy) SetRevoked(revoked bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.revoked = revoked
}

// Refuse answers the calls that refused picks out with an error of the server,
// and does not carry them out. Nil ends it.
func (x *Proxy) Refuse(refused func(*http.Request) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.refuse = refused
}

func (x *Proxy) failing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.mu.Lock()
		down, revoked, hit, struck := x.down, x.revoked, false, x.struck
		refused := x.refuse != nil && x.refuse(r)
		if r.Method != http.MethodGet && !isRenewal(r) && !down && !revoked && !refused {
			x.writes++
			hit = x.writes == x.at
		}
		x.mu.Unlock()
		switch {
		case down, refused:
			http.Error(w, "etcd is away", http.StatusServiceUnavailable)
		case revoked:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`)
		case hit:
			next.ServeHTTP(httptest.NewRecorder(), r)
			struck()
			panic(http.ErrAbortHandler)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func isRenewal(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/coordination.k8s.io/v1/namespaces/") && strings.Contains(r.URL.Path, "/leases/")
}
