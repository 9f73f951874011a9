// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// byPassword makes a client log in as root@pam.
func byPassword(c *Config) {
	c.TokenID, c.TokenSecret, c.Username, c.Password = "", "", "root@pam", pvesim.RootPassword
}

// logins counts the calls for a ticket, and those that a ticket was needed for
// and that had none, each of which Proxmox VE holds back for 3 s.
type logins struct {
	lock           sync.Mutex
	tickets, naked int
}

func (l *logins) count(r *rig) {
	r.faults.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		l.lock.Lock()
		defer l.lock.Unlock()
		switch {
		case strings.HasSuffix(req.URL.Path, ticketPath):
			l.tickets++
		case req.Header.Get("Cookie") == "":
			l.naked++
		}
		return false
	}
}

func TestATicketLoginWorksToo(t *testing.T) {
	r := newRig(t)
	c := r.client(byPassword)
	var seen logins
	seen.count(r)
	made, err := c.EnsureTemplate(t.Context(), r.spec(), "instance", nil, func(Template) {})
	if err != nil || !made.Finished {
		t.Errorf("%+v, %v", made, err)
	}
	if seen.naked > 0 || seen.tickets != 1 {
		t.Errorf("%d calls without a ticket, %d logins", seen.naked, seen.tickets)
	}
	wrong := r.client(byPassword, func(c *Config) { c.Password = "wrong" })
	if _, err := wrong.Version(t.Context()); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "root@pam") || !strings.Contains(err.Error(), "the password") {
		t.Errorf("with a wrong password: %v", err)
	}
}

func TestManyCallsAtOnceLogInOnce(t *testing.T) {
	r := newRig(t)
	c := r.client(byPassword)
	var seen logins
	seen.count(r)
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if _, err := c.acl(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if seen.naked > 0 || seen.tickets != 1 {
		t.Errorf("%d calls without a ticket, %d logins", seen.naked, seen.tickets)
	}
}

func TestATicketIsRenewedByItself(t *testing.T) {
	r := newRig(t)
	c := r.client(byPassword)
	if _, err := c.acl(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := c.login.session.Load()
	aged := *old
	aged.made = time.Now().Add(-renewAfter)
	c.login.session.Store(&aged)
	c.config.Password = "changed meanwhile" // the ticket is enough
	if _, err := c.acl(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := c.login.session.Load(); now == &aged {
		t.Error("the ticket was not renewed")
	}
}

func TestATicketThatIsRefusedIsReplacedOnce(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	r := newRig(t, func(o *pvesim.Options) { o.Clock = clock })
	c := r.client(byPassword)
	if _, err := c.acl(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.Step(3 * time.Hour) // the laptop slept
	if err := c.put(t.Context(), "/access/acl", params{"path": "/", "roles": "PVEAuditor", "users": "root@pam", "propagate": 1}, nil); err != nil {
		t.Fatal(err)
	}
	var seen logins
	seen.count(r)
	c.config.Password = "changed meanwhile"
	clock.Step(3 * time.Hour)
	if _, err := c.acl(t.Context()); !errors.Is(err, ErrDenied) {
		t.Errorf("error is %v", err)
	}
	if seen.tickets != 1 {
		t.Errorf("%d logins with a password that is wrong", seen.tickets)
	}
}

func TestASecondFactorIsGivenWhereProxmoxAsksForIt(t *testing.T) {
	for name, test := range map[string]struct {
		otp  func(right string) string
		want string // of the error
	}{
		"the right code":         {func(right string) string { return right }, ""},
		"the code with its kind": {func(right string) string { return "totp:" + right }, ""},
		"none":                   {func(string) string { return "" }, "has two-factor authentication. Give its code as otp"},
		"a wrong one":            {func(right string) string { return right[1:] + right[:1] + "0" }, "does not accept the one-time password"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			secret, err := r.sim.EnrollTOTP("root@pam")
			if err != nil {
				t.Fatal(err)
			}
			c := r.client(byPassword, func(c *Config) { c.OTP = test.otp(pvesim.TOTP(secret, time.Now())) })
			_, err = c.acl(t.Context())
			if test.want == "" && err != nil {
				t.Fatal(err)
			}
			if test.want != "" && (!errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestAOneTimePasswordIsUsedOnce(t *testing.T) {
	r := newRig(t)
	secret, err := r.sim.EnrollTOTP("root@pam")
	if err != nil {
		t.Fatal(err)
	}
	c := r.client(byPassword, func(c *Config) { c.OTP = pvesim.TOTP(secret, time.Now()) })
	if _, err := c.acl(t.Context()); err != nil {
		t.Fatal(err)
	}
	aged := *c.login.session.Load()
	aged.made = time.Now().Add(-renewAfter)
	c.login.session.Store(&aged)
	if _, err := c.acl(t.Context()); err != nil {
		t.Errorf("a ticket of a login with two factors is not renewed: %v", err)
	}
	c.login.forget()
	if _, err := c.acl(t.Context()); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "takes each once") {
		t.Errorf("error is %v", err)
	}
	// A ticket in the password's place needs no second factor.
	ticket := aged.ticket
	c = r.client(byPassword, func(c *Config) { c.Password = ticket })
	if _, err := c.acl(t.Context()); err != nil {
		t.Errorf("with a ticket as password: %v", err)
	}
}
