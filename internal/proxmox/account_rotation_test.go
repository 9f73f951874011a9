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

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// kept is an account that its state knows.
func (r *rig) kept(spec AccountSpec) Holder {
	r.t.Helper()
	h := r.account(spec)
	account, err := r.client().ReadAccount(r.t.Context(), spec)
	if err == nil {
		err = r.client().KeepAccount(r.t.Context(), account)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

// accepted says whether Proxmox VE takes a token.
func (r *rig) accepted(user string, token Issued) bool {
	r.t.Helper()
	ok, err := r.client().CheckToken(r.t.Context(), user+"!"+token.Name, token.Secret)
	if err != nil {
		r.t.Fatal(err)
	}
	return ok
}

// working fails the test unless the token is accepted and has its privileges.
func (r *rig) working(spec AccountSpec, token Issued) {
	r.t.Helper()
	spec.CurrentToken = token.Name
	version, err := r.client().Version(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	lacking, err := r.as(spec, token.Secret).lacks(r.t.Context(), "/vms/100", allLeastPrivileges(version)...)
	if err != nil || len(lacking) > 0 {
		r.t.Errorf("token %s lacks %v, %v", token.Name, lacking, err)
	}
}

func TestARotationOverlaps(t *testing.T) {
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			r := newRig(t, func(o *pvesim.Options) { o.Release = release })
			spec := accountSpec()
			h := r.kept(spec)
			first := Issued{Name: spec.TokenName, Secret: h.Secret}
			h.Rotate, h.Overlap = true, time.Hour
			second, err := r.client().EnsureAccount(t.Context(), spec, h, nil)
			if err != nil {
				t.Fatal(err)
			}
			if second.Name != "capi-token.2" || second.Secret == first.Secret {
				t.Errorf("the new token is %s", second.Name)
			}
			r.working(spec, first)
			r.working(spec, second)
			spec.CurrentToken = second.Name
			account, err := r.client().ReadAccount(t.Context(), spec)
			if err != nil || len(account.Faults) > 0 || len(account.Retiring) != 1 || account.Retiring[0].Name != first.Name {
				t.Fatalf("%+v, %v", account, err)
			}
			if left := time.Until(account.Retiring[0].Until); left < 50*time.Minute || left > time.Hour {
				t.Errorf("the old token works for another %s", left)
			}
			if err := r.client().SweepTokens(t.Context(), account); err != nil {
				t.Fatal(err)
			}
			r.working(spec, first) // what still works is not removed

			// The overlap ends: Proxmox VE refuses the old token, and the sweep removes it.
			r.raw(http.MethodPut, "/access/users/capi@pve/token/capi-token", map[string]any{"expire": 1})
			if r.accepted(spec.UserID, first) {
				t.Error("an expired token is accepted")
			}
			if account, err = r.client().ReadAccount(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			if err := r.client().SweepTokens(t.Context(), account); err != nil {
				t.Fatal(err)
			}
			if tokens := r.sim.Summary().Tokens; !slices.Equal(tokens, []string{"capi@pve!capi-token.2", "root@pam!terraform"}) {
				t.Errorf("the tokens are %v", tokens)
			}
			// The next one takes the name that has become free.
			h.Secret = second.Secret
			third, err := r.client().EnsureAccount(t.Context(), spec, h, nil)
			if err != nil || third.Name != "capi-token" {
				t.Errorf("the third token is %s, %v", third.Name, err)
			}
			// All of them go with the account.
			spec.CurrentToken = third.Name
			if account, err = r.client().ReadAccount(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			if kept, err := r.client().DeleteAccount(t.Context(), account, nil); err != nil || len(kept) > 0 || len(r.sim.Summary().Tokens) != 1 {
				t.Errorf("left: %v, %+v, %v", kept, r.sim.Summary(), err)
			}
		})
	}
}

func TestARotationWithoutOverlapDeletesTheOldToken(t *testing.T) {
	r := newRig(t)
	spec := accountSpec()
	h := r.kept(spec)
	h.Rotate = true
	issued, err := r.client().EnsureAccount(t.Context(), spec, h, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.working(spec, issued)
	if tokens := r.sim.Summary().Tokens; !slices.Equal(tokens, []string{"capi@pve!capi-token.2", "root@pam!terraform"}) {
		t.Errorf("the tokens are %v", tokens)
	}
}

func TestARetiringTokenNeverWorksLongerThanBefore(t *testing.T) {
	r := newRig(t)
	spec := accountSpec()
	spec.Expire = time.Now().Add(10 * time.Minute).Truncate(time.Second)
	h := r.kept(spec)
	h.Rotate, h.Overlap = true, 24*time.Hour
	issued, err := r.client().EnsureAccount(t.Context(), spec, h, nil)
	if err != nil {
		t.Fatal(err)
	}
	was := spec.Expire
	spec.CurrentToken = issued.Name
	account, err := r.client().ReadAccount(t.Context(), spec)
	if err != nil || len(account.Retiring) != 1 || !account.Retiring[0].Until.Equal(was) {
		t.Errorf("%+v, %v", account.Retiring, err)
	}
}

func TestExpiryAndCommentChangeInPlace(t *testing.T) {
	r := newRig(t)
	spec := accountSpec()
	h := r.kept(spec)
	for name, change := range map[string]func(){
		"an expiry":         func() { spec.Expire = time.Now().Add(time.Hour).Truncate(time.Second) },
		"another expiry":    func() { spec.Expire = time.Now().Add(2 * time.Hour).Truncate(time.Second) },
		"no expiry":         func() { spec.Expire = time.Time{} },
		"another comment":   func() { spec.Comment = "other" },
		"no comment at all": func() { spec.Comment = "" },
	} {
		change()
		issued, err := r.client().EnsureAccount(t.Context(), spec, h, nil)
		if err != nil || issued.Secret != h.Secret {
			t.Fatalf("%s: the secret is the same: %v, %v", name, issued.Secret == h.Secret, err)
		}
		account, err := r.client().ReadAccount(t.Context(), spec)
		if err != nil || len(account.Faults) > 0 || account.Comment != spec.Comment || !account.Expire.Equal(spec.Expire) {
			t.Errorf("%s: %+v, %v", name, account, err)
		}
		r.working(spec, issued)
	}
}

// A run that is killed at any write of a rotation is followed by one that knows
// nothing of it: there is one new token in the end, and the old one runs out.
func TestARotationThatIsKilledAtAnyWriteIsFinishedByTheNextOne(t *testing.T) {
	for _, release := range []string{"8.4", "9.2"} {
		writes := 0
		for i := 0; i == 0 || i <= writes; i++ {
			for _, after := range []bool{false, true} {
				r := newRig(t, func(o *pvesim.Options) { o.Release = release })
				spec := accountSpec()
				h := r.kept(spec)
				h.Rotate, h.Overlap = true, time.Hour
				first := Issued{Name: spec.TokenName, Secret: h.Secret}
				ctx, kill := context.WithCancel(t.Context())
				r.faults.strike(i, after, kill)
				_, err := r.client().EnsureAccount(ctx, spec, h, nil)
				if i == 0 {
					writes = len(r.faults.calls())
					kill()
					continue
				}
				t.Run(fmt.Sprintf("%s, write %d of %d, carried out %v", release, i, writes, after), func(t *testing.T) {
					if err == nil {
						t.Fatal("the killed run reports success")
					}
					r.t = t
					r.faults.strike(0, false, nil)
					r.working(spec, first)
					issued, err := r.client().EnsureAccount(t.Context(), spec, h, nil)
					if err != nil {
						t.Fatal(err)
					}
					r.working(spec, issued)
					if tokens := r.sim.Summary().Tokens; issued.Name != "capi-token.2" || !slices.Equal(tokens, []string{"capi@pve!capi-token", "capi@pve!capi-token.2", "root@pam!terraform"}) {
						t.Errorf("the token is %s, all are %v", issued.Name, tokens)
					}
				})
				kill()
			}
		}
	}
}

func TestARotationThatIsTakenBackKeepsTheOldToken(t *testing.T) {
	r := newRig(t)
	spec := accountSpec()
	h := r.kept(spec)
	rotating := h
	rotating.Rotate, rotating.Overlap = true, time.Hour
	if _, err := r.client().EnsureAccount(t.Context(), spec, rotating, nil); err != nil {
		t.Fatal(err)
	}
	// The run was killed before its state was written, and the trigger taken back.
	account, err := r.client().ReadAccount(t.Context(), spec)
	if err != nil || !strings.Contains(strings.Join(account.Faults, ""), "retired by a rotation that did not come to its end") {
		t.Fatalf("the faults are %q, %v", account.Faults, err)
	}
	issued, err := r.client().EnsureAccount(t.Context(), spec, h, nil)
	if err != nil || issued.Secret != h.Secret {
		t.Fatal(err)
	}
	if account, err = r.client().ReadAccount(t.Context(), spec); err != nil || len(account.Faults) > 0 || !account.Expire.IsZero() {
		t.Errorf("%+v, %v", account, err)
	}
}

func TestATokenIsFoundForAnImportAfterARotation(t *testing.T) {
	r := newRig(t)
	spec := accountSpec()
	h := r.kept(spec)
	h.Rotate, h.Overlap = true, time.Hour
	if _, err := r.client().EnsureAccount(t.Context(), spec, h, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"capi-token", "capi-token.2"} {
		if asked, current, err := r.client().FindToken(t.Context(), "capi@pve", name); err != nil || asked != "capi-token" || current != "capi-token.2" {
			t.Errorf("%s: %s, %s, %v", name, asked, current, err)
		}
	}
	for _, name := range []string{"other", "capi-token.3"} {
		if _, _, err := r.client().FindToken(t.Context(), "capi@pve", name); !kube.IsAbsent(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := r.client().FindToken(t.Context(), "nobody@pve", "capi-token"); !kube.IsAbsent(err) {
		t.Errorf("error is %v", err)
	}
}

// The most calls are those of a confined account.
func TestAConfinedAccountWhoseRunIsKilledAtAnyWriteIsFinishedByTheNextOne(t *testing.T) {
	spec := accountSpec()
	spec.Scope = fullScope()
	undisturbed := confined(t)
	undisturbed.faults.strike(0, false, nil)
	undisturbed.account(spec)
	writes := undisturbed.faults.calls()
	if len(writes) < 12 {
		t.Fatalf("an undisturbed run writes only %v", writes)
	}
	for i, call := range writes {
		t.Run(fmt.Sprintf("%d %s", i+1, call), func(t *testing.T) {
			t.Parallel()
			r := confined(t)
			ctx, kill := context.WithCancel(t.Context())
			defer kill()
			r.faults.strike(i+1, true, kill)
			if _, err := r.client().EnsureAccount(ctx, spec, Holder{Instance: "first"}, nil); err == nil {
				t.Fatal("the killed run reports success")
			}
			r.faults.strike(0, false, nil)
			// The next run is of another mind, and finds nothing left of the first.
			other := spec
			other.Scope = Scope{Pool: "templates"}
			h := r.account(other)
			account, err := r.client().ReadAccount(t.Context(), other)
			if err != nil || len(account.Faults) > 0 || account.Scope.Pool != "templates" {
				t.Errorf("%+v, %v", account, err)
			}
			acl, err := r.client().acl(t.Context())
			version, _ := r.client().Version(t.Context())
			if want := other.entries(version); err != nil || len(acl) != len(want) {
				t.Errorf("the list is %+v, want %+v", acl, want)
			}
			if r.sim.Summary().Tokens[0] != other.TokenID() || !r.accepted(other.UserID, Issued{other.TokenName, h.Secret}) {
				t.Error("the token does not work")
			}
		})
	}
}
