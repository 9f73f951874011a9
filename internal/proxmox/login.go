// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// renewAfter is the age at which a ticket, which is good for two hours, is
// exchanged for a new one.
const renewAfter = time.Hour

// session is a ticket of Proxmox VE and what goes with it.
type session struct {
	username, ticket, csrf string
	made                   time.Time
}

// login is the state of a client that works with a password. The library's own
// sessions are not used: it tries each first call without one, which Proxmox VE
// takes 3 s to refuse, it knows no second factor but the immediate TOTP, and it
// repeats a refused write.
type login struct {
	lock sync.Mutex
	// spent says that the one-time password was used.
	spent   bool
	session atomic.Pointer[session]
}

const ticketPath = "/access/ticket"

// sign adds the ticket to a request.
func (l *login) sign(r *http.Request) error {
	if s := l.session.Load(); s != nil && !strings.HasSuffix(r.URL.Path, ticketPath) {
		r.Header.Set("Cookie", "PVEAuthCookie="+s.ticket)
		r.Header.Set("CSRFPreventionToken", s.csrf)
	}
	return nil
}

// forget drops a ticket that was refused, once: a second refusal is one of the
// user. It answers whether there was one to drop.
func (l *login) forget() bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.session.Swap(nil) != nil
}

// ensureLogin gets a ticket before the first call of a client without a token,
// and renews it before it runs out. A ticket renews itself, so that a second
// factor is asked for once.
func (c *Client) ensureLogin(ctx context.Context) error {
	if c.config.TokenID != "" {
		return nil
	}
	l := &c.login
	l.lock.Lock()
	defer l.lock.Unlock()
	old := l.session.Load()
	if old != nil && time.Since(old.made) < renewAfter {
		return nil
	}
	if old != nil {
		if renewed, err := c.requestTicket(ctx, params{"username": old.username, "password": old.ticket}); err == nil && !renewed.NeedTFA {
			l.session.Store(renewed.session())
			return nil
		}
	}
	fresh, err := c.logIn(ctx)
	if err != nil {
		return err
	}
	l.session.Store(fresh)
	return nil
}

// ticketAnswer is the answer of POST /access/ticket.
type ticketAnswer struct {
	Username string `json:"username"`
	Ticket   string `json:"ticket"`
	CSRF     string `json:"CSRFPreventionToken"`
	NeedTFA  truth  `json:"NeedTFA"`
}

func (a ticketAnswer) session() *session {
	return &session{username: a.Username, ticket: a.Ticket, csrf: a.CSRF, made: time.Now()}
}

func (c *Client) requestTicket(ctx context.Context, body params) (ticketAnswer, error) {
	var answer ticketAnswer
	err := c.api.Post(ctx, ticketPath, body.body(), &answer)
	return answer, err
}

// errSecondFactor is a login that lacks its second factor, or whose one-time
// password was taken already.
var errSecondFactor = errors.New("a second factor is needed")

// logIn logs in with the password and, where Proxmox VE asks for it, the second
// factor: the first answer is a challenge then, which goes back with the code.
func (c *Client) logIn(ctx context.Context) (*session, error) {
	answer, err := c.requestTicket(ctx, params{"username": c.config.Username, "password": c.config.Password})
	if err != nil {
		return nil, err
	}
	if !answer.NeedTFA {
		return answer.session(), nil
	}
	if c.config.OTP == "" {
		return nil, fmt.Errorf("%w: the user %s has two-factor authentication. Give its code as otp (PROXMOX_OTP), or better an API token, which needs none",
			errSecondFactor, c.config.Username)
	}
	if c.login.spent {
		return nil, fmt.Errorf("%w: the one-time password of %s was used by an earlier login, and Proxmox VE takes each once. Start again with a fresh otp, "+
			"or better use an API token, which needs none", errSecondFactor, c.config.Username)
	}
	code := c.config.OTP
	if !strings.Contains(code, ":") {
		code = "totp:" + code
	}
	second, err := c.requestTicket(ctx, params{"username": c.config.Username, "tfa-challenge": answer.Ticket, "password": code})
	if judge(err) != unsent {
		c.login.spent = true
	}
	if isDenied(err) {
		return nil, fmt.Errorf("%w: Proxmox VE does not accept the one-time password of %s. A code is good for half a minute and for one login; "+
			"a plan and an apply log in one after the other: %w", errSecondFactor, c.config.Username, err)
	}
	if err != nil {
		return nil, err
	}
	if second.NeedTFA {
		return nil, fmt.Errorf("%w: Proxmox VE asks for another second factor of %s than a one-time password", errSecondFactor, c.config.Username)
	}
	return second.session(), nil
}
