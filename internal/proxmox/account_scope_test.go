// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// fullScope confines all there is.
func fullScope() Scope {
	return Scope{
		Pool: "capi", TemplateIDs: []int64{9000}, DiskStorages: []string{"local-lvm"}, ImageStorages: []string{"local"}, Bridges: []string{"vmbr0"},
	}
}

// scopes are those that differ in what they leave open.
var scopes = map[string]Scope{
	"everything":                   fullScope(),
	"a pool alone":                 {Pool: "capi"},
	"a pool and one for templates": {Pool: "capi", TemplatePool: "templates"},
	"templates alone":              {TemplateIDs: []int64{9000, 9001}},
	"disks alone":                  {DiskStorages: []string{"local-lvm"}},
	"images alone":                 {ImageStorages: []string{"local"}},
	"one storage for both":         {DiskStorages: []string{"local"}, ImageStorages: []string{"local"}},
	"bridges alone":                {Bridges: []string{"vmbr0", "vmbr1/100", "zone/net"}},
}

// confined is a cluster with the pools of the scopes.
func confined(t *testing.T, change ...func(*pvesim.Options)) *rig {
	t.Helper()
	r := newRig(t, change...)
	for _, pool := range []string{"capi", "templates"} {
		r.raw(http.MethodPost, "/pools", map[string]any{"poolid": pool})
	}
	return r
}

func TestAScopeIsReadBackAsItWasGranted(t *testing.T) {
	for name, scope := range scopes {
		t.Run(name, func(t *testing.T) {
			r := confined(t)
			spec := accountSpec()
			spec.Scope = scope
			r.account(spec)
			account, err := r.client().ReadAccount(t.Context(), spec)
			if err != nil || len(account.Faults) > 0 {
				t.Fatal(account.Faults, err)
			}
			for _, list := range [][]string{account.Scope.Bridges, account.Scope.DiskStorages, account.Scope.ImageStorages} {
				slices.Sort(list)
			}
			slices.Sort(account.Scope.TemplateIDs)
			if account.Permissions != LeastPrivilege || !reflect.DeepEqual(account.Scope, scope) {
				t.Errorf("read back as %s %+v, want %+v", account.Permissions, account.Scope, scope)
			}
		})
	}
}

// On each path of a machine's life the account holds what it needs, and on the
// paths outside nothing of the confined kind.
func TestAScopeGrantsWhatIsNeededInsideAndNothingOutside(t *testing.T) {
	for _, test := range []struct {
		scope, path, has, hasNot string
	}{
		{"everything", "/", "Sys.Audit", "VM.Audit Datastore.Audit SDN.Use"},
		{"everything", "/nodes/pve1", "Sys.Audit", ""},
		{"everything", "/pool/capi", "VM.Allocate VM.PowerMgmt", "VM.Clone"},
		{"everything", "/vms/9000", "VM.Clone VM.Audit", "VM.Allocate VM.Config.Options VM.PowerMgmt"},
		{"everything", "/vms/500", "", "VM.Audit VM.Allocate VM.Clone"},
		{"everything", "/storage/local", "Datastore.Allocate Datastore.AllocateTemplate", "Datastore.AllocateSpace"},
		{"everything", "/storage/local-lvm", "Datastore.AllocateSpace", "Datastore.Allocate Datastore.AllocateTemplate"},
		{"everything", "/storage/other", "", "Datastore.Audit Datastore.AllocateSpace"},
		{"everything", "/sdn/zones/localnetwork/vmbr0/100", "SDN.Use", ""},
		{"everything", "/sdn/zones/localnetwork/vmbr1", "", "SDN.Use"},
		{"a pool alone", "/pool/capi", "VM.Allocate VM.Clone", ""},
		{"a pool alone", "/storage/any", "Datastore.AllocateSpace Datastore.Allocate", ""},
		{"a pool alone", "/sdn/zones/localnetwork/vmbr7", "SDN.Use", ""},
		{"a pool and one for templates", "/pool/templates", "VM.Clone", "VM.Allocate"},
		{"templates alone", "/vms/500", "VM.Allocate", "VM.Clone"},
		{"templates alone", "/vms/9001", "VM.Clone", "VM.Allocate"},
		{"disks alone", "/storage/local-lvm", "Datastore.AllocateSpace Datastore.AllocateTemplate", ""},
		{"disks alone", "/storage/local", "Datastore.AllocateTemplate", "Datastore.AllocateSpace"},
		{"images alone", "/storage/local", "Datastore.Allocate Datastore.AllocateSpace", ""},
		{"images alone", "/storage/local-lvm", "Datastore.AllocateSpace", "Datastore.Allocate"},
		{"one storage for both", "/storage/local", "Datastore.Allocate Datastore.AllocateSpace", ""},
		{"bridges alone", "/sdn/zones/localnetwork/vmbr1/100", "SDN.Use", ""},
		{"bridges alone", "/sdn/zones/localnetwork/vmbr1/101", "", "SDN.Use"},
		{"bridges alone", "/sdn/zones/zone/net", "SDN.Use", ""},
	} {
		for _, separate := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s on %s, separation %v", test.scope, test.path, separate), func(t *testing.T) {
				r := confined(t)
				spec := accountSpec()
				spec.Scope, spec.PrivilegeSeparation = scopes[test.scope], separate
				h := r.account(spec)
				held, ok, err := r.as(spec, h.Secret).privileges(t.Context(), "", test.path)
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				if lacking := held.lacking(strings.Fields(test.has)); len(lacking) > 0 {
					t.Errorf("it lacks %v", lacking)
				}
				for _, privilege := range strings.Fields(test.hasNot) {
					if held[privilege] {
						t.Errorf("it has %s; all it has is %v", privilege, slices.Sorted(maps.Keys(held)))
					}
				}
			})
		}
	}
}

func TestRolesBelongToOneUserAlone(t *testing.T) {
	seen := map[string]string{}
	for _, user := range []string{"capi@pve", "capi-pve@pve", "capi@pve-pve", "capi@pve.vm", "capi.vm@pve", "capi@pve-vm", "Capi@pve", "a b@pve", "a\tb@pve", "a@b@pve"} {
		role := roleOf(user)
		if CheckRole(role) != nil {
			t.Errorf("%q is no role", role)
		}
		for other, whose := range seen {
			if role == other || ownRole(user, other) || ownRole(whose, role) {
				t.Errorf("%s (%s) and %s (%s) share a role", user, role, whose, other)
			}
		}
		seen[role] = user
	}
	if roleOf("capi@pve") != "CAPI-capi-pve" {
		t.Errorf("the role of capi@pve is %s", roleOf("capi@pve"))
	}
}

func TestCustomPermissionsAreGrantedAndReadBack(t *testing.T) {
	r := confined(t)
	spec := accountSpec()
	spec.Permissions = Custom
	spec.Grants = []Grant{
		{Path: "/", Role: "PVEAuditor", Propagate: false},
		{Path: "/pool/capi", Role: "PVEVMUser", Propagate: true},
		{Path: "/storage/local", Privileges: []string{"Datastore.Audit", "Datastore.AllocateSpace"}, Propagate: true},
	}
	h := r.account(spec)
	account, err := r.client().ReadAccount(t.Context(), spec)
	if err != nil || len(account.Faults) > 0 || account.Permissions != Custom || len(account.Grants) != 3 {
		t.Fatalf("%+v, %v", account, err)
	}
	for _, g := range account.Grants {
		if g.Path == "/storage/local" && (g.Role != "" || !slices.Equal(g.Privileges, []string{"Datastore.AllocateSpace", "Datastore.Audit"})) {
			t.Errorf("the privileges are read back as %+v", g)
		}
		if g.Path == "/" && g.Propagate {
			t.Errorf("%+v propagates", g)
		}
	}
	// Other grants: what only the old ones gave goes, with the role made for it.
	prior := spec
	h.Prior = &prior
	spec.Grants = []Grant{{Path: "/pool/capi", Role: "PVEVMAdmin", Propagate: true}}
	if _, err := r.client().EnsureAccount(t.Context(), spec, h, nil); err != nil {
		t.Fatal(err)
	}
	acl, err := r.client().acl(t.Context())
	if err != nil || len(acl) != 2 || acl[0].Role != "PVEVMAdmin" || len(r.sim.Summary().Roles) != 0 {
		t.Errorf("the list is %+v, the roles %v, %v", acl, r.sim.Summary().Roles, err)
	}
}

func TestWhatOthersGaveTheAccountStays(t *testing.T) {
	r := newRig(t)
	spec := accountSpec()
	h := r.account(spec)
	r.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/pool", "roles": "PVEPoolUser", "users": "capi@pve"})
	prior := spec
	h.Prior = &prior
	spec.Permissions = Article
	if _, err := r.client().EnsureAccount(t.Context(), spec, h, nil); err != nil {
		t.Fatal(err)
	}
	acl, err := r.client().acl(t.Context())
	if err != nil || !slices.ContainsFunc(acl, func(e aclEntry) bool { return e.Path == "/pool" }) || len(acl) != 9 {
		t.Errorf("the list is %+v, %v", acl, err)
	}
}

// The privileges that the least ones amount to are enough in a scope, too: a
// machine is made in the pool from a template outside, on the named storages.
func TestAConfinedAccountIsEnoughForAMachinesLife(t *testing.T) {
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			r := confined(t, func(o *pvesim.Options) { o.Release, o.Booter = release, idleGuest{} })
			r.bootable()
			template := r.make(r.spec())
			spec := accountSpec()
			spec.Scope = fullScope()
			spec.Scope.TemplateIDs = []int64{int64(template.VMID)}
			h := r.account(spec)
			c := r.as(spec, h.Secret)
			if failed, err := machine(t, c, template.VMID, "capi"); err != nil {
				t.Errorf("%s: %v", failed, err)
			}
			if failed, err := machine(t, c, template.VMID, ""); err == nil || !strings.HasSuffix(failed, "/clone") {
				t.Errorf("a machine outside of the pool: it fails at %q, %v", failed, err)
			}
			if err := c.remove(t.Context(), vmPath("pve1", template.VMID, ""), nil, nil); !isDenied(err) {
				t.Errorf("deleting the template: %v", err)
			}
		})
	}
}
