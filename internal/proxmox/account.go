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

type userInfo struct {
	Enable  truth                `json:"enable"` // 1 or nothing
	Comment string               `json:"comment"`
	Tokens  map[string]tokenInfo `json:"tokens"`
}

type tokenInfo struct {
	Comment string `json:"comment"`
	Expire  int64  `json:"expire"`
	Privsep truth  `json:"privsep"`
}

func userPath(user string) string { return "/access/users/" + url.PathEscape(user) }

// user reads a user with its tokens.
func (c *Client) user(ctx context.Context, id string) (userInfo, error) {
	var user userInfo
	if err := c.get(ctx, userPath(id), nil, &user); err != nil {
		return user, fmt.Errorf("reading user %s: %w", id, err)
	}
	return user, nil
}

// ReadAccount answers how a service account stands, compared with spec. The
// error is kube.ErrAbsent only where the user is proven to be gone; a token that
// is gone is a fault, since user, role and ACL are there to make it again.
func (c *Client) ReadAccount(ctx context.Context, spec AccountSpec) (Account, error) {
	a := Account{AccountSpec: AccountSpec{UserID: spec.UserID, TokenName: spec.TokenName, CurrentToken: spec.CurrentToken}}
	user, err := c.user(ctx, spec.UserID)
	if missing(err) {
		return a, absent("user %s", spec.UserID)
	}
	if err != nil {
		return a, err
	}
	a.asOf = c.clock.now()
	a.userMark, a.Comment, _ = splitMark(user.Comment)
	a.Instance = a.userMark.Instance
	if !user.Enable {
		a.fault("user %s is disabled", spec.UserID)
	}
	a.readTokens(user.Tokens)
	if token, there := user.Tokens[spec.current()]; there {
		a.readToken(token)
	} else {
		a.fault("token %s is gone", spec.TokenID())
	}
	if a.Instance == "" && a.tokenMark.Instance != "" {
		a.Instance = a.tokenMark.Instance // a token goes with its user, so the user is the one that was made with it
		a.fault("the comment of user %s has lost this provider's mark", spec.UserID)
	}
	if err := c.readGrants(ctx, spec, &a); err != nil {
		return a, err
	}
	return a, nil
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
	// Rotate makes a new token beside the owner's, which goes on working for
	// Overlap and is then refused.
	Rotate  bool
	Overlap time.Duration
	// Prior is what the account was to be before, so that what it was given then
	// is taken away.
	Prior *AccountSpec
}

// Issued is the token that an account works with.
type Issued struct{ Name, Secret string }

// EnsureAccount makes the account, or finishes one that an earlier run began,
// and answers its token: the holder's where it is there and is the holder's,
// else a new one, since Proxmox VE tells a secret once only. A user or token
// that is there and was not left by an unfinished run is an error: nothing is
// adopted silently. The account is the holder's for good after
// [Client.KeepAccount]. Beside an error the answer is the token as far as it was
// made.
func (c *Client) EnsureAccount(ctx context.Context, spec AccountSpec, holder Holder, reporter progress.Reporter) (Issued, error) {
	issued := Issued{Name: spec.current(), Secret: holder.Secret}
	err := settle(func() error {
		next, err := c.ensureAccount(ctx, spec, holder, reporter)
		if next.Secret != "" && next != issued { // a new token: made, whatever fails after it
			issued, holder.Secret, holder.Remake = next, next.Secret, false
		}
		return err
	})
	return issued, err
}

func (c *Client) ensureAccount(ctx context.Context, spec AccountSpec, holder Holder, reporter progress.Reporter) (Issued, error) {
	issued := Issued{Name: spec.current(), Secret: holder.Secret}
	if err := c.accountPreflight(ctx, spec); err != nil {
		return issued, err
	}
	reporter.Report(ctx, "user", "making sure of user "+spec.UserID)
	adopted, err := c.ensureUser(ctx, spec, holder.Instance, reporter)
	if err != nil {
		return issued, err
	}
	reporter.Report(ctx, "token", "making sure of token "+spec.TokenID())
	issued, err = c.ensureToken(ctx, spec, holder, reporter)
	if err != nil {
		return issued, err
	}
	replaced := spec
	spec.CurrentToken = issued.Name
	reporter.Report(ctx, "permissions", "making sure of the permissions of "+spec.TokenID())
	if err := c.grant(ctx, spec, holder.Prior, adopted); err != nil {
		return issued, err
	}
	if issued.Name != replaced.current() {
		if err := c.retireToken(ctx, replaced, holder, reporter); err != nil {
			return issued, err
		}
	}
	return issued, c.sweepTokens(ctx, spec, holder.Instance)
}

// grant gives user and token what they are to have, takes away what prior gave
// them beyond that (of an account that was taken over, all), and asks Proxmox VE
// what it has come to.
func (c *Client) grant(ctx context.Context, spec AccountSpec, prior *AccountSpec, adopted bool) error {
	have, err := c.access(ctx)
	if err != nil {
		return err
	}
	if err := c.ensureRoles(ctx, spec, have); err != nil {
		return err
	}
	if err := c.ensureEntries(ctx, spec, have); err != nil {
		return err
	}
	var before []aclEntry
	if prior != nil {
		before = prior.entries(have.version)
	}
	if have, err = c.access(ctx); err != nil {
		return err
	}
	if err := c.dropGrants(ctx, spec, have, before, adopted); err != nil {
		return err
	}
	hidden, err := c.hiddenPrivileges(ctx, spec, have)
	if err == nil && len(hidden) > 0 {
		err = errors.New(strings.Join(hidden, "; "))
	}
	return err
}

// CheckAccount looks whether the account could be made as things are: whether all
// that it names is there, and every privilege. It changes nothing.
func (c *Client) CheckAccount(ctx context.Context, spec AccountSpec) error {
	return c.accountPreflight(ctx, spec)
}

// accountPreflight checks, before anything is made, what Proxmox VE would not
// check or only half-way: the realm, which it ignores for a user without a
// password, the roles, privileges and places that are named, and the privileges
// of whoever works.
func (c *Client) accountPreflight(ctx context.Context, spec AccountSpec) error {
	have, err := c.access(ctx)
	if err != nil {
		return err
	}
	if err := c.checkNamed(ctx, "realm", realmOf(spec.UserID), "/access/domains", "realm", ""); err != nil {
		return fmt.Errorf("user %s: %w", spec.UserID, err)
	}
	if err := have.checkGrants(spec); err != nil {
		return err
	}
	if err := c.checkPlaces(ctx, spec.Scope); err != nil {
		return err
	}
	return c.preflight(ctx, c.accountNeeds(ctx, spec, have))
}

func realmOf(user string) string { return user[strings.LastIndexByte(user, '@')+1:] }

// accountNeeds are the privileges that making the account takes.
func (c *Client) accountNeeds(ctx context.Context, spec AccountSpec, have access) []need {
	needs := []need{
		{"/access/realm/" + realmOf(spec.UserID), []string{"Realm.AllocateUser"}, "create the user"},
		{"/access/groups", []string{"User.Modify"}, "create the user and its token"},
	}
	seen := map[string]bool{}
	for _, g := range spec.grants(have.version) {
		if len(g.Privileges) > 0 && !seen["/access"] {
			seen["/access"] = true
			needs = append(needs, need{"/access", []string{"Sys.Modify"}, "create the role " + g.Role})
		}
		privileges := g.Privileges
		if len(privileges) == 0 {
			privileges = have.roles[g.Role]
		}
		if !seen[g.Path] && !c.mayDelegate(ctx, g.Path, privileges) {
			needs = append(needs, need{g.Path, []string{"Permissions.Modify"}, "grant the permissions"})
		}
		seen[g.Path] = true
	}
	return needs
}

// mayDelegate says whether whoever works may hand on what it has itself on a
// path, which Proxmox VE allows to those who manage the things there.
func (c *Client) mayDelegate(ctx context.Context, path string, privileges []string) bool {
	for prefix, manages := range map[string]string{"/storage/": "Datastore.Allocate", "/vms/": "VM.Allocate", "/pool/": "Pool.Allocate"} {
		if strings.HasPrefix(path, prefix) && len(privileges) > 0 {
			lacking, err := c.lacks(ctx, path, append(slices.Clone(privileges), manages)...)
			return err == nil && len(lacking) == 0
		}
	}
	return false
}

// checkGrants refuses roles and privileges that this release does not know.
func (a access) checkGrants(spec AccountSpec) error {
	known := a.roles["Administrator"]
	for _, g := range spec.grants(a.version) {
		if _, there := a.roles[g.Role]; len(g.Privileges) == 0 && !there {
			return fmt.Errorf("the role %s on %s does not exist: pveum role list", g.Role, g.Path)
		}
		for _, privilege := range g.Privileges {
			if len(known) > 0 && !slices.Contains(known, privilege) {
				return fmt.Errorf("no privilege %s exists in Proxmox VE %s, and it is asked for on %s%s", privilege, a.version, g.Path, successor(privilege))
			}
		}
	}
	return nil
}

// successor says what came in place of a privilege that a release took away.
func successor(privilege string) string {
	switch {
	case privilege == "VM.Monitor":
		return "; from 9.0 on VM.GuestAgent.Audit and its neighbours take its place, and Sys.Audit for the monitor"
	case strings.HasPrefix(privilege, "VM.GuestAgent."):
		return "; before 9.0 it is VM.Monitor"
	}
	return ""
}

// checkPlaces refuses pools and storages that do not exist: Proxmox VE takes
// permissions on them all the same. What whoever works cannot see is left alone.
func (c *Client) checkPlaces(ctx context.Context, s Scope) error {
	for _, pool := range []string{s.Pool, s.TemplatePool} {
		if pool == "" {
			continue
		}
		if err := c.checkNamed(ctx, "pool", pool, "/pools", "poolid", "Pool.Audit"); err != nil {
			return err
		}
	}
	for _, storage := range slices.Concat(s.DiskStorages, s.ImageStorages) {
		if err := c.checkNamed(ctx, "storage", storage, "/storage", "storage", "Datastore.Audit"); err != nil {
			return err
		}
	}
	return nil
}

// checkNamed looks a name up in a list of the API, which leaves out what whoever
// asks lacks the privilege for.
func (c *Client) checkNamed(ctx context.Context, kind, name, list, key, privilege string) error {
	var items []map[string]any
	if err := c.get(ctx, list, nil, &items); err != nil {
		return fmt.Errorf("looking for the %s %s: %w", kind, name, err)
	}
	var names []string
	for _, item := range items {
		names = append(names, fmt.Sprint(item[key]))
	}
	if slices.Contains(names, name) {
		return nil
	}
	if privilege != "" {
		lacking, err := c.lacks(ctx, "/"+kind+"/"+name, privilege)
		if err != nil || len(lacking) > 0 {
			return err
		}
	}
	return fmt.Errorf("the %s %q does not exist; there is: %s", kind, name, orElse(strings.Join(names, ", "), "none"))
}

// ensureUser makes the user with our mark, or takes over the one of an
// unfinished run, which is what adopted says.
func (c *Client) ensureUser(ctx context.Context, spec AccountSpec, instance string, reporter progress.Reporter) (adopted bool, err error) {
	m := c.leased(mark{Kind: "user", Instance: instance, State: stateMade})
	user, err := c.user(ctx, spec.UserID)
	if missing(err) {
		body := params{"userid": spec.UserID, "enable": 1, "comment": m.with(spec.Comment, " ")}
		if err := c.post(ctx, "/access/users", body, nil); err != nil {
			return false, fmt.Errorf("creating user %s: %w", spec.UserID, err)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	have, _, marked := splitMark(user.Comment)
	switch {
	case have.Instance == instance: // ours, or (both empty) imported without a mark
		m.State = have.State
		if !marked {
			return false, c.updateUser(ctx, spec, user, spec.Comment)
		}
		if have.State == stateKept {
			return false, c.updateUser(ctx, spec, user, have.with(spec.Comment, " "))
		}
	case !marked && instance != "" && markOf(user.Tokens[spec.current()]).Instance == instance:
		// Somebody has written another comment; the token proves whose user it is.
		return false, c.updateUser(ctx, spec, user, m.kept().with(spec.Comment, " "))
	case !marked:
		return false, fmt.Errorf("user %s is there already and was not made by this provider. Choose another user_id, import the account (%s), "+
			"or delete the user where nothing uses it: pveum user delete %s", spec.UserID, spec.TokenID(), ShellWord(spec.UserID))
	case have.State == stateKept:
		return false, fmt.Errorf("user %s belongs to another resource of this provider. Choose another user_id, or import the account (%s) here and remove it there",
			spec.UserID, spec.TokenID())
	default:
		reporter.Report(ctx, "adopting", "taking over user "+spec.UserID+", which an unfinished run has left")
		if err := c.outlive(ctx, spec, have, reporter); err != nil {
			return false, err
		}
		adopted = true
	}
	return adopted, c.updateUser(ctx, spec, user, m.with(spec.Comment, " "))
}

func (c *Client) updateUser(ctx context.Context, spec AccountSpec, have userInfo, comment string) error {
	if bool(have.Enable) && have.Comment == comment {
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
	for c.clock.now().Unix() < have.Until && time.Now().Before(limit) {
		reporter.Report(ctx, "waiting", fmt.Sprintf("user %s was begun by another run, whose lease lasts until %s; waiting for it to run out",
			spec.UserID, time.Unix(have.Until, 0).Format(time.TimeOnly)))
		if !sleep(ctx, min(c.config.PollInterval, c.clock.until(time.Unix(have.Until, 0))+time.Millisecond)) {
			return fmt.Errorf("waiting for the lease of user %s: %w", spec.UserID, ctx.Err())
		}
		user, err := c.user(ctx, spec.UserID)
		if err != nil {
			return err
		}
		if fresh, _, _ := splitMark(user.Comment); fresh.Instance != have.Instance || fresh.Until != have.Until || fresh.State != have.State {
			return fmt.Errorf("another run is making the account %s at this moment: let it finish", spec.TokenID())
		}
	}
	return nil
}

// KeepAccount notes in the marks of user and token that their owner knows the
// secret: from then on no other run takes them over. Called once the owner's
// state is known to be written, so not by the run that makes the account.
func (c *Client) KeepAccount(ctx context.Context, a Account) error {
	if a.tokenMark.State == stateMade {
		body := params{"comment": a.tokenMark.kept().with(a.Comment, " ")}
		if err := c.put(ctx, tokenPath(a.UserID, a.current()), body, nil); err != nil {
			return fmt.Errorf("marking token %s: %w", a.TokenID(), err)
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

// DeleteAccount deletes tokens, roles and user (with the ACL of all). A user
// that has tokens of others is kept with its permissions, which these may need;
// kept answers their names then. The user goes last: it bears the mark by which a
// run that is repeated finds the rest.
func (c *Client) DeleteAccount(ctx context.Context, a Account, reporter progress.Reporter) (kept []string, err error) {
	names := []string{a.current()}
	for _, t := range a.Retiring {
		names = append(names, t.Name)
	}
	for _, name := range names {
		reporter.Report(ctx, "delete", "deleting token "+a.UserID+"!"+name)
		if err := c.deleteToken(ctx, a.UserID, name); err != nil {
			return nil, err
		}
	}
	if len(a.strangers) > 0 {
		return a.strangers, nil
	}
	roles, err := c.roles(ctx)
	if err != nil {
		return nil, err
	}
	for role := range roles {
		if ownRole(a.UserID, role) {
			if err := c.removeRole(ctx, role); err != nil {
				return nil, err
			}
		}
	}
	reporter.Report(ctx, "delete", "deleting user "+a.UserID)
	if err := c.remove(ctx, userPath(a.UserID), nil, nil); err != nil && !missing(err) {
		return nil, fmt.Errorf("deleting user %s: %w", a.UserID, err)
	}
	return nil, nil
}
