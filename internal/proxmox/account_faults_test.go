// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

const (
	lockText   = "can't lock file '/var/lock/pve-manager/pve-access.lck' - got timeout"
	quorumText = "cluster not ready - no quorum?"
	fullText   = "unable to write '/etc/pve/user.cfg.tmp' - No space left on device"
)

// accountFault is a row of the table: what happens, and how the run ends.
type accountFault struct {
	name string
	pvesim.Fault
	release string // empty: the newest
	want    string // of the error; empty: the run succeeds
}

func accountFaults() []accountFault {
	var rows []accountFault
	for _, call := range []struct{ name, method, path string }{
		{"the user is made", http.MethodPost, "/access/users"},
		{"the role is made", http.MethodPost, "/access/roles"},
		{"the token is made", http.MethodPost, "/access/users/*/token/*"},
		{"the permissions are granted", http.MethodPut, "/access/acl"},
	} {
		on := func(what string, f pvesim.Fault, want string) {
			f.Method, f.Path = call.method, call.path
			rows = append(rows, accountFault{name: what + " when " + call.name, Fault: f, want: want})
		}
		// Ends well: refused for the moment, or the answer lost.
		on("a node out of reach", pvesim.Fault{Status: 595, Message: "No route to host"}, "")
		on("a node that does not answer", pvesim.Fault{Status: 596, Message: "Connection timed out"}, "")
		on("a cut connection", pvesim.Fault{Cut: pvesim.CutBefore}, "")
		on("a cut connection after the work", pvesim.Fault{Cut: pvesim.CutAfter}, "")
		on("a lock", pvesim.Fault{Times: 2, Status: 500, Message: lockText}, "")
		on("a lost quorum that comes back", pvesim.Fault{Times: 2, Status: 500, Message: quorumText}, "")
		on("a proxy that is overloaded", pvesim.Fault{Status: 503, Message: "Service Unavailable"}, "")
		// Does not: explained.
		on("no quorum", pvesim.Fault{Times: -1, Status: 500, Message: quorumText}, "The cluster has no quorum")
		on("a lock that stays", pvesim.Fault{Times: -1, Status: 500, Message: lockText}, "Something else holds the lock")
		on("a full disk", pvesim.Fault{Times: -1, Status: 500, Message: fullText}, "No space left on device")
		on("a privilege that is missing", pvesim.Fault{Times: -1, Status: 403, Message: "Permission check failed (/access, Sys.Modify)"},
			"pveum acl modify /access --tokens 'root@pam!terraform'")
		on("a login that is refused", pvesim.Fault{Times: -1, Status: 401, Message: "permission denied - invalid token value!"},
			"does not accept the login of root@pam!terraform")
		on("something for root alone", pvesim.Fault{Times: -1, Status: 403, Message: "Permission check failed (user != root@pam)"},
			"lets root@pam itself do this and nobody else")
		// Before 8.4 what is wrong stands in the reason phrase alone.
		for _, old := range []struct{ text, want string }{{lockText, "Something else holds the lock"}, {fullText, "No space left on device"}} {
			on(old.want+", told in the reason phrase", pvesim.Fault{Times: -1, Status: 500, Message: old.text}, old.want)
			rows[len(rows)-1].release = "8.3"
		}
	}
	return append(rows,
		accountFault{"a node out of reach for good", pvesim.Fault{Path: "/version", Times: -1, Status: 595, Message: "No route to host"}, "", "cannot reach the node that was asked for"},
		accountFault{"certificates that the nodes do not accept", pvesim.Fault{Path: "/access/*", Times: -1, Status: 596, Message: "certificate verify failed"}, "", "pvecm updatecerts"},
		accountFault{"a refusal that names no privilege", pvesim.Fault{Path: "/access/acl", Times: -1, Status: 403, Message: "Permission check failed"}, "", "lacks a privilege for GET /access/acl"},
		accountFault{"a call that takes no token", pvesim.Fault{Path: "/access/roles", Times: -1, Status: 403, Message: "URI '/access/roles' not available with API token, need proper ticket."},
			"", "takes no API token for this"},
		accountFault{"an answer without a secret", pvesim.Fault{Method: http.MethodPost, Path: "/access/users/*/token/*", Times: -1, Body: `{"data":{}}`}, "", "answered no secret"},
		accountFault{"a user made by somebody else at the same moment", pvesim.Fault{Method: http.MethodPost, Path: "/access/users", Status: 500,
			Message: "create user failed: user 'capi@pve' already exists"}, "", "already exists"},
		accountFault{"a role made by somebody else at the same moment", pvesim.Fault{Method: http.MethodPost, Path: "/access/roles", Status: 500,
			Message: "create role failed: role 'CAPI-capi-pve' already exists"}, "", "already exists"},
		accountFault{"a page of a proxy", pvesim.Fault{Path: "/access/domains", Times: -1, Body: "<html>"}, "", "is not the API of Proxmox VE"},
		accountFault{"a proxy that knows no API", pvesim.Fault{Path: "/access/users/*", Times: -1, Status: 404, Message: "Not Found"}, "", "there is no API of Proxmox VE"},
	)
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
			r := newRig(t, func(o *pvesim.Options) { o.Release = row.release })
			r.sim.Inject(row.Fault)
			h := Holder{Instance: uuid.NewString()}
			issued, err := r.client().EnsureAccount(t.Context(), accountSpec(), h, nil)
			if r.sim.ClearFaults() == 0 {
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
		}, "no privilege VM.Nope exists"},
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
