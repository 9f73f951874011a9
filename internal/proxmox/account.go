// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// aclEntry is one entry of the access control list.
type aclEntry struct {
	Path      string `json:"path"`
	Role      string `json:"roleid"`
	Type      string `json:"type"` // user, token, group
	Who       string `json:"ugid"`
	Propagate int    `json:"propagate"`
}

type userInfo struct {
	Enable  any                  `json:"enable"` // 1 or nothing
	Comment string               `json:"comment"`
	Tokens  map[string]tokenInfo `json:"tokens"`
}

type tokenInfo struct {
	Comment string `json:"comment"`
	Expire  int64  `json:"expire"`
	Privsep any    `json:"privsep"`
}

func on(value any) bool {
	text := fmt.Sprint(value)
	return text == "1" || text == "true"
}

func userPath(user string) string { return "/access/users/" + url.PathEscape(user) }

func tokenPath(user, token string) string {
	return userPath(user) + "/token/" + url.PathEscape(token)
}

// ReadAccount answers how a service account stands, compared with spec. The
// error is kube.ErrAbsent only where the user is proven to be gone; a token that
// is gone is a fault, since user, role and ACL are there to make it again.
func (c *Client) ReadAccount(ctx context.Context, spec AccountSpec) (Account, error) {
	a := Account{UserID: spec.UserID, TokenName: spec.TokenName}
	var user userInfo
	err := c.get(ctx, userPath(spec.UserID), nil, &user)
	if missing(err) {
		return a, absent("user %s", spec.UserID)
	}
	if err != nil {
		return a, fmt.Errorf("reading user %s: %w", spec.UserID, err)
	}
	a.userMark, a.Comment, _ = splitMark(user.Comment)
	a.Instance = a.userMark.Instance
	if !on(user.Enable) {
		a.fault("user %s is disabled", spec.UserID)
	}
	for name := range user.Tokens {
		a.tokens = append(a.tokens, name)
	}
	slices.Sort(a.tokens)
	token, there := user.Tokens[spec.TokenName]
	a.TokenThere = there
	if there {
		a.tokenMark, _, _ = splitMark(token.Comment)
		a.PrivilegeSeparation = on(token.Privsep)
		if token.Expire != 0 && token.Expire <= time.Now().Unix() {
			a.fault("token %s is expired", spec.TokenID())
		}
	} else {
		a.fault("token %s is gone", spec.TokenID())
	}
	if err := c.readGrants(ctx, spec, &a); err != nil {
		return a, err
	}
	return a, nil
}

// readGrants compares roles and ACL with what the account is to have.
func (c *Client) readGrants(ctx context.Context, spec AccountSpec, a *Account) error {
	acl, err := c.acl(ctx)
	if err != nil {
		return err
	}
	granted := func(kind, who string) []string {
		var roles []string
		for _, e := range acl {
			if e.Path == "/" && e.Type == kind && e.Who == who && e.Propagate == 1 {
				roles = append(roles, e.Role)
			}
		}
		slices.Sort(roles)
		return roles
	}
	users := granted("user", spec.UserID)
	for _, known := range []string{LeastPrivilege, Article} {
		set := AccountSpec{UserID: spec.UserID, Permissions: known}
		if !slices.ContainsFunc(set.roles(), func(role string) bool { return !slices.Contains(users, role) }) {
			a.Permissions = known
		}
	}
	for _, role := range spec.roles() {
		if !slices.Contains(users, role) {
			a.fault("user %s has not the role %s on /", spec.UserID, role)
		}
		if spec.PrivilegeSeparation && a.TokenThere && !slices.Contains(granted("token", spec.TokenID()), role) {
			a.fault("token %s has not the role %s on /", spec.TokenID(), role)
		}
	}
	if spec.Permissions == Article {
		return nil
	}
	lacking, there, err := c.roleLacks(ctx, spec.roleName())
	if err != nil {
		return err
	}
	if !there {
		a.fault("the role %s is gone", spec.roleName())
	} else if len(lacking) > 0 {
		a.fault("the role %s lacks %s", spec.roleName(), strings.Join(lacking, " "))
	}
	return nil
}

func (c *Client) acl(ctx context.Context) ([]aclEntry, error) {
	var acl []aclEntry
	if err := c.get(ctx, "/access/acl", nil, &acl); err != nil {
		return nil, fmt.Errorf("reading the access control list: %w", err)
	}
	return acl, nil
}

// roleLacks answers which of the least privileges a role has not.
func (c *Client) roleLacks(ctx context.Context, role string) (lacking []string, there bool, err error) {
	var held map[string]any
	err = c.get(ctx, "/access/roles/"+url.PathEscape(role), nil, &held)
	if missing(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("reading the role %s: %w", role, err)
	}
	version, err := c.Version(ctx)
	if err != nil {
		return nil, true, err
	}
	for _, privilege := range leastPrivileges(version) {
		if !on(held[privilege]) {
			lacking = append(lacking, privilege)
		}
	}
	return lacking, true, nil
}

// Holder is whose account it is.
type Holder struct {
	// Instance is the UUID that the owner keeps in its state; empty for an
	// account that was imported and bears no mark.
	Instance string
	// Secret is the token's secret as far as the owner knows it.
	Secret string
	// Remake makes the owner's token again although it is there, because its
	// secret was refused or lost.
	Remake bool
}

// EnsureAccount makes the account, or finishes one that an earlier run began,
// and answers the token's secret: the holder's where the token is there and is
// the holder's, else a new one, since Proxmox VE tells a secret once only. A
// user or token that is there and was not left by an unfinished run is an error:
// nothing is adopted silently. The account is the holder's for good after
// [Client.KeepAccount].
func (c *Client) EnsureAccount(ctx context.Context, spec AccountSpec, holder Holder, reporter progress.Reporter) (string, error) {
	err := settle(func() error {
		secret, err := c.ensureAccount(ctx, spec, holder, reporter)
		if secret != holder.Secret { // a new token: made, whatever fails after it
			holder.Secret, holder.Remake = secret, false
		}
		return err
	})
	return holder.Secret, err
}

func (c *Client) ensureAccount(ctx context.Context, spec AccountSpec, holder Holder, reporter progress.Reporter) (string, error) {
	secret := holder.Secret
	if err := c.accountPreflight(ctx, spec); err != nil {
		return secret, err
	}
	reporter.Report(ctx, "user", "making sure of user "+spec.UserID)
	if err := c.ensureUser(ctx, spec, holder.Instance, reporter); err != nil {
		return secret, err
	}
	reporter.Report(ctx, "permissions", "granting "+strings.Join(spec.roles(), ", ")+" to "+spec.UserID)
	if err := c.ensureGrants(ctx, spec, "users", spec.UserID); err != nil {
		return secret, err
	}
	reporter.Report(ctx, "token", "making sure of token "+spec.TokenID())
	secret, err := c.ensureToken(ctx, spec, holder, reporter)
	if err != nil {
		return secret, err
	}
	if spec.PrivilegeSeparation {
		if err := c.ensureGrants(ctx, spec, "tokens", spec.TokenID()); err != nil {
			return secret, err
		}
	}
	return secret, c.dropGrants(ctx, spec)
}

// accountPreflight checks the realm, which Proxmox VE does not for a user
// without a password, and the privileges of whoever works.
func (c *Client) accountPreflight(ctx context.Context, spec AccountSpec) error {
	_, realm, _ := strings.Cut(spec.UserID, "@")
	var domains []struct {
		Realm string `json:"realm"`
	}
	if err := c.get(ctx, "/access/domains", nil, &domains); err != nil {
		return fmt.Errorf("listing the realms: %w", err)
	}
	var names []string
	for _, d := range domains {
		names = append(names, d.Realm)
	}
	if !slices.Contains(names, realm) {
		return fmt.Errorf("the realm %q of user %s does not exist; there is: %s", realm, spec.UserID, strings.Join(names, ", "))
	}
	needs := []need{
		{"/access/realm/" + realm, []string{"Realm.AllocateUser"}, "create the user"},
		{"/access/groups", []string{"User.Modify"}, "create the user and its token"},
		{"/", []string{"Permissions.Modify"}, "grant the permissions"},
	}
	if spec.Permissions != Article {
		needs = append(needs, need{"/access", []string{"Sys.Modify"}, "create the role " + spec.roleName()})
	}
	return c.preflight(ctx, needs)
}

// ensureUser makes the user with our mark, or takes over the one of an
// unfinished run.
func (c *Client) ensureUser(ctx context.Context, spec AccountSpec, instance string, reporter progress.Reporter) error {
	m := mark{Kind: "user", Instance: instance, State: stateMade}.lease(c.config.Lease)
	var user userInfo
	err := c.get(ctx, userPath(spec.UserID), nil, &user)
	if missing(err) {
		body := params{"userid": spec.UserID, "enable": 1, "comment": m.with(spec.Comment, " ")}
		if err := c.post(ctx, "/access/users", body, nil); err != nil {
			return fmt.Errorf("creating user %s: %w", spec.UserID, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading user %s: %w", spec.UserID, err)
	}
	have, _, marked := splitMark(user.Comment)
	switch {
	case have.Instance == instance: // ours, or (both empty) imported without a mark
		m.State = have.State
		if !marked {
			return c.updateUser(ctx, spec, user, spec.Comment)
		}
		if have.State == stateKept {
			return c.updateUser(ctx, spec, user, have.with(spec.Comment, " "))
		}
	case !marked:
		return fmt.Errorf("user %s is there already and was not made by this provider. Choose another user_id, import the account (%s), "+
			"or delete the user where nothing uses it: pveum user delete %s", spec.UserID, spec.TokenID(), spec.UserID)
	case have.State == stateKept:
		return fmt.Errorf("user %s belongs to another resource of this provider. Choose another user_id, or import the account (%s) here and remove it there",
			spec.UserID, spec.TokenID())
	default:
		reporter.Report(ctx, "adopting", "taking over user "+spec.UserID+", which an unfinished run has left")
		if err := c.outlive(ctx, spec, have, reporter); err != nil {
			return err
		}
	}
	return c.updateUser(ctx, spec, user, m.with(spec.Comment, " "))
}

func (c *Client) updateUser(ctx context.Context, spec AccountSpec, have userInfo, comment string) error {
	if on(have.Enable) && have.Comment == comment {
		return nil
	}
	if err := c.put(ctx, userPath(spec.UserID), params{"comment": comment, "enable": 1}, nil); err != nil {
		return fmt.Errorf("updating user %s: %w", spec.UserID, err)
	}
	return nil
}

// outlive waits until the lease of an unfinished account's user has run out.
func (c *Client) outlive(ctx context.Context, spec AccountSpec, have mark, reporter progress.Reporter) error {
	limit := time.Now().Add(c.config.Lease)
	for time.Now().Unix() < have.Until && time.Now().Before(limit) {
		reporter.Report(ctx, "waiting", fmt.Sprintf("user %s was begun by another run, whose lease lasts until %s; waiting for it to run out",
			spec.UserID, time.Unix(have.Until, 0).Format(time.TimeOnly)))
		if !sleep(ctx, min(c.config.PollInterval, time.Until(time.Unix(have.Until, 0))+time.Millisecond)) {
			return fmt.Errorf("waiting for the lease of user %s: %w", spec.UserID, ctx.Err())
		}
		var user userInfo
		if err := c.get(ctx, userPath(spec.UserID), nil, &user); err != nil {
			return fmt.Errorf("reading user %s: %w", spec.UserID, err)
		}
		if fresh, _, _ := splitMark(user.Comment); fresh.Instance != have.Instance || fresh.Until != have.Until || fresh.State != have.State {
			return fmt.Errorf("another run is making the account %s at this moment: let it finish", spec.TokenID())
		}
	}
	return nil
}

// ensureGrants makes the role, where it is our own, and the ACL entries on /.
// propagate is always given: the API's default and the library's differ.
func (c *Client) ensureGrants(ctx context.Context, spec AccountSpec, kind, who string) error {
	if spec.Permissions != Article {
		if err := c.ensureRole(ctx, spec); err != nil {
			return err
		}
	}
	acl, err := c.acl(ctx)
	if err != nil {
		return err
	}
	var want []string
	for _, role := range spec.roles() {
		entry := aclEntry{Path: "/", Role: role, Type: strings.TrimSuffix(kind, "s"), Who: who, Propagate: 1}
		if !slices.Contains(acl, entry) {
			want = append(want, role)
		}
	}
	if len(want) == 0 {
		return nil
	}
	body := params{"path": "/", "roles": strings.Join(want, ","), kind: who, "propagate": 1}
	if err := c.put(ctx, "/access/acl", body, nil); err != nil {
		return fmt.Errorf("granting %s on / to %s: %w", strings.Join(want, ", "), who, err)
	}
	return nil
}

func (c *Client) ensureRole(ctx context.Context, spec AccountSpec) error {
	lacking, there, err := c.roleLacks(ctx, spec.roleName())
	if err != nil || (there && len(lacking) == 0) {
		return err
	}
	version, err := c.Version(ctx)
	if err != nil {
		return err
	}
	privileges := strings.Join(leastPrivileges(version), ",")
	if there {
		err = c.put(ctx, "/access/roles/"+url.PathEscape(spec.roleName()), params{"privs": privileges}, nil)
	} else {
		err = c.post(ctx, "/access/roles", params{"roleid": spec.roleName(), "privs": privileges}, nil)
	}
	if err != nil && !saying(err, "already exists") {
		return fmt.Errorf("making the role %s: %w", spec.roleName(), err)
	}
	return nil
}

// dropGrants takes away those of our roles that the account is not to have any
// more: the other set's, and the token's own where privileges are not separate.
func (c *Client) dropGrants(ctx context.Context, spec AccountSpec) error {
	acl, err := c.acl(ctx)
	if err != nil {
		return err
	}
	known := append(slices.Clone(articleRoles), spec.roleName())
	want := spec.roles()
	for _, e := range acl {
		ofUser := e.Type == "user" && e.Who == spec.UserID && !slices.Contains(want, e.Role)
		ofToken := e.Type == "token" && e.Who == spec.TokenID() && (!spec.PrivilegeSeparation || !slices.Contains(want, e.Role))
		if e.Path != "/" || !slices.Contains(known, e.Role) || (!ofUser && !ofToken) {
			continue
		}
		body := params{"path": "/", "roles": e.Role, e.Type + "s": e.Who, "delete": 1}
		if err := c.put(ctx, "/access/acl", body, nil); err != nil {
			return fmt.Errorf("taking the role %s on / from %s: %w", e.Role, e.Who, err)
		}
	}
	if spec.Permissions != Article {
		return nil
	}
	return c.removeRole(ctx, spec)
}

func (c *Client) removeRole(ctx context.Context, spec AccountSpec) error {
	if err := c.remove(ctx, "/access/roles/"+url.PathEscape(spec.roleName()), nil, nil); err != nil && !missing(err) {
		return fmt.Errorf("deleting the role %s: %w", spec.roleName(), err)
	}
	return nil
}

// ensureToken makes the token. One of the holder's is kept, unless it is to be
// made again; one that an unfinished run has left is made again, since its
// secret is lost.
func (c *Client) ensureToken(ctx context.Context, spec AccountSpec, holder Holder, reporter progress.Reporter) (string, error) {
	var user userInfo
	if err := c.get(ctx, userPath(spec.UserID), nil, &user); err != nil {
		return holder.Secret, fmt.Errorf("reading user %s: %w", spec.UserID, err)
	}
	token, there := user.Tokens[spec.TokenName]
	if !there {
		return c.makeToken(ctx, spec, holder.Instance)
	}
	have, _, marked := splitMark(token.Comment)
	unfinished := marked && have.State != stateKept
	switch {
	case have.Instance == holder.Instance && !holder.Remake && (holder.Secret != "" || !unfinished):
		return holder.Secret, c.updateToken(ctx, spec, token, have, marked)
	case have.Instance == holder.Instance || unfinished:
		reporter.Report(ctx, "token", "making token "+spec.TokenID()+" again, whose secret is lost or refused")
		if err := c.deleteToken(ctx, spec); err != nil {
			return holder.Secret, err
		}
		return c.makeToken(ctx, spec, holder.Instance)
	}
	return holder.Secret, fmt.Errorf("token %s is there already, and Proxmox VE never tells its secret again. Where nothing uses it, delete it "+
		"(pveum user token delete %s %s) and apply again; else choose another token_name", spec.TokenID(), spec.UserID, spec.TokenName)
}

func (c *Client) makeToken(ctx context.Context, spec AccountSpec, instance string) (string, error) {
	m := mark{Kind: "token", Instance: instance, State: stateMade}.lease(c.config.Lease)
	privsep := 0
	if spec.PrivilegeSeparation {
		privsep = 1
	}
	var answer struct {
		Value string `json:"value"`
	}
	body := params{"comment": m.with(spec.Comment, " "), "expire": 0, "privsep": privsep}
	if err := c.post(ctx, tokenPath(spec.UserID, spec.TokenName), body, &answer); err != nil {
		return "", fmt.Errorf("creating token %s: %w", spec.TokenID(), err)
	}
	if answer.Value == "" {
		return "", fmt.Errorf("creating token %s: Proxmox VE answered no secret", spec.TokenID())
	}
	return answer.Value, nil
}

// updateToken brings comment and privilege separation of the token to the
// specification. Its secret stays; only given parameters change.
func (c *Client) updateToken(ctx context.Context, spec AccountSpec, token tokenInfo, have mark, marked bool) error {
	comment := spec.Comment
	if marked {
		comment = have.with(spec.Comment, " ")
	}
	if token.Comment == comment && on(token.Privsep) == spec.PrivilegeSeparation && token.Expire == 0 {
		return nil
	}
	privsep := 0
	if spec.PrivilegeSeparation {
		privsep = 1
	}
	if err := c.put(ctx, tokenPath(spec.UserID, spec.TokenName), params{"comment": comment, "privsep": privsep, "expire": 0}, nil); err != nil {
		return fmt.Errorf("updating token %s: %w", spec.TokenID(), err)
	}
	return nil
}

func (c *Client) deleteToken(ctx context.Context, spec AccountSpec) error {
	err := c.remove(ctx, tokenPath(spec.UserID, spec.TokenName), nil, nil)
	if err != nil && !missing(err) {
		return fmt.Errorf("deleting token %s: %w", spec.TokenID(), err)
	}
	return nil
}

// KeepAccount notes in the marks of user and token that their owner knows the
// secret: from then on no other run takes them over. Called once the owner's
// state is known to be written, so not by the run that makes the account.
func (c *Client) KeepAccount(ctx context.Context, a Account) error {
	if a.tokenMark.State == stateMade {
		body := params{"comment": a.tokenMark.kept().with(a.Comment, " ")}
		if err := c.put(ctx, tokenPath(a.UserID, a.TokenName), body, nil); err != nil {
			return fmt.Errorf("marking token %s!%s: %w", a.UserID, a.TokenName, err)
		}
	}
	if a.userMark.State == stateMade {
		body := params{"comment": a.userMark.kept().with(a.Comment, " ")}
		if err := c.put(ctx, userPath(a.UserID), body, nil); err != nil {
			return fmt.Errorf("marking user %s: %w", a.UserID, err)
		}
	}
	return nil
}

// DeleteAccount deletes token, user (with the ACL of both) and role. A user that
// has other tokens is kept with its permissions, which these may need; kept
// answers their names then.
func (c *Client) DeleteAccount(ctx context.Context, spec AccountSpec, a Account, reporter progress.Reporter) (kept []string, err error) {
	reporter.Report(ctx, "delete", "deleting token "+spec.TokenID())
	if err := c.deleteToken(ctx, spec); err != nil {
		return nil, err
	}
	if others := a.others(); len(others) > 0 {
		return others, nil
	}
	reporter.Report(ctx, "delete", "deleting user "+spec.UserID)
	if err := c.remove(ctx, userPath(spec.UserID), nil, nil); err != nil && !missing(err) {
		return nil, fmt.Errorf("deleting user %s: %w", spec.UserID, err)
	}
	return nil, c.removeRole(ctx, spec)
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
