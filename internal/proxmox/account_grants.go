// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// aclEntry is one entry of the access control list.
type aclEntry struct {
	Path      string `json:"path"`
	Role      string `json:"roleid"`
	Type      string `json:"type"` // user, token, group
	Who       string `json:"ugid"`
	Propagate truth  `json:"propagate"`
}

// entries are those of the access control list that the account is to have:
// the user's, and with privilege separation the same ones for its token.
func (s AccountSpec) entries(v Version) []aclEntry {
	var out []aclEntry
	for _, g := range s.grants(v) {
		e := aclEntry{Path: g.Path, Role: g.Role, Type: "user", Who: s.UserID, Propagate: truth(g.Propagate)}
		out = append(out, e)
		if s.PrivilegeSeparation {
			e.Type, e.Who = "token", s.TokenID()
			out = append(out, e)
		}
	}
	return out
}

// belongsTo says whether an entry is about the account's user or token.
func (e aclEntry) belongsTo(s AccountSpec) bool {
	return e.Type == "user" && e.Who == s.UserID || e.Type == "token" && e.Who == s.TokenID()
}

func (c *Client) acl(ctx context.Context) ([]aclEntry, error) {
	var acl []aclEntry
	if err := c.get(ctx, "/access/acl", nil, &acl); err != nil {
		return nil, fmt.Errorf("reading the access control list: %w", err)
	}
	return acl, nil
}

// roles answers the privileges of every role.
func (c *Client) roles(ctx context.Context) (map[string][]string, error) {
	var list []struct {
		Role       string `json:"roleid"`
		Privileges string `json:"privs"`
	}
	if err := c.get(ctx, "/access/roles", nil, &list); err != nil {
		return nil, fmt.Errorf("listing the roles: %w", err)
	}
	out := map[string][]string{}
	for _, r := range list {
		out[r.Role] = normalPrivileges(strings.FieldsFunc(r.Privileges, func(c rune) bool { return c == ',' || c == ' ' }))
	}
	return out, nil
}

// access is all that concerns the rights of accounts, read once.
type access struct {
	version Version
	roles   map[string][]string
	acl     []aclEntry
}

func (c *Client) access(ctx context.Context) (a access, err error) {
	if a.version, err = c.Version(ctx); err != nil {
		return a, err
	}
	if a.roles, err = c.roles(ctx); err != nil {
		return a, err
	}
	a.acl, err = c.acl(ctx)
	return a, err
}

// readGrants compares roles and entries with what the account is to have, and
// takes over what it has.
func (c *Client) readGrants(ctx context.Context, spec AccountSpec, a *Account) error {
	have, err := c.access(ctx)
	if err != nil {
		return err
	}
	a.Permissions, a.Scope, a.Grants = have.describe(spec.UserID)
	sound := true
	for _, want := range spec.entries(have.version) {
		if slices.Contains(have.acl, want) || want.Type == "token" && !a.TokenThere {
			continue
		}
		visible, err := c.seesEntries(ctx, want.Path)
		if err != nil {
			return err
		}
		if visible {
			sound = false
			a.fault("%s %s has not the role %s on %s", want.Type, want.Who, want.Role, want.Path)
		}
	}
	for _, g := range spec.grants(have.version) {
		privileges, there := have.roles[g.Role]
		want := normalPrivileges(g.Privileges)
		switch {
		case !there:
			a.fault("the role %s is gone", g.Role)
		case len(want) > 0 && !slices.Equal(privileges, want):
			if less := without(want, privileges); len(less) > 0 {
				a.fault("the role %s lacks %s", g.Role, strings.Join(less, " "))
			}
			if more := without(privileges, want); len(more) > 0 {
				a.fault("the role %s has %s, which it is not to have", g.Role, strings.Join(more, " "))
			}
		default:
			continue
		}
		sound = false
	}
	if !sound || !a.TokenThere {
		return nil
	}
	hidden, err := c.hiddenPrivileges(ctx, spec, have)
	a.Faults = append(a.Faults, hidden...)
	return err
}

// without answers the elements of a that b has not.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// seesEntries says whether whoever works is told the entries on a path; the list
// leaves out the others without a word.
func (c *Client) seesEntries(ctx context.Context, path string) (bool, error) {
	lacking, err := c.lacks(ctx, "/access", "Sys.Audit")
	if err != nil || len(lacking) == 0 {
		return err == nil, err
	}
	lacking, err = c.lacks(ctx, path, "Permissions.Modify")
	return err == nil && len(lacking) == 0, err
}

// hiddenPrivileges answers what the token lacks in spite of its entries, because
// other ones take it away: NoAccess, or one on a deeper path.
func (c *Client) hiddenPrivileges(ctx context.Context, spec AccountSpec, have access) (faults []string, err error) {
	wanted := map[string][]string{}
	for _, g := range spec.grants(have.version) {
		wanted[g.Path] = append(wanted[g.Path], have.roles[g.Role]...)
	}
	for _, path := range slices.Sorted(maps.Keys(wanted)) {
		held, ok, err := c.privileges(ctx, spec.TokenID(), path)
		if err != nil {
			return nil, err
		}
		if lacking := held.lacking(wanted[path]); ok && len(lacking) > 0 {
			faults = append(faults, fmt.Sprintf("token %s lacks %s on %s in spite of its entries there; see what else is on that path and above: pveum acl list",
				spec.TokenID(), strings.Join(slices.Compact(lacking), " "), path))
		}
	}
	return faults, nil
}

// describe says which permissions a user's entries amount to.
func (a access) describe(user string) (permissions string, scope Scope, grants []Grant) {
	var own, all []aclEntry
	for _, e := range a.acl {
		if e.Type != "user" || e.Who != user {
			continue
		}
		all = append(all, e)
		if ownRole(user, e.Role) {
			own = append(own, e)
		}
	}
	on := func(role string) bool {
		return slices.ContainsFunc(all, func(e aclEntry) bool { return e.Path == "/" && e.Role == role && bool(e.Propagate) })
	}
	if on(roleOf(user)) {
		return LeastPrivilege, Scope{}, nil
	}
	if scope, ok := scopeOf(user, own); ok {
		return LeastPrivilege, scope, nil
	}
	if !slices.ContainsFunc(articleRoles, func(role string) bool { return !on(role) }) {
		return Article, Scope{}, nil
	}
	for _, e := range all {
		g := Grant{Path: e.Path, Role: e.Role, Propagate: bool(e.Propagate)}
		if ownRole(user, e.Role) {
			g.Role, g.Privileges = "", a.roles[e.Role]
		}
		grants = append(grants, g)
	}
	if len(grants) == 0 {
		return "", Scope{}, nil
	}
	return Custom, Scope{}, grants
}

// ensureRoles makes the account's own roles hold what they are to hold.
func (c *Client) ensureRoles(ctx context.Context, spec AccountSpec, have access) error {
	done := map[string]bool{}
	for _, g := range spec.grants(have.version) {
		want := normalPrivileges(g.Privileges)
		privileges, there := have.roles[g.Role]
		if len(want) == 0 || done[g.Role] || there && slices.Equal(privileges, want) {
			continue
		}
		done[g.Role] = true
		var err error
		if there {
			err = c.put(ctx, rolePath(g.Role), params{"privs": strings.Join(want, ",")}, nil)
		} else {
			err = c.post(ctx, "/access/roles", params{"roleid": g.Role, "privs": strings.Join(want, ",")}, nil)
		}
		if err != nil {
			return fmt.Errorf("making the role %s: %w", g.Role, err)
		}
	}
	return nil
}

func rolePath(role string) string { return "/access/roles/" + url.PathEscape(role) }

// ensureEntries makes those entries that the account lacks, one call for all
// roles on a path. propagate is always given: the API's default and the
// library's differ.
func (c *Client) ensureEntries(ctx context.Context, spec AccountSpec, have access) error {
	type place struct {
		path      string
		propagate truth
	}
	missing := map[place][]string{}
	var order []place
	for _, e := range spec.entries(have.version) {
		at := place{e.Path, e.Propagate}
		if slices.Contains(have.acl, e) || slices.Contains(missing[at], e.Role) {
			continue
		}
		if missing[at] == nil {
			order = append(order, at)
		}
		missing[at] = append(missing[at], e.Role)
	}
	for _, at := range order {
		body := params{"path": at.path, "roles": strings.Join(missing[at], ","), "users": spec.UserID, "propagate": 0}
		if at.propagate {
			body["propagate"] = 1
		}
		if spec.PrivilegeSeparation {
			body["tokens"] = spec.TokenID()
		}
		if err := c.put(ctx, "/access/acl", body, nil); err != nil {
			return fmt.Errorf("granting %s on %s to %s: %w", strings.Join(missing[at], ", "), at.path, spec.UserID, err)
		}
	}
	return nil
}

// dropGrants takes away what the account had and is not to have any more: the
// entries of its own roles and of prior, and roles that are no longer used. What
// others have given it stays, unless all is set.
func (c *Client) dropGrants(ctx context.Context, spec AccountSpec, have access, prior []aclEntry, all bool) error {
	want := spec.entries(have.version)
	used := map[string]bool{}
	for _, e := range want {
		used[e.Role] = true
	}
	for _, e := range have.acl {
		ours := all || ownRole(spec.UserID, e.Role) || slices.Contains(prior, e) || e.Type == "token" && !spec.PrivilegeSeparation
		if !e.belongsTo(spec) || !ours || slices.Contains(want, e) {
			continue
		}
		body := params{"path": e.Path, "roles": e.Role, e.Type + "s": e.Who, "delete": 1}
		if err := c.put(ctx, "/access/acl", body, nil); err != nil {
			return fmt.Errorf("taking the role %s on %s from %s: %w", e.Role, e.Path, e.Who, err)
		}
	}
	for role := range have.roles {
		if ownRole(spec.UserID, role) && !used[role] {
			if err := c.removeRole(ctx, role); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Client) removeRole(ctx context.Context, role string) error {
	if err := c.remove(ctx, rolePath(role), nil, nil); err != nil && !missing(err) {
		return fmt.Errorf("deleting the role %s: %w", role, err)
	}
	return nil
}
