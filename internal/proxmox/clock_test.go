// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// wrongClock is a machine whose clock is off, and that holds leases for so long.
func wrongClock(off, lease time.Duration) func(*Config) {
	return func(c *Config) {
		c.now = func() time.Time { return time.Now().Add(off) }
		c.Lease = lease
	}
}

// Two machines whose clocks differ take up each other's unfinished work, once the
// lease on it has run out and not before.
func TestALeaseIsTheSameOnMachinesWhoseClocksDiffer(t *testing.T) {
	for _, off := range []struct{ first, second time.Duration }{{0, time.Hour}, {0, -time.Hour}, {time.Hour, 0}, {-time.Hour, 0}} {
		for _, held := range []bool{true, false} {
			lease := time.Nanosecond
			if held {
				lease = time.Minute
			}
			t.Run(fmt.Sprintf("one is off by %s, the other by %s, held %v", off.first, off.second, held), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				first := r.client(wrongClock(off.first, lease))
				r.sim.Inject(
					pvesim.Fault{Method: http.MethodPost, Path: templateCall, Task: "it breaks"},
					pvesim.Fault{Method: http.MethodPost, Path: "/access/roles", Status: 500, Message: "it breaks"},
				)
				if _, err := first.EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {}); err == nil {
					t.Fatal("the template is finished")
				}
				if _, err := first.EnsureAccount(t.Context(), accountSpec(), Holder{Instance: "first"}, nil); err == nil {
					t.Fatal("the account is finished")
				}

				// It waits for no longer than its own idea of a lease.
				second := r.client(wrongClock(off.second, 20*time.Millisecond))
				waited := false
				report := func(_ context.Context, phase, _ string) { waited = waited || phase == "waiting" }
				made, err := second.EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), report, func(Template) {})
				if err != nil || !made.Finished || waited != held {
					t.Errorf("the template is finished %v, and was waited for %v: %v", made.Finished, waited, err)
				}
				waited = false
				issued, err := second.EnsureAccount(t.Context(), accountSpec(), Holder{Instance: "second"}, report)
				if err != nil || waited != held {
					t.Errorf("the account was waited for %v: %v", waited, err)
				}
				r.oneAccount(Holder{Instance: "second", Secret: issued.Secret})
			})
		}
	}
}

// Proxmox VE judges by its own clock when a token expires, and so does who rotates
// it: the overlap is as long as was asked for, and nothing is removed before its end.
func TestARotationOverlapsWhateverTheMachinesClockSays(t *testing.T) {
	for _, off := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			r := newRig(t)
			spec := accountSpec()
			h := r.kept(spec)
			first := Issued{Name: spec.TokenName, Secret: h.Secret}
			h.Rotate, h.Overlap = true, time.Hour
			c := r.client(wrongClock(off, time.Minute))
			second, err := c.EnsureAccount(t.Context(), spec, h, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.working(spec, first)
			spec.CurrentToken = second.Name
			account, err := c.ReadAccount(t.Context(), spec)
			if err != nil || len(account.Retiring) != 1 || len(account.Expired()) > 0 {
				t.Fatalf("%+v, %v", account, err)
			}
			if left := time.Until(account.Retiring[0].Until); left < 50*time.Minute || left > 61*time.Minute {
				t.Errorf("the old token works for another %s", left)
			}
			if err := c.SweepTokens(t.Context(), account); err != nil {
				t.Fatal(err)
			}
			r.working(spec, first)

			// A token that expires in an hour is no fault, and one that has expired is.
			for expires, fault := range map[time.Duration]bool{time.Hour: false, -time.Hour: true} {
				r.raw(http.MethodPut, "/access/users/capi@pve/token/"+second.Name, map[string]any{"expire": time.Now().Add(expires).Unix()})
				account, err := c.ReadAccount(t.Context(), spec)
				if err != nil || slices.Contains(account.Faults, "token capi@pve!capi-token.2 is expired") != fault {
					t.Errorf("of a token that expires in %s the faults are %q, %v", expires, account.Faults, err)
				}
			}
		})
	}
}

// Which template is the youngest of those that have retired does not depend on the
// clock of the machine that replaced it.
func TestTheYoungestTemplateStaysWhateverTheMachinesClockSays(t *testing.T) {
	r := newRig(t)
	for n, off := range []time.Duration{24 * time.Hour, 0} {
		made := r.generation(n, func(s *TemplateSpec) { s.VMID = 9000 + n })
		c := r.client(wrongClock(off, time.Minute))
		fresh, err := c.ReadTemplate(t.Context(), made.Node, made.VMID, made.UUID)
		if err == nil {
			_, err = c.RetireTemplate(t.Context(), fresh, 1, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if names := r.names(); !slices.Equal(names, []string{"talos-1"}) {
		t.Errorf("there is %v, want the last one that retired", names)
	}
}
