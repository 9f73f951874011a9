// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"maps"
	"slices"
	"strings"
)

func accessEndpoints() []endpoint {
	role := str("roleid").need().matching(reRole.String())
	privs := str("privs")
	gid := str("groupid").need().matching(reRole.String())
	return []endpoint{
		{method: "GET", path: "/access/domains", world: true, handle: listDomains},
		{method: "GET", path: "/access/permissions", schema: schema{str("userid"), str("path")}, handle: listPermissions},
		{method: "GET", path: "/access/acl", handle: listACL},
		{method: "PUT", path: "/access/acl", handle: updateACL, schema: schema{
			str("path").need(), str("roles").need(), str("users"), str("groups"), str("tokens"), boolean("propagate"), boolean("delete"),
		}},
		{method: "GET", path: "/access/roles", handle: listRoles},
		{method: "POST", path: "/access/roles", schema: schema{role, privs}, check: perm("/access", "Sys.Modify"), handle: createRole},
		{method: "GET", path: "/access/roles/{roleid}", schema: schema{role}, handle: getRole},
		{method: "PUT", path: "/access/roles/{roleid}", schema: schema{role, privs, boolean("append").with("privs")},
			check: perm("/access", "Sys.Modify"), handle: updateRole},
		{method: "DELETE", path: "/access/roles/{roleid}", schema: schema{role}, check: perm("/access", "Sys.Modify"), handle: deleteRole},
		{method: "GET", path: "/access/groups", handle: listGroups},
		{method: "POST", path: "/access/groups", schema: schema{gid, str("comment")}, check: perm("/access/groups", "Group.Allocate"), handle: createGroup},
		{method: "GET", path: "/access/groups/{groupid}", schema: schema{gid},
			check: permAny("/access/groups", "Sys.Audit", "Group.Allocate"), handle: getGroup},
		{method: "DELETE", path: "/access/groups/{groupid}", schema: schema{gid}, check: perm("/access/groups", "Group.Allocate"), handle: deleteGroup},
	}
}

func listDomains(*call) (any, error) {
	return []map[string]any{
		{"realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication"},
		{"realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server"},
	}, nil
}

// listPermissions answers the effective privileges, by path.
func listPermissions(c *call) (any, error) {
	who := c.who
	if c.has("userid") {
		who = parsePrincipal(c.str("userid"))
		if who.user != c.who.user || c.who.token != "" && who != c.who {
			if err := c.demand(c.who, "/access", "Sys.Audit"); err != nil {
				return nil, err
			}
		}
		u := c.state.Users[who.user]
		if u == nil {
			return nil, die("no such user ('%s')", who.user)
		}
		if who.token != "" && u.Tokens[who.token] == nil {
			return nil, die("no such token '%s' for user '%s'", who.token, who.user)
		}
	}
	paths := []string{c.str("path")}
	if !c.has("path") {
		paths = []string{"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms", "/mapping"}
		for _, e := range c.state.ACL {
			paths = append(paths, e.Path)
		}
	}
	out := map[string]map[string]int{}
	for _, raw := range paths {
		p, ok := normalizePath(raw)
		if !ok {
			return nil, invalid("path", "invalid ACL path '%s'", raw)
		}
		privs := map[string]int{}
		for name, propagate := range c.privilegesOn(who, p) {
			privs[name] = flag(propagate)
		}
		if len(privs) > 0 || c.has("path") {
			out[p] = privs
		}
	}
	return out, nil
}

func listACL(c *call) (any, error) {
	out := []map[string]any{}
	all := c.demandAny(c.who, "/access", "Sys.Audit", "Permissions.Modify") == nil
	for _, e := range c.state.ACL {
		if all || c.aclModify(c.who, e.Path) == nil {
			out = append(out, map[string]any{
				"path": e.Path, "type": e.Type, "ugid": e.UGID, "roleid": e.Role, "propagate": flag(e.Propagate),
			})
		}
	}
	return out, nil
}

func updateACL(c *call) (any, error) {
	p, ok := normalizePath(c.str("path"))
	if !ok {
		return nil, invalid("path", "invalid ACL path '%s'", c.str("path"))
	}
	if err := c.aclModify(c.who, p); err != nil {
		return nil, err
	}
	if !c.has("users") && !c.has("groups") && !c.has("tokens") {
		const text = "either 'users', 'groups' or 'tokens' is required."
		return nil, &refusal{status: 400, message: verificationFailed, params: map[string]string{"users": text, "groups": text, "tokens": text}}
	}
	entries, err := c.aclEntries(p)
	if err != nil {
		return nil, prefixed("ACL update failed", err)
	}
	for _, e := range entries {
		c.state.ACL = slices.DeleteFunc(c.state.ACL, func(old aclEntry) bool {
			return old.Path == e.Path && old.Type == e.Type && old.UGID == e.UGID && old.Role == e.Role
		})
		if !c.boolean("delete", false) {
			c.state.ACL = append(c.state.ACL, e)
		}
	}
	return nil, nil
}

// aclEntries are the entries that the call is about. A caller with less than
// Permissions.Modify may hand out only what it has itself.
func (c *call) aclEntries(p string) ([]aclEntry, error) {
	var entries []aclEntry
	add := func(role, typ, id string) {
		entries = append(entries, aclEntry{Path: p, Type: typ, UGID: id, Role: role, Propagate: c.boolean("propagate", true)})
	}
	mine := c.privilegesOn(c.who, p)
	_, full := mine["Permissions.Modify"]
	for _, role := range splitList(c.str("roles")) {
		privs, _, ok := c.rolePrivileges(role)
		if !ok {
			return nil, die("role '%s' does not exist", role)
		}
		for _, priv := range privs {
			if _, have := mine[priv]; !have && !full {
				return nil, forbidden(p + ", " + priv)
			}
		}
		for _, g := range splitList(c.str("groups")) {
			if c.state.Groups[g] == nil {
				return nil, die("group '%s' does not exist", g)
			}
			add(role, "group", g)
		}
		for _, u := range splitList(c.str("users")) {
			if c.state.Users[u] == nil {
				return nil, die("user '%s' does not exist", u)
			}
			add(role, "user", u)
		}
		for _, t := range splitList(c.str("tokens")) {
			who := parsePrincipal(t)
			if u := c.state.Users[who.user]; u == nil || u.Tokens[who.token] == nil {
				return nil, die("no such token '%s' for user '%s'", who.token, who.user)
			}
			add(role, "token", t)
		}
	}
	return entries, nil
}

func listRoles(c *call) (any, error) {
	out := []map[string]any{}
	builtin := c.release.builtinRoles()
	for _, name := range slices.Sorted(maps.Keys(builtin)) {
		out = append(out, map[string]any{"roleid": name, "privs": joinPrivs(builtin[name]), "special": 1})
	}
	for _, name := range slices.Sorted(maps.Keys(c.state.Roles)) {
		out = append(out, map[string]any{"roleid": name, "privs": joinPrivs(c.state.Roles[name]), "special": 0})
	}
	return out, nil
}

func joinPrivs(privs []string) string {
	return strings.Join(slices.Sorted(slices.Values(privs)), ",")
}

func getRole(c *call) (any, error) {
	privs, _, ok := c.rolePrivileges(c.str("roleid"))
	if !ok {
		return nil, die("role '%s' does not exist", c.str("roleid"))
	}
	out := map[string]int{}
	for _, p := range privs {
		out[p] = 1
	}
	return out, nil
}

// checkedPrivs reads the list of privileges of a call.
func (c *call) checkedPrivs() ([]string, error) {
	known := c.release.allPrivileges()
	privs := splitList(c.str("privs"))
	for _, p := range privs {
		if !slices.Contains(known, p) {
			return nil, invalid("privs", "invalid format - invalid privilege '%s'\n", p)
		}
	}
	slices.Sort(privs)
	return slices.Compact(privs), nil
}

func createRole(c *call) (any, error) {
	name := c.str("roleid")
	privs, err := c.checkedPrivs()
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(strings.ToUpper(name), "PVE") {
		return nil, invalid("roleid", "cannot use role ID starting with the (case-insensitive) 'PVE' namespace")
	}
	if _, _, ok := c.rolePrivileges(name); ok {
		return nil, die("create role failed: role '%s' already exists", name)
	}
	c.state.Roles[name] = privs
	return nil, nil
}

// customRole refuses built-in and missing roles.
func (c *call) customRole(what, verb string) (string, error) {
	name := c.str("roleid")
	_, builtin, ok := c.rolePrivileges(name)
	switch {
	case builtin:
		return "", die("auto-generated role '%s' cannot be %s", name, verb)
	case !ok:
		return "", die("%s: role '%s' does not exist", what, name)
	}
	return name, nil
}

func updateRole(c *call) (any, error) {
	privs, err := c.checkedPrivs()
	if err != nil {
		return nil, err
	}
	name, err := c.customRole("update role failed", "modified")
	if err != nil {
		return nil, err
	}
	if c.boolean("append", false) {
		privs = append(privs, c.state.Roles[name]...)
	}
	slices.Sort(privs)
	c.state.Roles[name] = slices.Compact(privs)
	return nil, nil
}

func deleteRole(c *call) (any, error) {
	name, err := c.customRole("delete role failed", "deleted")
	if err != nil {
		return nil, err
	}
	delete(c.state.Roles, name)
	c.state.ACL = slices.DeleteFunc(c.state.ACL, func(e aclEntry) bool { return e.Role == name })
	return nil, nil
}

// members are the users of a group.
func (s *Simulator) members(gid string) []string {
	out := []string{}
	for _, name := range slices.Sorted(maps.Keys(s.state.Users)) {
		if slices.Contains(s.state.Users[name].Groups, gid) {
			out = append(out, name)
		}
	}
	return out
}

func listGroups(c *call) (any, error) {
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(c.state.Groups)) {
		if c.demandAny(c.who, "/access/groups/"+id, "User.Modify", "Sys.Audit", "Group.Allocate") == nil {
			out = append(out, map[string]any{"groupid": id, "comment": c.state.Groups[id].Comment, "users": strings.Join(c.members(id), ",")})
		}
	}
	return out, nil
}

func createGroup(c *call) (any, error) {
	id := c.str("groupid")
	if c.state.Groups[id] != nil {
		return nil, die("create group failed: group '%s' already exists", id)
	}
	c.state.Groups[id] = &group{Comment: c.str("comment")}
	return nil, nil
}

func getGroup(c *call) (any, error) {
	g := c.state.Groups[c.str("groupid")]
	if g == nil {
		return nil, die("group '%s' does not exist", c.str("groupid"))
	}
	return map[string]any{"comment": g.Comment, "members": c.members(c.str("groupid"))}, nil
}

func deleteGroup(c *call) (any, error) {
	id := c.str("groupid")
	if c.state.Groups[id] == nil {
		return nil, die("delete group failed: group '%s' does not exist", id)
	}
	delete(c.state.Groups, id)
	for _, u := range c.state.Users {
		u.Groups = slices.DeleteFunc(u.Groups, func(g string) bool { return g == id })
	}
	c.state.ACL = slices.DeleteFunc(c.state.ACL, func(e aclEntry) bool { return e.Type == "group" && e.UGID == id })
	return nil, nil
}
