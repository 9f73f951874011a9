// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

var (
	roleCommand = regexp.MustCompile(`^pveum role add (\S+) --privs '([^']+)' \|\| pveum role modify (\S+) --append 1 --privs '([^']+)'$`)
	aclCommand  = regexp.MustCompile(`^pveum acl modify (\S+) --(users|tokens) '([^']+)' --roles (\S+)$`)
)

// carryOut does what commands for a node's shell do.
func (r *rig) carryOut(commands []string) {
	r.t.Helper()
	for _, command := range commands {
		if m := roleCommand.FindStringSubmatch(command); m != nil && m[1] == m[3] && m[2] == m[4] {
			r.raw(http.MethodPost, "/access/roles", map[string]any{"roleid": m[1], "privs": m[2]})
			continue
		}
		m := aclCommand.FindStringSubmatch(command)
		if m == nil {
			r.t.Fatalf("%q is no command that is known", command)
		}
		r.raw(http.MethodPut, "/access/acl", map[string]any{"path": m[1], m[2]: m[3], "roles": m[4]})
	}
}

// The commands that an error names grant what is missing, and take nothing away
// from what was held on the path: neither by hiding what is inherited, nor by
// forgetting that a token is held to what its user may do.
func TestTheCommandsGrantWhatIsMissingAndTakeNothingAway(t *testing.T) {
	const user, token = "ops@pve", "ops@pve!terraform"
	for _, test := range []struct {
		name, identity, path string
		privsep              bool
	}{
		{"a user on /", user, "/", false},
		{"a user below", user, "/storage/local", false},
		{"a token with its user's privileges", token, "/storage/local", false},
		{"a token with privileges of its own", token, "/storage/local", true},
		{"a token with privileges of its own on /", token, "/", true},
		{"a token on the paths of access", token, "/access/realm/pve", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			r.raw(http.MethodPost, "/access/users", map[string]any{"userid": user})
			_, err := r.sim.CreateToken(user, "terraform", test.privsep)
			if err != nil {
				t.Fatal(err)
			}
			r.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "PVEAuditor,PVEDatastoreUser", "users": user, "tokens": token})
			r.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "PVEVMUser", "users": user})
			admin := r.client()
			before := map[string]Privileges{}
			for _, who := range []string{user, token} {
				if before[who], _, err = admin.privileges(t.Context(), who, test.path); err != nil {
					t.Fatal(err)
				}
			}
			required := map[string][]string{test.path: {"Permissions.Modify", "Realm.AllocateUser", "Sys.Audit"}}
			shortages, err := admin.Shortages(t.Context(), test.identity, required)
			if err != nil || len(shortages) != 1 || strings.Join(shortages[0].Privileges, " ") != "Permissions.Modify Realm.AllocateUser" {
				t.Fatalf("%+v, %v", shortages, err)
			}
			commands := shortages[0].Commands
			if test.identity == token && !test.privsep { // its own entries count for nothing
				commands = commands[:2]
			}
			r.carryOut(commands)
			shortages, err = admin.Shortages(t.Context(), test.identity, required)
			if err != nil || len(shortages) != 0 {
				t.Errorf("after the commands %v it lacks %+v, %v", commands, shortages, err)
			}
			for who, held := range before {
				after, _, err := admin.privileges(t.Context(), who, test.path)
				if err != nil {
					t.Fatal(err)
				}
				for privilege := range held {
					if !after[privilege] {
						t.Errorf("%s has lost %s on %s by %v", who, privilege, test.path, commands)
					}
				}
			}
		})
	}
}

func TestPrivilegesThatNobodyTellsAreLeftToTheCall(t *testing.T) {
	r := newRig(t)
	c := r.limited()
	if _, err := c.Permissions(t.Context(), "root@pam", "/"); !isDenied(err) {
		t.Errorf("another one's permissions: %v", err)
	}
	if held, ok, err := c.privileges(t.Context(), "root@pam", "/"); ok || err != nil || len(held) > 0 {
		t.Errorf("%v, %v, %v", held, ok, err)
	}
}
