// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

func accountSpec() AccountSpec {
	return AccountSpec{UserID: "capi@pve", TokenName: "capi-token", Comment: "Cluster API: kmgt", Permissions: LeastPrivilege, PrivilegeSeparation: true}
}

// account makes an account, or fails the test.
func (r *rig) account(spec AccountSpec) Holder {
	r.t.Helper()
	h := Holder{Instance: uuid.NewString()}
	issued, err := r.client().EnsureAccount(r.t.Context(), spec, h, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	h.Secret = issued.Secret
	return h
}

// as is a client that works as the account.
func (r *rig) as(spec AccountSpec, secret string) *Client {
	return r.client(func(c *Config) { c.TokenID, c.TokenSecret = spec.TokenID(), secret })
}

func TestAnAccountHasExactlyThePrivilegesThatWereAskedFor(t *testing.T) {
	for _, release := range []string{"8.4", "9.2"} {
		for _, separate := range []bool{true, false} {
			t.Run(fmt.Sprintf("least privilege on %s, separation %v", release, separate), func(t *testing.T) {
				r := newRig(t, func(o *pvesim.Options) { o.Release = release })
				spec := accountSpec()
				spec.PrivilegeSeparation = separate
				h := r.account(spec)
				version, err := r.client().Version(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				held, ok, err := r.as(spec, h.Secret).privileges(t.Context(), "", "/vms/100")
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				want := allLeastPrivileges(version)
				var got []string
				for privilege := range held {
					got = append(got, privilege)
				}
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("the token has %v, want %v", got, want)
				}
			})
		}
	}
	t.Run("article", func(t *testing.T) {
		r := newRig(t)
		spec := accountSpec()
		spec.Permissions = Article
		h := r.account(spec)
		lacking, err := r.as(spec, h.Secret).lacks(t.Context(), "/storage/local", "VM.Migrate", "Datastore.Allocate", "SDN.Allocate", "Pool.Audit")
		if err != nil || len(lacking) > 0 {
			t.Errorf("the token lacks %v, %v", lacking, err)
		}
		if roles := r.sim.Summary().Roles; len(roles) > 0 {
			t.Errorf("own roles were made: %v", roles)
		}
	})
}

func accountWrites(t *testing.T) []string {
	r := newRig(t)
	r.account(accountSpec())
	return r.faults.calls()
}

func TestAnAccountWhoseRunIsKilledAtAnyWriteIsFinishedByTheNextOne(t *testing.T) {
	writes := accountWrites(t)
	if len(writes) < 4 {
		t.Fatalf("an undisturbed run writes only %v", writes)
	}
	for i, call := range writes {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s after=%v", i+1, call, after), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				ctx, kill := context.WithCancel(t.Context())
				defer kill()
				r.faults.strike(i+1, after, kill)
				if _, err := r.client().EnsureAccount(ctx, accountSpec(), Holder{Instance: uuid.NewString()}, nil); err == nil {
					t.Fatal("the killed run reports success")
				}
				r.faults.strike(0, false, nil)
				r.oneAccount(r.account(accountSpec()))
			})
		}
	}
}

func TestAnAccountWhoseAnswerGetsLostIsFinishedByItself(t *testing.T) {
	for i, call := range accountWrites(t) {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s after=%v", i+1, call, after), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.faults.strike(i+1, after, nil)
				r.oneAccount(r.account(accountSpec()))
			})
		}
	}
}

// oneAccount fails the test unless the account is all there is, and works.
func (r *rig) oneAccount(h Holder) {
	r.t.Helper()
	summary := r.sim.Summary()
	if !slices.Equal(summary.Users, []string{"capi@pve"}) || !slices.Equal(summary.Roles, []string{"CAPI-capi-pve"}) || len(summary.Tokens) != 2 {
		r.t.Errorf("there is %+v", summary)
	}
	accepted, err := r.client().CheckToken(r.t.Context(), accountSpec().TokenID(), h.Secret)
	if err != nil || !accepted {
		r.t.Errorf("the token is accepted: %v, %v", accepted, err)
	}
	account, err := r.client().ReadAccount(r.t.Context(), accountSpec())
	if err != nil || len(account.Faults) > 0 || account.Instance != h.Instance || account.Comment != accountSpec().Comment {
		r.t.Errorf("the account is %+v, %v", account, err)
	}
}

func TestAnAccountIsDeletedAsAWhole(t *testing.T) {
	for _, permissions := range []string{LeastPrivilege, Article} {
		t.Run(permissions, func(t *testing.T) {
			r := newRig(t)
			spec := accountSpec()
			spec.Permissions = permissions
			r.account(spec)
			account, err := r.client().ReadAccount(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			if kept, err := r.client().DeleteAccount(t.Context(), account, nil); err != nil || len(kept) > 0 {
				t.Fatal(kept, err)
			}
			summary := r.sim.Summary()
			acl, err := r.client().acl(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(summary.Users)+len(summary.Roles)+len(acl) > 0 || len(summary.Tokens) != 1 {
				t.Errorf("there is still %+v, ACL %+v", summary, acl)
			}
			if _, err := r.client().ReadAccount(t.Context(), spec); !kube.IsAbsent(err) {
				t.Errorf("error is %v, want a proven absence", err)
			}
		})
	}
}

func TestAUserWithOtherTokensIsKept(t *testing.T) {
	r := newRig(t)
	h := r.account(accountSpec())
	if _, err := r.sim.CreateToken("capi@pve", "other", true); err != nil {
		t.Fatal(err)
	}
	account, err := r.client().ReadAccount(t.Context(), accountSpec())
	if err != nil {
		t.Fatal(err)
	}
	kept, err := r.client().DeleteAccount(t.Context(), account, nil)
	if err != nil || !slices.Equal(kept, []string{"other"}) {
		t.Fatal(kept, err)
	}
	if summary := r.sim.Summary(); len(summary.Users) != 1 || len(summary.Roles) != 1 {
		t.Errorf("there is %+v", summary)
	}
	if accepted, err := r.client().CheckToken(t.Context(), accountSpec().TokenID(), h.Secret); err != nil || accepted {
		t.Errorf("the deleted token is accepted: %v, %v", accepted, err)
	}
}

func TestNothingIsAdoptedSilently(t *testing.T) {
	tests := []struct {
		name string
		set  func(*rig)
		want string
	}{
		{"a user of somebody else", func(r *rig) {
			r.raw(http.MethodPost, "/access/users", map[string]any{"userid": "capi@pve", "enable": 1, "comment": "mine"})
		}, "was not made by this provider"},
		{"an account that is in another state", func(r *rig) {
			r.account(accountSpec())
			account, err := r.client().ReadAccount(r.t.Context(), accountSpec())
			if err == nil {
				err = r.client().KeepAccount(r.t.Context(), account)
			}
			if err != nil {
				r.t.Fatal(err)
			}
		}, "belongs to another resource of this provider"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			tt.set(r)
			before := fmt.Sprint(r.sim.Summary())
			r.faults.strike(0, false, nil)
			_, err := r.client().EnsureAccount(t.Context(), accountSpec(), Holder{Instance: uuid.NewString()}, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
			if calls := r.faults.calls(); len(calls) > 0 || fmt.Sprint(r.sim.Summary()) != before {
				t.Errorf("something was written: %v", calls)
			}
		})
	}
}

func TestAForeignTokenOfAnOwnUserIsNotReplaced(t *testing.T) {
	r := newRig(t)
	spec := accountSpec()
	h := r.account(spec)
	if _, err := r.sim.CreateToken("capi@pve", "second", true); err != nil {
		t.Fatal(err)
	}
	spec.TokenName = "second"
	_, err := r.client().EnsureAccount(t.Context(), spec, h, nil)
	if err == nil || !strings.Contains(err.Error(), "pveum user token delete capi@pve second") {
		t.Errorf("error is %v", err)
	}
}

func TestFaultsOfAnAccountAreFoundAndRepaired(t *testing.T) {
	tests := []struct {
		name   string
		breaks func(*rig)
		want   string
		// renewed says that the repair needs a new secret.
		renewed bool
	}{
		{"disabled user", func(r *rig) { r.raw(http.MethodPut, "/access/users/capi@pve", map[string]any{"enable": 0}) }, "user capi@pve is disabled", false},
		{"a privilege taken from the role", func(r *rig) {
			r.raw(http.MethodPut, "/access/roles/CAPI-capi-pve", map[string]any{"privs": "VM.Audit"})
		}, "the role CAPI-capi-pve lacks", false},
		{"the user's entry gone", func(r *rig) {
			r.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "CAPI-capi-pve", "users": "capi@pve", "delete": 1})
		}, "user capi@pve has not the role", false},
		{"token's entry gone", func(r *rig) {
			r.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "CAPI-capi-pve", "tokens": "capi@pve!capi-token", "delete": 1})
		}, "token capi@pve!capi-token has not the role", false},
		{"expired token", func(r *rig) {
			r.raw(http.MethodPut, "/access/users/capi@pve/token/capi-token", map[string]any{"expire": 1})
		}, "is expired", false},
		{"the token's comment gone, and its mark with it", func(r *rig) {
			r.raw(http.MethodPut, "/access/users/capi@pve/token/capi-token", map[string]any{"comment": ""})
		}, "the comment of token capi@pve!capi-token", false},
		{"the user's comment is another one, without the mark", func(r *rig) {
			r.raw(http.MethodPut, "/access/users/capi@pve", map[string]any{"comment": "do not touch"})
		}, "the comment of user capi@pve has lost this provider's mark", false},
		{"a privilege added to the role", func(r *rig) {
			r.raw(http.MethodPut, "/access/roles/CAPI-capi-pve", map[string]any{"privs": "VM.Migrate", "append": 1})
		}, "has VM.Migrate, which it is not to have", false},
		{"token gone", func(r *rig) {
			r.raw(http.MethodDelete, "/access/users/capi@pve/token/capi-token", nil)
		}, "token capi@pve!capi-token is gone", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			h := r.account(accountSpec())
			tt.breaks(r)
			account, err := r.client().ReadAccount(t.Context(), accountSpec())
			if err != nil || !strings.Contains(strings.Join(account.Faults, "\n"), tt.want) {
				t.Fatalf("faults are %q, %v, want %q", account.Faults, err, tt.want)
			}
			issued, err := r.client().EnsureAccount(t.Context(), accountSpec(), h, nil)
			if err != nil {
				t.Fatal(err)
			}
			if (issued.Secret != h.Secret) != tt.renewed {
				t.Errorf("the secret is new: %v, want %v", issued.Secret != h.Secret, tt.renewed)
			}
			h.Secret = issued.Secret
			r.oneAccount(h)
		})
	}
}

func TestARefusedTokenIsMadeAgainOnDemand(t *testing.T) {
	r := newRig(t)
	h := r.account(accountSpec())
	account, err := r.client().ReadAccount(t.Context(), accountSpec())
	if err == nil {
		err = r.client().KeepAccount(t.Context(), account)
	}
	if err != nil {
		t.Fatal(err)
	}
	old := h.Secret
	h.Remake = true
	issued, err := r.client().EnsureAccount(t.Context(), accountSpec(), h, nil)
	if err != nil || issued.Secret == old {
		t.Fatalf("the secret is new: %v, %v", issued.Secret != old, err)
	}
	h.Secret = issued.Secret
	r.oneAccount(h)
}

func TestPermissionsChangeInPlace(t *testing.T) {
	r := newRig(t)
	spec := accountSpec()
	h := r.account(spec)
	change := func(change func(*AccountSpec)) []aclEntry {
		t.Helper()
		prior := spec
		h.Prior = &prior
		change(&spec)
		issued, err := r.client().EnsureAccount(t.Context(), spec, h, nil)
		if err != nil || issued.Secret != h.Secret {
			t.Fatalf("the secret is the same: %v, %v", issued.Secret == h.Secret, err)
		}
		account, err := r.client().ReadAccount(t.Context(), spec)
		if err != nil || len(account.Faults) > 0 || account.Permissions != spec.Permissions || account.PrivilegeSeparation != spec.PrivilegeSeparation || account.Comment != spec.Comment {
			t.Errorf("the account is %+v, %v", account, err)
		}
		acl, err := r.client().acl(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return acl
	}
	if acl := change(func(s *AccountSpec) { s.Permissions = Article }); len(acl) != 8 {
		t.Errorf("ACL is %+v, want the four roles for user and token", acl)
	}
	if roles := r.sim.Summary().Roles; len(roles) > 0 {
		t.Errorf("the role is left: %v", roles)
	}
	if acl := change(func(s *AccountSpec) { s.PrivilegeSeparation = false }); len(acl) != 4 {
		t.Errorf("ACL is %+v, want the user's four roles", acl)
	}
	if acl := change(func(s *AccountSpec) { s.Permissions, s.PrivilegeSeparation = LeastPrivilege, true }); len(acl) != 2 {
		t.Errorf("ACL is %+v, want one role for user and token", acl)
	}
	change(func(s *AccountSpec) { s.Comment = "other" })
	change(func(s *AccountSpec) { s.Comment = "" })
}

func TestTheRealmIsCheckedAndPrivilegesAreNamed(t *testing.T) {
	r := newRig(t)
	spec := accountSpec()
	spec.UserID = "capi@nope"
	if _, err := r.client().EnsureAccount(t.Context(), spec, Holder{Instance: uuid.NewString()}, nil); err == nil || !strings.Contains(err.Error(), `the realm "nope"`) {
		t.Errorf("error is %v", err)
	}
	_, err := r.limited().EnsureAccount(t.Context(), accountSpec(), Holder{Instance: uuid.NewString()}, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"/access/realm/pve: Realm.AllocateUser", "/access/groups: User.Modify", "Permissions.Modify", "/access: Sys.Modify", "pveum acl modify"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error has no %q: %v", want, err)
		}
	}
}

func TestAnUnfinishedAccountIsWaitedFor(t *testing.T) {
	r := newRig(t)
	r.account(accountSpec())
	m := mark{Kind: "user", Instance: "other", State: stateMade, Until: time.Now().Unix() + 2}
	r.raw(http.MethodPut, "/access/users/capi@pve", map[string]any{"comment": m.String()})
	waited := 0
	second := r.client(func(c *Config) { c.Lease = 30 * time.Second })
	issued, err := second.EnsureAccount(t.Context(), accountSpec(), Holder{Instance: "mine"}, func(_ context.Context, phase, _ string) {
		if phase == "waiting" {
			waited++
		}
	})
	if err != nil || waited == 0 {
		t.Fatalf("waited %d times, %v", waited, err)
	}
	r.oneAccount(Holder{Instance: "mine", Secret: issued.Secret})
}

// What the documentation says that the provider's own login needs is enough, and
// none of it can be left out.
func TestTheDocumentedPrivilegesOfTheAdministratorAreEnough(t *testing.T) {
	needs := map[string]string{"/access/realm/pve": "Realm.AllocateUser", "/access/groups": "User.Modify", "/access": "Sys.Modify", "/": "Permissions.Modify"}
	for _, without := range []string{"", "/access/realm/pve", "/access/groups", "/access", "/"} {
		t.Run("without "+without, func(t *testing.T) {
			r := confined(t)
			r.raw(http.MethodPost, "/access/users", map[string]any{"userid": "ops@pve"})
			secret, err := r.sim.CreateToken("ops@pve", "terraform", false)
			if err != nil {
				t.Fatal(err)
			}
			for path, privilege := range needs {
				if path == without {
					privilege = "Mapping.Audit"
				}
				role := "Ops" + strings.ReplaceAll(path, "/", "-")
				r.raw(http.MethodPost, "/access/roles", map[string]any{"roleid": role, "privs": privilege})
				r.raw(http.MethodPut, "/access/acl", map[string]any{"path": path, "roles": role, "users": "ops@pve"})
			}
			ops := r.client(func(c *Config) { c.TokenID, c.TokenSecret = "ops@pve!terraform", secret })
			spec := accountSpec()
			spec.Scope = fullScope()
			h := Holder{Instance: uuid.NewString()}
			issued, err := ops.EnsureAccount(t.Context(), spec, h, nil)
			if without != "" {
				if err == nil || !strings.Contains(err.Error(), "on "+without+": "+needs[without]) || !strings.Contains(err.Error(), "nothing was made") {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			h.Secret, h.Rotate = issued.Secret, true
			if issued, err = ops.EnsureAccount(t.Context(), spec, h, nil); err != nil {
				t.Fatal(err)
			}
			spec.CurrentToken = issued.Name
			account, err := ops.ReadAccount(t.Context(), spec)
			if err != nil || len(account.Faults) > 0 {
				t.Fatal(account.Faults, err)
			}
			if kept, err := ops.DeleteAccount(t.Context(), account, nil); err != nil || len(kept) > 0 {
				t.Fatal(kept, err)
			}
			if s := r.sim.Summary(); len(s.Users) != 1 || len(s.Roles) != len(needs) {
				t.Errorf("there is %+v", s)
			}
		})
	}
}
