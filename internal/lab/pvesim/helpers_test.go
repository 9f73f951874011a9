// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/luthermonson/go-proxmox"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/factory"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// lab is a simulator under test with root's token.
type lab struct {
	*pvesim.Simulator
	t     *testing.T
	http  *http.Client
	token string
}

func start(t *testing.T, opts pvesim.Options) *lab {
	t.Helper()
	s, err := pvesim.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	secret, err := s.CreateToken("root@pam", "test", false)
	if err != nil {
		t.Fatal(err)
	}
	return &lab{Simulator: s, t: t, http: httpClient(t, s), token: "root@pam!test=" + secret}
}

func httpClient(t *testing.T, s *pvesim.Simulator) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.CA()) {
		t.Fatal("the simulator has no CA")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

// as is the same simulator for another caller.
func (l *lab) as(token string) *lab {
	other := *l
	other.token = token
	return &other
}

// client is a go-proxmox client of the caller.
func (l *lab) client() *proxmox.Client {
	id, secret, _ := strings.Cut(l.token, "=")
	return proxmox.NewClient(l.APIURL(), proxmox.WithHTTPClient(l.http), proxmox.WithAPIToken(id, secret))
}

// reply is what came back over the wire.
type reply struct {
	status  int
	reason  string
	data    json.RawMessage
	message string
	errors  map[string]string
}

// send makes one call. params are a form in the body of POST and PUT, and the
// query of the others.
func (l *lab) send(method, path string, params url.Values) reply {
	l.t.Helper()
	target, body := l.APIURL()+path, ""
	if method == "POST" || method == "PUT" {
		body = params.Encode()
	} else if len(params) > 0 {
		target += "?" + params.Encode()
	}
	req, err := http.NewRequestWithContext(l.t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return l.roundTrip(req)
}

func (l *lab) roundTrip(req *http.Request) reply {
	l.t.Helper()
	if l.token != "" {
		req.Header.Set("Authorization", "PVEAPIToken="+l.token)
	}
	resp, err := l.http.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	var body struct {
		Data    json.RawMessage   `json:"data"`
		Message string            `json:"message"`
		Errors  map[string]string `json:"errors"`
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &body); err != nil {
			l.t.Fatalf("%s %s: %s: no JSON: %s", req.Method, req.URL.Path, resp.Status, raw)
		}
	}
	_, reason, _ := strings.Cut(resp.Status, " ")
	return reply{status: resp.StatusCode, reason: reason, data: body.Data, message: body.Message, errors: body.Errors}
}

// ok makes a call that must succeed and decodes its data.
func (l *lab) ok(method, path string, params url.Values, into any) {
	l.t.Helper()
	r := l.send(method, path, params)
	if r.status != 200 {
		l.t.Fatalf("%s %s %v: %d %s %v", method, path, params, r.status, r.reason, r.errors)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(r.data, into); err != nil {
		l.t.Fatalf("%s %s: %v in %s", method, path, err, r.data)
	}
}

type taskStatus struct {
	Status     string
	ExitStatus string
	Type       string
	ID         string
	User       string
	TokenID    string
}

// task makes a call that answers a task and waits for its end.
func (l *lab) task(method, path string, params url.Values) string {
	l.t.Helper()
	var upid string
	l.ok(method, path, params, &upid)
	return l.wait(upid)
}

// done is task for one that must succeed.
func (l *lab) done(method, path string, params url.Values) {
	l.t.Helper()
	if exit := l.task(method, path, params); exit != "OK" {
		l.t.Fatalf("%s %s: task ended with %q", method, path, exit)
	}
}

func (l *lab) wait(upid string) string {
	l.t.Helper()
	var st taskStatus
	l.until("task "+upid+" ends", func() bool {
		l.ok("GET", "/nodes/"+strings.Split(upid, ":")[1]+"/tasks/"+url.PathEscape(upid)+"/status", nil, &st)
		return st.Status == "stopped"
	})
	return st.ExitStatus
}

// until waits for a condition.
func (l *lab) until(what string, cond func() bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			l.t.Fatalf("waiting for %q: %v", what, ctx.Err())
		}
	}
}

func form(kv ...string) url.Values {
	v := url.Values{}
	for i := 0; i+1 < len(kv); i += 2 {
		v.Add(kv[i], kv[i+1])
	}
	return v
}

// account makes a user with a token that holds roles on paths, and answers the
// same simulator for it. grants alternate path and comma-separated roles.
func (l *lab) account(name string, grants ...string) *lab {
	l.t.Helper()
	l.ok("POST", "/access/users", form("userid", name), nil)
	var tok struct{ Value string }
	l.ok("POST", "/access/users/"+name+"/token/t1", form("privsep", "0"), &tok)
	for i := 0; i+1 < len(grants); i += 2 {
		l.ok("PUT", "/access/acl", form("path", grants[i], "roles", grants[i+1], "users", name), nil)
	}
	return l.as(name + "!t1=" + tok.Value)
}

// talosFactory serves images and answers the URL of one.
func talosFactory(t *testing.T) (f *factory.Factory, image string) {
	t.Helper()
	f, err := factory.Start(t.Context(), factory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.URL()+"/schematics", strings.NewReader("customization: {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var out struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return f, f.URL() + "/image/" + out.ID + "/v1.13.7/nocloud-amd64.qcow2"
}

// template builds template 9000 from the factory's image.
func (l *lab) template(image string) {
	l.t.Helper()
	l.done("POST", "/nodes/pve1/storage/local/download-url", form("url", image, "content", "import", "filename", "talos.qcow2"))
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "9000", "name", "talos", "memory", "2048", "agent", "1", "tags", "Talos;v1.13.7",
		"scsihw", "virtio-scsi-pci", "scsi0", "local-lvm:0,import-from=local:import/talos.qcow2", "boot", "order=scsi0", "net0", "virtio,bridge=vmbr0"))
	l.done("POST", "/nodes/pve1/qemu/9000/template", nil)
}

// vm answers a machine of the summary.
func (l *lab) vm(id int) (pvesim.VMSummary, bool) {
	for _, m := range l.Summary().VMs {
		if m.ID == id {
			return m, true
		}
	}
	return pvesim.VMSummary{}, false
}

// guests is a Booter that remembers what it booted.
type guests struct {
	mu     sync.Mutex
	booted []*guest
	gone   []string
}

type guest struct {
	vm     pvesim.VM
	iso    []byte
	mu     sync.Mutex
	killed bool
	agent  bool
	done   chan struct{}
	held   chan struct{} // where it is set, the power goes when it is closed
}

func (b *guests) Boot(_ context.Context, vm pvesim.VM) (pvesim.Guest, error) {
	iso, err := vm.CDROM()
	if err != nil {
		return nil, err
	}
	g := &guest{vm: vm, iso: iso, agent: true, done: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.booted = append(b.booted, g)
	return g, nil
}

func (b *guests) Destroy(disk string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = append(b.gone, disk)
	return nil
}

func (b *guests) all() []*guest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*guest(nil), b.booted...)
}

func (g *guest) Shutdown(context.Context) error { g.Kill(); return nil }

func (g *guest) Kill() {
	if g.held != nil {
		<-g.held
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.killed = true
}

func (g *guest) dead() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.killed
}

func (g *guest) AgentRunning() bool { return g.agent }
func (g *guest) Hostname() string   { return "node-1" }
func (g *guest) Addresses() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.9.160/24")}
}
func (g *guest) Done() <-chan struct{} { return g.done }

// statusLine sends raw bytes and answers the first line that comes back.
func (l *lab) statusLine(request string) string {
	l.t.Helper()
	u, err := url.Parse(l.URL())
	if err != nil {
		l.t.Fatal(err)
	}
	d := tls.Dialer{Config: l.http.Transport.(*http.Transport).TLSClientConfig.Clone()}
	conn, err := d.DialContext(l.t.Context(), "tcp", u.Host)
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		l.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		l.t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		l.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// request is an empty request.
func request(t *testing.T, method, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}
