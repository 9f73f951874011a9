// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"crypto/hmac"
	"crypto/sha1" // what authenticator applications use
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// principal is who makes a call: a user, or one of its tokens.
type principal struct {
	user, token string
}

const superuser = "root@pam"

// String is Proxmox VE's notation, "user@realm" or "user@realm!token".
func (p principal) String() string {
	if p.token == "" {
		return p.user
	}
	return p.user + "!" + p.token
}

func (p principal) root() bool { return p.user == superuser && p.token == "" }

func parsePrincipal(s string) principal {
	u, t, _ := strings.Cut(s, "!")
	return principal{user: u, token: t}
}

// ticketLifetime is how long a ticket is good for, in seconds.
const ticketLifetime = 2 * 60 * 60

// authenticate finds out who calls.
func (c *call) authenticate() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.request.Header.Get("Authorization"); h != "" {
		if cred, ok := strings.CutPrefix(h, "PVEAPIToken="); ok {
			return c.byToken(cred)
		}
	}
	cookie, err := c.request.Cookie("PVEAuthCookie")
	if err != nil || cookie.Value == "" {
		return unauthorized("No ticket")
	}
	ticket, err := url.PathUnescape(cookie.Value)
	if err != nil {
		ticket = cookie.Value
	}
	return c.byTicket(ticket)
}

// authFailure hides what was wrong since 9.2; releases before say it.
func (s *Simulator) authFailure(format string, args ...any) error {
	if s.release.atLeast(9, 2) {
		return unauthorized("Authentication failed!")
	}
	return unauthorized(fmt.Sprintf(format, args...))
}

func (c *call) byToken(cred string) error {
	full, secret, _ := strings.Cut(cred, "=")
	who := parsePrincipal(full)
	u := c.state.Users[who.user]
	if u == nil {
		return c.authFailure("no such user ('%s')", who.user)
	}
	if err := c.usable(who.user, u); err != nil {
		return err
	}
	t := u.Tokens[who.token]
	if t == nil {
		return c.authFailure("no such token '%s' for user '%s'", who.token, who.user)
	}
	if t.Expire != 0 && t.Expire < c.opts.Clock.Now().Unix() {
		return c.authFailure("token '%s' access expired", full)
	}
	if subtle.ConstantTimeCompare(t.Hash, tokenHash(secret)) != 1 {
		return c.authFailure("invalid token value!")
	}
	c.who = who
	return nil
}

// usable refuses disabled and expired users.
func (s *Simulator) usable(name string, u *user) error {
	if !u.Enable {
		return s.authFailure("user '%s' is disabled", name)
	}
	if u.Expire != 0 && u.Expire < s.opts.Clock.Now().Unix() {
		return s.authFailure("user '%s' access expired", name)
	}
	return nil
}

func (c *call) byTicket(ticket string) error {
	name, challenge, ok := c.verifyTicket(ticket)
	if !ok || challenge {
		return c.authFailure("permission denied - invalid PVE ticket")
	}
	u := c.state.Users[name]
	if u == nil {
		return c.authFailure("no such user ('%s')", name)
	}
	if err := c.usable(name, u); err != nil {
		return err
	}
	c.who = principal{user: name}
	// Uploads come out of a form and carry no token.
	if c.request.Method != http.MethodGet && (c.endpoint == nil || !c.endpoint.upload) {
		got := c.request.Header.Get("CSRFPreventionToken")
		if subtle.ConstantTimeCompare([]byte(got), []byte(c.csrfToken(name))) != 1 {
			return unauthorized("Permission denied - invalid csrf token")
		}
	}
	return nil
}

// newTicket signs name and time: "PVE:user@realm:HEXTIME::signature".
func (s *Simulator) newTicket(name string) string {
	plain := fmt.Sprintf("PVE:%s:%08X", name, s.opts.Clock.Now().Unix())
	return plain + "::" + s.sign(plain)
}

// newChallenge is the ticket of a user whose second factor is still to come. It
// opens nothing, and does not name the user, who is part of what is signed.
func (s *Simulator) newChallenge(name string) string {
	plain := fmt.Sprintf("PVE:!tfa!%s:%08X", url.QueryEscape(`{"totp":true,"recovery":"unavailable"}`), s.opts.Clock.Now().Unix())
	return plain + "::" + s.sign(plain+":"+name)
}

// verifyTicket answers whose ticket it is, and whether it is a challenge alone.
func (s *Simulator) verifyTicket(ticket string) (name string, challenge, ok bool) {
	plain, sig, found := strings.Cut(ticket, "::")
	parts := strings.Split(plain, ":")
	if !found || len(parts) != 3 || parts[0] != "PVE" {
		return "", false, false
	}
	made, err := strconv.ParseInt(parts[2], 16, 64)
	if err != nil || s.opts.Clock.Now().Unix()-made > ticketLifetime {
		return "", false, false
	}
	signed := func(text string) bool { return subtle.ConstantTimeCompare([]byte(sig), []byte(s.sign(text))) == 1 }
	if !strings.HasPrefix(parts[1], "!tfa!") {
		return parts[1], false, signed(plain)
	}
	for name := range s.state.Users {
		if signed(plain + ":" + name) {
			return name, true, true
		}
	}
	return "", false, false
}

func (s *Simulator) csrfToken(name string) string { return s.sign("csrf:" + name) }

func (s *Simulator) sign(text string) string {
	mac := hmac.New(sha256.New, s.state.AuthKey)
	mac.Write([]byte(text))
	return base64.RawStdEncoding.EncodeToString(mac.Sum(nil))
}

// totpStep is how long a one-time password is good for, in seconds (RFC 6238).
const totpStep = 30

// TOTP answers the one-time password of a secret at a time, as an authenticator
// application shows it: RFC 6238 with SHA-1 and six digits.
func TOTP(secret []byte, at time.Time) string { return totp(secret, at.Unix()/totpStep) }

func totp(secret []byte, counter int64) string {
	mac := hmac.New(sha1.New, secret)
	_ = binary.Write(mac, binary.BigEndian, counter)
	sum := mac.Sum(nil)
	at := sum[len(sum)-1] & 0xf
	return fmt.Sprintf("%06d", (binary.BigEndian.Uint32(sum[at:])&0x7fffffff)%1_000_000)
}

// EnrollTOTP gives a user a second factor and answers its secret.
func (s *Simulator) EnrollTOTP(userid string) (secret []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.state.Users[userid]
	if u == nil {
		return nil, die("no such user ('%s')", userid)
	}
	u.TOTP = randomBytes(20)
	s.save()
	return u.TOTP, nil
}

// secondFactorOK checks an answer such as "totp:123456": the code of now or one
// step to either side, each once.
func (s *Simulator) secondFactorOK(u *user, answer string) bool {
	code, ok := strings.CutPrefix(answer, "totp:")
	if !ok {
		return false
	}
	now := s.opts.Clock.Now().Unix() / totpStep
	for counter := now - 1; counter <= now+1; counter++ {
		if counter > u.TOTPUsed && subtle.ConstantTimeCompare([]byte(code), []byte(totp(u.TOTP, counter))) == 1 {
			u.TOTPUsed = counter
			return true
		}
	}
	return false
}

// passwordOK checks a login.
func (s *Simulator) passwordOK(name, password string) bool {
	u := s.state.Users[name]
	if u == nil || !u.Enable || u.Expire != 0 && u.Expire < s.opts.Clock.Now().Unix() {
		return false
	}
	if name == superuser {
		return subtle.ConstantTimeCompare([]byte(password), []byte(s.opts.RootPassword)) == 1
	}
	return u.Password != nil && bcrypt.CompareHashAndPassword(u.Password, []byte(password)) == nil
}
