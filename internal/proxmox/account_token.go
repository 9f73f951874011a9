// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

func tokenPath(user, token string) string {
	return userPath(user) + "/token/" + url.PathEscape(token)
}

// markOf is a token's mark; that of no token is empty.
func markOf(token tokenInfo) mark {
	m, _, _ := splitMark(token.Comment)
	return m
}

// readToken takes over how the token in use stands.
func (a *Account) readToken(token tokenInfo) {
	a.TokenThere = true
	tokenMark, comment, marked := splitMark(token.Comment)
	a.tokenMark = tokenMark
	if a.Instance != "" && (!marked || comment != a.Comment) {
		a.fault("the comment of token %s is not that of its user", a.TokenID())
	}
	a.PrivilegeSeparation = bool(token.Privsep)
	if token.Expire != 0 {
		a.Expire = time.Unix(token.Expire, 0).UTC()
	}
	if a.tokenMark.State == stateRetired {
		a.fault("token %s was retired by a rotation that did not come to its end", a.TokenID())
		return
	}
	if token.Expire != 0 && token.Expire <= a.asOf.Unix() {
		a.fault("token %s is expired", a.TokenID())
	}
}

// readTokens sorts the user's other tokens: retired ones of the account, left
// ones of its interrupted rotations, which count as retired since nobody has
// their secrets, and those of others.
func (a *Account) readTokens(tokens map[string]tokenInfo) {
	for _, name := range slices.Sorted(maps.Keys(tokens)) {
		if name == a.current() {
			continue
		}
		m, _, marked := splitMark(tokens[name].Comment)
		if !marked || m.Instance != a.Instance || m.State == stateKept {
			a.strangers = append(a.strangers, name)
			continue
		}
		until := time.Unix(tokens[name].Expire, 0).UTC()
		if m.State != stateRetired {
			until = time.Unix(m.Until, 0).UTC()
		}
		a.Retiring = append(a.Retiring, RetiringToken{Name: name, Until: until})
	}
}

// ensureToken makes the token. One of the holder's is kept, unless it is to be
// made again or to be followed by another one; one that an unfinished run has
// left is made again, since its secret is lost.
func (c *Client) ensureToken(ctx context.Context, spec AccountSpec, holder Holder, reporter progress.Reporter) (Issued, error) {
	issued := Issued{Name: spec.current(), Secret: holder.Secret}
	user, err := c.user(ctx, spec.UserID)
	if err != nil {
		return issued, err
	}
	if holder.Rotate {
		name, left, err := freeTokenName(spec, user.Tokens, holder.Instance)
		if err != nil {
			return issued, err
		}
		spec.CurrentToken = name
		reporter.Report(ctx, "token", "making token "+spec.TokenID()+" beside "+spec.UserID+"!"+issued.Name)
		if left {
			return c.remakeToken(ctx, spec, holder.Instance, issued)
		}
		return c.makeToken(ctx, spec, holder.Instance, issued)
	}
	token, there := user.Tokens[spec.current()]
	if !there {
		return c.makeToken(ctx, spec, holder.Instance, issued)
	}
	have, _, marked := splitMark(token.Comment)
	if !marked && holder.Instance != "" && holder.Secret != "" && !holder.Remake {
		// Of a token that has lost its mark the secret proves whose it is.
		accepted, err := c.CheckToken(ctx, spec.TokenID(), holder.Secret)
		if err != nil {
			return issued, err
		}
		if accepted {
			have, marked = c.newMark(spec, holder.Instance).kept(), true
		}
	}
	unfinished := marked && have.State != stateKept && have.State != stateRetired
	switch {
	case have.Instance == holder.Instance && !holder.Remake && (holder.Secret != "" || !unfinished):
		return issued, c.updateToken(ctx, spec, token, have, marked)
	case have.Instance == holder.Instance || unfinished:
		reporter.Report(ctx, "token", "making token "+spec.TokenID()+" again, whose secret is lost or refused")
		return c.remakeToken(ctx, spec, holder.Instance, issued)
	}
	return issued, c.orphan(spec)
}

// orphan explains a token that is there and that nobody here has made.
func (c *Client) orphan(spec AccountSpec) error {
	return fmt.Errorf("token %s is there already, and Proxmox VE never tells its secret again. Where nothing uses it, delete it "+
		"(pveum user token delete %s %s) and apply again. Where something does, import the account (%s), whose secret is null then, and rotate it "+
		"for a new one; or choose another token_name", spec.TokenID(), ShellWord(spec.UserID), spec.current(), spec.TokenID())
}

// freeTokenName answers the first name for a rotated token that is not taken:
// the one asked for, then with .2, .3 and so on. left says that an interrupted
// rotation has left a token of that name.
func freeTokenName(spec AccountSpec, tokens map[string]tokenInfo, instance string) (name string, left bool, err error) {
	name = spec.TokenName
	for n := 2; n < 1000; n++ {
		token, there := tokens[name]
		m, _, marked := splitMark(token.Comment)
		switch {
		case name == spec.current():
		case !there:
			return name, false, nil
		case marked && m.Instance == instance && m.State == stateMade:
			return name, true, nil
		}
		name = spec.TokenName + "." + strconv.Itoa(n)
	}
	return "", false, errors.New("there is no name left for another token of user " + spec.UserID)
}

func privsep(spec AccountSpec) int {
	if spec.PrivilegeSeparation {
		return 1
	}
	return 0
}

// newMark is the mark of a token that is being made.
func (c *Client) newMark(spec AccountSpec, instance string) mark {
	return c.leased(mark{Kind: "token", Instance: instance, State: stateMade, Key: spec.TokenName})
}

type tokenAnswer struct {
	Value string `json:"value"`
}

func (a tokenAnswer) issued(spec AccountSpec, before Issued) (Issued, error) {
	if a.Value == "" {
		return before, fmt.Errorf("making token %s: Proxmox VE answered no secret", spec.TokenID())
	}
	return Issued{Name: spec.current(), Secret: a.Value}, nil
}

func (c *Client) makeToken(ctx context.Context, spec AccountSpec, instance string, before Issued) (Issued, error) {
	var answer tokenAnswer
	body := params{"comment": c.newMark(spec, instance).with(spec.Comment, " "), "expire": spec.expire(), "privsep": privsep(spec)}
	if err := c.post(ctx, tokenPath(spec.UserID, spec.current()), body, &answer); err != nil {
		return before, fmt.Errorf("creating token %s: %w", spec.TokenID(), err)
	}
	return answer.issued(spec, before)
}

// remakeToken gives a token that is there a new secret: in place from Proxmox VE
// 9.2 on, where it keeps its permissions, before that by deleting it first.
func (c *Client) remakeToken(ctx context.Context, spec AccountSpec, instance string, before Issued) (Issued, error) {
	version, err := c.Version(ctx)
	if err != nil {
		return before, err
	}
	if !version.AtLeast(9, 2) {
		if err := c.deleteToken(ctx, spec.UserID, spec.current()); err != nil {
			return before, err
		}
		return c.makeToken(ctx, spec, instance, before)
	}
	var answer tokenAnswer
	body := params{"comment": c.newMark(spec, instance).with(spec.Comment, " "), "expire": spec.expire(), "privsep": privsep(spec), "regenerate": 1}
	if err := c.put(ctx, tokenPath(spec.UserID, spec.current()), body, &answer); err != nil {
		return before, fmt.Errorf("renewing the secret of token %s: %w", spec.TokenID(), err)
	}
	return answer.issued(spec, before)
}

// updateToken brings comment, expiry and privilege separation of the token to
// the specification. Its secret stays; only given parameters change.
func (c *Client) updateToken(ctx context.Context, spec AccountSpec, token tokenInfo, have mark, marked bool) error {
	comment := spec.Comment
	if marked {
		if have.State == stateRetired { // by a rotation that was taken back
			have = have.kept()
		}
		comment = have.with(spec.Comment, " ")
	}
	if token.Comment == comment && bool(token.Privsep) == spec.PrivilegeSeparation && token.Expire == spec.expire() {
		return nil
	}
	body := params{"comment": comment, "privsep": privsep(spec), "expire": spec.expire()}
	if err := c.put(ctx, tokenPath(spec.UserID, spec.current()), body, nil); err != nil {
		return fmt.Errorf("updating token %s: %w", spec.TokenID(), err)
	}
	return nil
}

// retireToken lets a token that was replaced run out after the overlap: Proxmox
// VE refuses it from then on, whether or not this provider is ever run again.
func (c *Client) retireToken(ctx context.Context, spec AccountSpec, holder Holder, reporter progress.Reporter) error {
	user, err := c.user(ctx, spec.UserID)
	if err != nil {
		return err
	}
	token, there := user.Tokens[spec.current()]
	have, _, _ := splitMark(token.Comment)
	if !there || have.State == stateRetired {
		return nil
	}
	if holder.Overlap <= 0 {
		reporter.Report(ctx, "token", "deleting token "+spec.TokenID()+", which was replaced")
		return c.deleteToken(ctx, spec.UserID, spec.current())
	}
	until := c.clock.now().Add(holder.Overlap)
	if token.Expire != 0 && token.Expire < until.Unix() {
		until = time.Unix(token.Expire, 0) // it runs out before that anyway
	}
	reporter.Report(ctx, "token", fmt.Sprintf("token %s was replaced, and works until %s", spec.TokenID(), until.UTC().Format(time.RFC3339)))
	m := mark{Kind: "token", Instance: holder.Instance, State: stateRetired, Key: spec.TokenName}
	body := params{"comment": m.with(spec.Comment, " "), "expire": until.Unix()}
	if err := c.put(ctx, tokenPath(spec.UserID, spec.current()), body, nil); err != nil {
		return fmt.Errorf("retiring token %s: %w", spec.TokenID(), err)
	}
	return nil
}

// sweepTokens deletes the account's tokens that are of no use any more.
func (c *Client) sweepTokens(ctx context.Context, spec AccountSpec, instance string) error {
	user, err := c.user(ctx, spec.UserID)
	if err != nil {
		return err
	}
	a := Account{AccountSpec: spec, Instance: instance, asOf: c.clock.now()}
	a.readTokens(user.Tokens)
	return c.SweepTokens(ctx, a)
}

// SweepTokens deletes the retired tokens of an account that are expired.
func (c *Client) SweepTokens(ctx context.Context, a Account) error {
	for _, name := range a.Expired() {
		if err := c.deleteToken(ctx, a.UserID, name); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) deleteToken(ctx context.Context, user, token string) error {
	err := c.remove(ctx, tokenPath(user, token), nil, nil)
	if err != nil && !missing(err) {
		return fmt.Errorf("deleting token %s!%s: %w", user, token, err)
	}
	return nil
}

// FindToken answers for a token that is to be imported the name that was asked
// for and the token in use, which differ after a rotation. The error is
// kube.ErrAbsent where there is no such token.
func (c *Client) FindToken(ctx context.Context, userID, token string) (asked, current string, err error) {
	user, err := c.user(ctx, userID)
	if missing(err) {
		return "", "", absent("user %s", userID)
	}
	if err != nil {
		return "", "", err
	}
	asked = token
	if m, _, marked := splitMark(user.Tokens[token].Comment); marked {
		asked = orElse(m.Key, token)
	}
	for _, name := range slices.Sorted(maps.Keys(user.Tokens)) {
		m, _, marked := splitMark(user.Tokens[name].Comment)
		if name == asked && !marked || marked && orElse(m.Key, name) == asked && m.State != stateRetired {
			current = name
		}
	}
	if current == "" {
		return "", "", fmt.Errorf("%w: token %s!%s", kube.ErrAbsent, userID, token)
	}
	return asked, current, nil
}

// CheckToken says whether a token is accepted: false is a proven refusal, an
// error leaves it open. Proxmox VE takes 3 s for a refusal.
func (c *Client) CheckToken(ctx context.Context, id, secret string) (bool, error) {
	config := c.config
	config.TokenID, config.TokenSecret, config.Username, config.Password = id, secret, "", ""
	config.Transport = c.transport
	probe, err := New(config)
	if err != nil {
		return false, err
	}
	_, err = probe.Version(ctx)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrDenied):
		return false, nil
	}
	return false, err
}
