// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// fault is what happens to the calls of one kind.
type fault struct {
	method, path string
	// times is how often it happens; zero means each time.
	times int
	// carried has the call carried out all the same.
	carried bool
	// respond writes the answer in Proxmox VE's place; nil cuts the connection.
	respond func(w http.ResponseWriter)

	lock sync.Mutex
	done int
}

func (f *fault) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.lock.Lock()
		hit := r.Method == f.method && strings.HasPrefix(strings.TrimPrefix(r.URL.Path, apiRoot), f.path) && (f.times == 0 || f.done < f.times)
		if hit {
			f.done++
		}
		f.lock.Unlock()
		if !hit {
			next.ServeHTTP(w, r)
			return
		}
		if f.carried {
			next.ServeHTTP(httptest.NewRecorder(), r)
		}
		if f.respond == nil {
			panic(http.ErrAbortHandler)
		}
		f.respond(w)
	})
}

func (f *fault) stop() {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.times = 1
	f.done = 1
}

// says answers with a status whose reason phrase is Proxmox VE's own, and with
// the text in the body from 8.4 on.
func says(status int, text string, inBody bool) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		body := `{"data":null}`
		if inBody {
			body = fmt.Sprintf(`{"data":null,"message":%q}`, text+"\n")
		}
		_, _ = fmt.Fprintf(buf, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", status, text, len(body), body)
		_ = buf.Flush()
	}
}

// half is an answer that breaks off.
func half(w http.ResponseWriter) {
	w.Header().Set("Content-Length", "200")
	_, _ = w.Write([]byte(`{"data":{"value":"`))
}

const lockText = "can't lock file '/var/lock/pve-manager/pve-access.lck' - got timeout"

// accountFault is a row of the table: what happens, and how the run ends.
type accountFault struct {
	name string
	fault
	want string // of the error; empty: the run succeeds
}

func accountFaults() []*accountFault {
	var rows []*accountFault
	add := func(name, method, path string, times int, carried bool, respond func(http.ResponseWriter), want string) {
		rows = append(rows, &accountFault{name: name, fault: fault{method: method, path: path, times: times, carried: carried, respond: respond}, want: want})
	}
	for _, call := range []struct{ name, method, path string }{
		{"the user is made", http.MethodPost, "/access/users"},
		{"the role is made", http.MethodPost, "/access/roles"},
		{"the token is made", http.MethodPost, "/access/users/capi@pve/token"},
		{"the permissions are granted", http.MethodPut, "/access/acl"},
	} {
		on := func(what string, times int, carried bool, respond func(http.ResponseWriter), want string) {
			add(what+" when "+call.name, call.method, call.path, times, carried, respond, want)
		}
		// Ends well: refused for the moment, or the answer lost.
		on("a node out of reach", 1, false, says(595, "No route to host", false), "")
		on("a node that does not answer", 1, false, says(596, "Connection timed out", false), "")
		on("an answer that a node loses", 1, true, says(596, "Connection timed out", false), "")
		on("a cut connection", 1, false, nil, "")
		on("a cut connection after the work", 1, true, nil, "")
		on("half an answer", 1, true, half, "")
		on("a lock", 2, false, says(500, lockText, true), "")
		on("a lost quorum that comes back", 2, false, says(500, "cluster not ready - no quorum?", true), "")
		on("a proxy that is overloaded", 1, false, says(503, "Service Unavailable", false), "")
		// Does not: explained.
		on("no quorum", 0, false, says(500, "cluster not ready - no quorum?", true), "The cluster has no quorum")
		on("a lock that stays", 0, false, says(500, lockText, true), "Something else holds the lock")
		on("a lock that stays, told in the reason phrase", 0, false, says(500, lockText, false), "Something else holds the lock")
		on("a full disk", 0, false, says(500, "unable to write '/etc/pve/user.cfg.tmp' - No space left on device", true), "No space left on device")
		on("a full disk, told in the reason phrase", 0, false, says(500, "unable to write '/etc/pve/user.cfg.tmp' - No space left on device", false), "No space left on device")
		on("a privilege that is missing", 0, false, says(403, "Permission check failed (/access, Sys.Modify)", true), "pveum acl modify /access --tokens 'root@pam!terraform'")
		on("a login that is refused", 0, false, says(401, "permission denied - invalid token value!", false), "does not accept the login of root@pam!terraform")
		on("something for root alone", 0, false, says(403, "Permission check failed (user != root@pam)", true), "lets root@pam itself do this and nobody else")
	}
	add("a node out of reach for good", http.MethodGet, "/version", 0, false, says(595, "No route to host", false), "cannot reach the node that was asked for")
	add("certificates that the nodes do not accept", http.MethodGet, "/access", 0, false, says(596, "tls_process_server_certificate: certificate verify failed", false), "pvecm updatecerts")
	add("a refusal that names no privilege", http.MethodGet, "/access/acl", 0, false, says(403, "Permission check failed", true), "lacks a privilege for GET /access/acl")
	add("a call that takes no token", http.MethodGet, "/access/roles", 0, false, says(403, "URI '/access/roles' not available with API token, need proper ticket.", true), "takes no API token for this")
	add("an answer without a secret", http.MethodPost, "/access/users/capi@pve/token", 0, true, func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"data":{}}`)) }, "answered no secret")
	add("a user made by somebody else at the same moment", http.MethodPost, "/access/users", 1, false, says(500, "create user failed: user 'capi@pve' already exists", true), "already exists")
	add("a token made by somebody else at the same moment", http.MethodPost, "/access/users/capi@pve/token", 1, false, func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"data":null,"errors":{"tokenid":"Token already exists."},"message":"Parameter verification failed.\n"}`))
	}, "Token already exists")
	add("a role made by somebody else at the same moment", http.MethodPost, "/access/roles", 1, false, says(500, "create role failed: role 'CAPI-capi-pve' already exists", true), "already exists")
	add("a page of a proxy", http.MethodGet, "/access/domains", 0, false, func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) }, "is not the API of Proxmox VE")
	add("a proxy that knows no API", http.MethodGet, "/access/users", 0, false, says(404, "Not Found", false), "there is no API of Proxmox VE")
	return rows
}

// Every row ends well by itself, or in an error that says what is wrong; and then
// the next run, of a new state, makes one account of what is there.
func TestEveryFaultOfAnAccountEndsWellOrIsExplained(t *testing.T) {
	rows := accountFaults()
	if len(rows) < 40 {
		t.Fatalf("there are only %d rows", len(rows))
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *pvesim.Options) { o.Middleware = row.wrap })
			h := Holder{Instance: uuid.NewString()}
			issued, err := r.client().EnsureAccount(t.Context(), accountSpec(), h, nil)
			if row.done == 0 {
				t.Fatal("nothing happened")
			}
			if row.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				h.Secret = issued.Secret
				r.oneAccount(h)
				return
			}
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Fatalf("error is %v, want one with %q", err, row.want)
			}
			if issued.Secret != "" && strings.Contains(err.Error(), issued.Secret) || strings.Contains(err.Error(), r.secret) {
				t.Errorf("the error tells a secret: %v", err)
			}
			row.stop()
			r.oneAccount(r.account(accountSpec()))
		})
	}
}

func TestWhatIsNamedMustBeThere(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*AccountSpec)
		want   string
	}{
		"a realm":             {func(s *AccountSpec) { s.UserID = "capi@nope" }, `the realm "nope" does not exist; there is: pam, pve`},
		"a pool":              {func(s *AccountSpec) { s.Scope.Pool = "nope" }, `the pool "nope" does not exist; there is: capi, templates`},
		"a pool of templates": {func(s *AccountSpec) { s.Scope.TemplatePool = "nope" }, `the pool "nope" does not exist`},
		"a storage":           {func(s *AccountSpec) { s.Scope.DiskStorages = []string{"nope"} }, `the storage "nope" does not exist; there is: local, local-lvm`},
		"a storage of images": {func(s *AccountSpec) { s.Scope.ImageStorages = []string{"nope"} }, `the storage "nope" does not exist`},
		"a role":              {func(s *AccountSpec) { s.Permissions, s.Grants = Custom, []Grant{{Path: "/", Role: "Nope"}} }, "the role Nope on / does not exist"},
		"a privilege that has gone": {func(s *AccountSpec) {
			s.Permissions, s.Grants = Custom, []Grant{{Path: "/", Privileges: []string{"VM.Monitor"}}}
		}, "from 9.0 on VM.GuestAgent.Audit"},
		"a privilege that never was": {func(s *AccountSpec) {
			s.Permissions, s.Grants = Custom, []Grant{{Path: "/", Privileges: []string{"VM.Nope"}}}
		}, "knows no privilege VM.Nope"},
		"a path that the API takes not": {func(s *AccountSpec) { s.Permissions, s.Grants = Custom, []Grant{{Path: "/nope", Role: "PVEAuditor"}} }, "invalid ACL path '/nope'"},
	} {
		t.Run(name, func(t *testing.T) {
			r := confined(t)
			spec := accountSpec()
			test.change(&spec)
			_, err := r.client().EnsureAccount(t.Context(), spec, Holder{Instance: uuid.NewString()}, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
			if users := r.sim.Summary().Users; len(users) > 0 {
				t.Errorf("there is %v", users)
			}
		})
	}
}

func TestPermissionsThatSomethingElseTakesAwayAreNoticed(t *testing.T) {
	for name, entry := range map[string]map[string]any{
		"NoAccess for the user":  {"path": "/", "roles": "NoAccess", "users": "capi@pve"},
		"NoAccess for the token": {"path": "/", "roles": "NoAccess", "tokens": "capi@pve!capi-token"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			h := r.account(accountSpec())
			r.raw(http.MethodPut, "/access/acl", entry)
			account, err := r.client().ReadAccount(t.Context(), accountSpec())
			if err != nil || !strings.Contains(strings.Join(account.Faults, "\n"), "in spite of its entries there") {
				t.Errorf("the faults are %q, %v", account.Faults, err)
			}
			if _, err := r.client().EnsureAccount(t.Context(), accountSpec(), h, nil); err == nil || !strings.Contains(err.Error(), "pveum acl list") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// Whoever cannot see the entries knows nothing about them: that is no drift.
func TestEntriesThatCannotBeSeenAreNotMissed(t *testing.T) {
	r := newRig(t)
	r.account(accountSpec())
	r.raw(http.MethodPost, "/access/users", map[string]any{"userid": "reader@pve"})
	secret, err := r.sim.CreateToken("reader@pve", "reader", false)
	if err != nil {
		t.Fatal(err)
	}
	r.raw(http.MethodPost, "/access/roles", map[string]any{"roleid": "Reader", "privs": "User.Modify"})
	r.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/access/groups", "roles": "Reader", "users": "reader@pve"})
	reader := r.client(func(c *Config) { c.TokenID, c.TokenSecret = "reader@pve!reader", secret })
	account, err := reader.ReadAccount(t.Context(), accountSpec())
	if err != nil || len(account.Faults) > 0 {
		t.Errorf("the faults are %q, %v", account.Faults, err)
	}
}
