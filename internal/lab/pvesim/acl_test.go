// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// rule is one call of PUT /access/acl.
func rule(path, role, kind, id string, more ...string) url.Values {
	v := form("path", path, "roles", role, kind, id)
	for i := 0; i+1 < len(more); i += 2 {
		v.Set(more[i], more[i+1])
	}
	return v
}

// TestPrivilegesFollowProxmoxsRules asks for the privileges of a user, its token
// and a group's member on a path, under different access control lists.
func TestPrivilegesFollowProxmoxsRules(t *testing.T) {
	const u, tok = "capi@pve", "capi@pve!sep"
	for _, tc := range []struct {
		name  string
		rules []url.Values
		who   string
		path  string
		want  string
	}{
		{"nothing without a rule", nil, u, "/vms/100", ""},
		{"a rule above is inherited", []url.Values{rule("/", "PVETemplateUser", "users", u)}, u, "/vms/100", "VM.Audit VM.Clone"},
		{"a rule above that does not propagate is not", []url.Values{rule("/", "PVETemplateUser", "users", u, "propagate", "0")}, u, "/vms/100", ""},
		{"a rule that does not propagate holds on its own path", []url.Values{rule("/vms", "PVETemplateUser", "users", u, "propagate", "0")}, u, "/vms", "VM.Audit VM.Clone"},
		{"a deeper rule replaces the one above", []url.Values{rule("/", "PVETemplateUser", "users", u), rule("/vms/100", "PVEPoolUser", "users", u)}, u, "/vms/100", "Pool.Audit"},
		{"roles on one path add up", []url.Values{rule("/", "PVETemplateUser", "users", u), rule("/", "PVEPoolUser", "users", u)}, u, "/vms/100", "Pool.Audit VM.Audit VM.Clone"},
		{"NoAccess hides everything", []url.Values{rule("/", "PVETemplateUser", "users", u), rule("/", "NoAccess", "users", u)}, u, "/vms/100", ""},
		{"a group's rule counts", []url.Values{rule("/", "PVEPoolUser", "groups", "team")}, "member@pve", "/vms/100", "Pool.Audit"},
		{"a user's rule hides its group's on the same path", []url.Values{rule("/", "PVEPoolUser", "groups", "team"), rule("/", "PVESDNUser", "users", "member@pve")}, "member@pve", "/vms/100", "SDN.Audit SDN.Use"},
		{"a group's deeper rule replaces the user's", []url.Values{rule("/", "PVESDNUser", "users", "member@pve"), rule("/vms", "PVEPoolUser", "groups", "team")}, "member@pve", "/vms/100", "Pool.Audit"},
		{"a token with separation has nothing of its own", []url.Values{rule("/", "PVETemplateUser", "users", u)}, tok, "/vms/100", ""},
		{"it gets what both have", []url.Values{rule("/", "PVETemplateUser", "users", u), rule("/", "PVEVMAdmin", "tokens", tok)}, tok, "/vms/100", "VM.Audit VM.Clone"},
		{"it gets no more than its user", []url.Values{rule("/", "PVEVMAdmin", "tokens", tok)}, tok, "/vms/100", ""},
		{"a token without separation has its user's", []url.Values{rule("/", "PVETemplateUser", "users", u)}, "capi@pve!all", "/vms/100", "VM.Audit VM.Clone"},
		{"a pool's rule reaches its machines", []url.Values{rule("/pool/p", "PVETemplateUser", "users", u)}, u, "/vms/101", "VM.Audit VM.Clone"},
		{"and its storages", []url.Values{rule("/pool/p", "PVEDatastoreUser", "users", u)}, u, "/storage/local", "Datastore.AllocateSpace Datastore.Audit"},
		{"and no others", []url.Values{rule("/pool/p", "PVETemplateUser", "users", u)}, u, "/vms/100", ""},
		{"NoAccess on a machine beats its pool", []url.Values{rule("/pool/p", "PVETemplateUser", "users", u), rule("/vms/101", "NoAccess", "users", u)}, u, "/vms/101", ""},
		{"NoAccess on a pool beats the rules of its machines", []url.Values{rule("/", "PVETemplateUser", "users", u), rule("/pool/p", "NoAccess", "users", u)}, u, "/vms/101", ""},
		{"and of no others", []url.Values{rule("/", "PVETemplateUser", "users", u), rule("/pool/p", "NoAccess", "users", u)}, u, "/vms/100", "VM.Audit VM.Clone"},
		{"a rule can be taken back", []url.Values{rule("/", "PVEPoolUser", "users", u), rule("/", "PVEPoolUser", "users", u, "delete", "1")}, u, "/", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := start(t, pvesim.Options{})
			l.ok("POST", "/access/groups", form("groupid", "team"), nil)
			l.account(u)
			l.account("member@pve")
			l.ok("PUT", "/access/users/member@pve", form("groups", "team"), nil)
			l.ok("POST", "/access/users/"+u+"/token/sep", form("privsep", "1"), nil)
			l.ok("POST", "/access/users/"+u+"/token/all", form("privsep", "0"), nil)
			l.done("POST", "/nodes/pve1/qemu", form("vmid", "101"))
			l.ok("POST", "/pools", form("poolid", "p"), nil)
			l.ok("PUT", "/pools/p", form("vms", "101", "storage", "local"), nil)
			for _, r := range tc.rules {
				l.ok("PUT", "/access/acl", r, nil)
			}
			var got map[string]map[string]int
			l.ok("GET", "/access/permissions", form("userid", tc.who, "path", tc.path), &got)
			if privs := strings.Join(slices.Sorted(maps.Keys(got[tc.path])), " "); privs != tc.want {
				t.Errorf("%s may %q on %s, want %q", tc.who, privs, tc.path, tc.want)
			}
		})
	}
}

func TestAnAccountGoesWithAllThatIsItsOwn(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.account("capi@pve", "/", "PVEAuditor")
	l.ok("PUT", "/access/acl", form("path", "/", "roles", "PVEAuditor", "tokens", "capi@pve!t1"), nil)
	l.ok("DELETE", "/access/users/capi@pve/token/t1", nil, nil)
	var acl []struct{ Type, UGID string }
	l.ok("GET", "/access/acl", nil, &acl)
	if len(acl) != 1 || acl[0].Type != "user" {
		t.Errorf("rules without the token: %v", acl)
	}
	l.ok("DELETE", "/access/users/capi@pve", nil, nil)
	l.ok("GET", "/access/acl", nil, &acl)
	if got := l.Summary(); len(acl) != 0 || len(got.Users) != 0 || got.Tokens[0] != "root@pam!test" {
		t.Errorf("left behind: rules %v, users %v, tokens %v", acl, got.Users, got.Tokens)
	}
}

func TestTokensSecretsAreShownOnceAndCanBeMadeAnew(t *testing.T) {
	l := start(t, pvesim.Options{})
	capi := l.account("capi@pve", "/", "PVEAuditor")
	if r := l.send("GET", "/access/users/capi@pve/token/t1", nil); strings.Contains(string(r.data), "value") {
		t.Errorf("the secret is shown again: %s", r.data)
	}
	var anew struct {
		Value string
		Full  string `json:"full-tokenid"`
	}
	l.ok("PUT", "/access/users/capi@pve/token/t1", form("regenerate", "1", "comment", "c"), &anew)
	if r := capi.send("GET", "/version", nil); r.status != 401 {
		t.Errorf("the old secret: %d", r.status)
	}
	if r := l.as(anew.Full+"="+anew.Value).send("GET", "/cluster/status", nil); r.status != 200 {
		t.Errorf("the new secret: %d %s", r.status, r.reason)
	}
	var tok struct {
		Privsep *int
		Comment string
	}
	l.ok("GET", "/access/users/capi@pve/token/t1", nil, &tok)
	if tok.Privsep == nil || *tok.Privsep != 0 || tok.Comment != "c" {
		t.Errorf("an update changed more than it was told: %+v", tok)
	}
}

func TestAPasswordGivesATicketThatNeedsACSRFTokenToWrite(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.ok("POST", "/access/users", form("userid", "ann@pve", "password", "correct horse"), nil)
	l.ok("PUT", "/access/acl", form("path", "/", "roles", "Administrator", "users", "ann@pve"), nil)
	nobody := l.as("")
	var ticket struct{ Ticket, CSRFPreventionToken string }
	nobody.ok("POST", "/access/ticket", form("username", "ann@pve", "password", "correct horse"), &ticket)
	req := request(t, "POST", l.APIURL()+"/access/roles?roleid=R")
	req.Header.Set("Cookie", "PVEAuthCookie="+ticket.Ticket)
	if r := nobody.roundTrip(req); r.status != 401 || r.reason != "Permission denied - invalid csrf token" {
		t.Errorf("a write without the token: %d %s", r.status, r.reason)
	}
	req = request(t, "POST", l.APIURL()+"/access/roles?roleid=R")
	req.Header.Set("Cookie", "PVEAuthCookie="+ticket.Ticket)
	req.Header.Set("CSRFPreventionToken", ticket.CSRFPreventionToken)
	if r := nobody.roundTrip(req); r.status != 200 {
		t.Errorf("a write with it: %d %s", r.status, r.reason)
	}
	l.ok("PUT", "/access/users/ann@pve", form("enable", "0"), nil)
	req = request(t, "GET", l.APIURL()+"/version")
	req.Header.Set("Cookie", "PVEAuthCookie="+ticket.Ticket)
	if r := nobody.roundTrip(req); r.status != 401 {
		t.Errorf("a disabled user: %d %s", r.status, r.reason)
	}
}

func TestASecondFactorIsAskedForAndTakenOnce(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Now())
	l := start(t, pvesim.Options{Clock: now})
	l.ok("POST", "/access/users", form("userid", "ann@pve", "password", "correct horse"), nil)
	secret, err := l.EnrollTOTP("ann@pve")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.as("")
	login := func(params ...string) (answer struct {
		Ticket  string
		NeedTFA int
	}, status int) {
		t.Helper()
		r := nobody.send("POST", "/access/ticket", form(append([]string{"username", "ann@pve"}, params...)...))
		if r.status == 200 {
			if err := json.Unmarshal(r.data, &answer); err != nil {
				t.Fatal(err)
			}
		}
		return answer, r.status
	}
	code := func() string { return "totp:" + pvesim.TOTP(secret, now.Now()) }
	half, status := login("password", "correct horse")
	if status != 200 || half.NeedTFA != 1 {
		t.Fatalf("the password alone: %d, %+v", status, half)
	}
	opens := func(ticket string) int {
		req := request(t, "GET", l.APIURL()+"/version")
		req.Header.Set("Cookie", "PVEAuthCookie="+ticket)
		return nobody.roundTrip(req).status
	}
	if got := opens(half.Ticket); got != 401 {
		t.Errorf("a challenge opens the API: %d", got)
	}
	if _, status := login("tfa-challenge", half.Ticket, "password", "totp:000000x"); status != 401 {
		t.Errorf("a wrong code: %d", status)
	}
	whole, status := login("tfa-challenge", half.Ticket, "password", code())
	if status != 200 || whole.NeedTFA != 0 || opens(whole.Ticket) != 200 {
		t.Errorf("the right code: %d, %+v", status, whole)
	}
	if _, status := login("tfa-challenge", half.Ticket, "password", code()); status != 401 {
		t.Errorf("the same code again: %d", status)
	}
	if renewed, status := login("password", whole.Ticket); status != 200 || renewed.NeedTFA != 0 {
		t.Errorf("a ticket as password: %d, %+v", status, renewed)
	}
	now.Step(time.Minute)
	if both, status := login("password", "correct horse", "otp", code()); status != 200 || both.NeedTFA != 0 {
		t.Errorf("password and code in one: %d, %+v", status, both)
	}
	if _, status := login("tfa-challenge", whole.Ticket, "password", code()); status != 401 {
		t.Errorf("a ticket as challenge: %d", status)
	}
}

func TestListsShowOnlyWhatTheCallerMaySee(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100"))
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "101"))
	capi := l.account("capi@pve", "/vms/101", "PVEVMUser", "/storage/local", "PVEDatastoreUser")
	count := func(path string) int {
		var list []map[string]any
		capi.ok("GET", path, nil, &list)
		return len(list)
	}
	for path, want := range map[string]int{
		"/nodes/pve1/qemu": 1, "/cluster/resources?type=vm": 1, "/nodes/pve1/storage": 1, "/storage": 1, "/access/users": 1, "/access/acl": 0,
	} {
		if got := count(path); got != want {
			t.Errorf("%s lists %d, want %d", path, got, want)
		}
	}
}
