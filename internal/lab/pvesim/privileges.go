// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// privileges is a set; the value says whether the privilege is inherited by
// deeper paths.
type privileges map[string]bool

func set(names ...string) privileges {
	p := privileges{}
	for _, n := range names {
		p[n] = true
	}
	return p
}

// builtinRoles is the table of roles of a release (pve-access-control,
// "special" roles).
func (r release) builtinRoles() map[string][]string {
	vmUser := []string{"VM.Audit", "VM.Backup", "VM.Config.CDROM", "VM.Config.Cloudinit", "VM.Console", "VM.PowerMgmt"}
	vmAdmin := append(slices.Clone(vmUser), "VM.Allocate", "VM.Clone", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType",
		"VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.Migrate", "VM.Snapshot", "VM.Snapshot.Rollback")
	auditor := []string{"VM.Audit", "Sys.Audit", "Datastore.Audit", "SDN.Audit", "Pool.Audit", "Mapping.Audit"}
	if r.atLeast(9, 0) {
		vmUser = append(vmUser, "VM.GuestAgent.Audit")
		vmAdmin = append(vmAdmin, "VM.Replicate", "VM.GuestAgent.Audit", "VM.GuestAgent.FileRead", "VM.GuestAgent.FileWrite",
			"VM.GuestAgent.FileSystemMgmt", "VM.GuestAgent.Unrestricted")
		auditor = append(auditor, "VM.GuestAgent.Audit")
	} else {
		vmAdmin = append(vmAdmin, "VM.Monitor")
	}
	datastoreUser := []string{"Datastore.AllocateSpace", "Datastore.Audit"}
	datastoreAdmin := append(slices.Clone(datastoreUser), "Datastore.Allocate", "Datastore.AllocateTemplate")
	sysAdmin := []string{"Permissions.Modify", "Sys.Audit", "Sys.Console", "Sys.Syslog"}
	sdnAdmin := []string{"SDN.Allocate", "SDN.Audit", "SDN.Use"}
	userAdmin := []string{"User.Modify", "Group.Allocate", "Realm.AllocateUser"}
	poolAdmin := []string{"Pool.Allocate", "Pool.Audit"}
	mappingAdmin := []string{"Mapping.Audit", "Mapping.Modify", "Mapping.Use"}

	admin := slices.Concat(vmAdmin, datastoreAdmin, sysAdmin, sdnAdmin, userAdmin, poolAdmin, mappingAdmin)
	pveAdmin := slices.DeleteFunc(slices.Clone(admin), func(p string) bool { return p == "Permissions.Modify" })
	return map[string][]string{
		"NoAccess":          {},
		"Administrator":     r.allPrivileges(),
		"PVEAdmin":          pveAdmin,
		"PVEAuditor":        auditor,
		"PVEDatastoreAdmin": datastoreAdmin,
		"PVEDatastoreUser":  datastoreUser,
		"PVEMappingAdmin":   mappingAdmin,
		"PVEMappingAudit":   {"Mapping.Audit"},
		"PVEMappingUser":    {"Mapping.Audit", "Mapping.Use"},
		"PVEPoolAdmin":      poolAdmin,
		"PVEPoolUser":       {"Pool.Audit"},
		"PVESDNAdmin":       sdnAdmin,
		"PVESDNUser":        {"SDN.Audit", "SDN.Use"},
		"PVESysAdmin":       sysAdmin,
		"PVETemplateUser":   {"VM.Audit", "VM.Clone"},
		"PVEUserAdmin":      userAdmin,
		"PVEVMAdmin":        vmAdmin,
		"PVEVMUser":         vmUser,
	}
}

// allPrivileges are those that exist in a release.
func (r release) allPrivileges() []string {
	all := []string{
		"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit",
		"Group.Allocate", "Mapping.Audit", "Mapping.Modify", "Mapping.Use", "Permissions.Modify",
		"Pool.Allocate", "Pool.Audit", "Realm.Allocate", "Realm.AllocateUser", "SDN.Allocate", "SDN.Audit", "SDN.Use",
		"Sys.AccessNetwork", "Sys.Audit", "Sys.Console", "Sys.Incoming", "Sys.Modify", "Sys.PowerMgmt", "Sys.Syslog",
		"User.Modify", "VM.Allocate", "VM.Audit", "VM.Backup", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU",
		"VM.Config.Cloudinit", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network",
		"VM.Config.Options", "VM.Console", "VM.Migrate", "VM.PowerMgmt", "VM.Snapshot", "VM.Snapshot.Rollback",
	}
	if r.atLeast(9, 0) {
		return append(all, "VM.GuestAgent.Audit", "VM.GuestAgent.FileRead", "VM.GuestAgent.FileSystemMgmt",
			"VM.GuestAgent.FileWrite", "VM.GuestAgent.Unrestricted", "VM.Replicate")
	}
	return append(all, "VM.Monitor")
}

// rolePrivileges answers the privileges of a role, and whether it exists.
func (s *Simulator) rolePrivileges(name string) (privs []string, builtin, ok bool) {
	if p, ok := s.release.builtinRoles()[name]; ok {
		return p, true, true
	}
	p, ok := s.state.Roles[name]
	return p, false, ok
}

// aclEntry grants a role on a path.
type aclEntry struct {
	Path      string `json:"path"`
	Type      string `json:"type"` // user, group or token
	UGID      string `json:"ugid"`
	Role      string `json:"roleid"`
	Propagate bool   `json:"propagate"`
}

const noAccess = "NoAccess"

// rolesOn answers the roles of a user or a token on a path with whether each
// propagates. An entry on a deeper path replaces all that is inherited, roles on
// one path add up, a user's entry hides its groups', NoAccess hides all.
func (s *Simulator) rolesOn(who principal, p string) map[string]bool {
	roles := map[string]bool{}
	for _, at := range prefixes(p) {
		final := at == p
		var found map[string]bool
		if who.token != "" {
			found = s.rolesAt(at, "token", []string{who.String()}, final)
		} else {
			found = s.rolesAt(at, "user", []string{who.user}, final)
			if found == nil {
				if u := s.state.Users[who.user]; u != nil {
					found = s.rolesAt(at, "group", u.Groups, final)
				}
			}
		}
		if found != nil {
			roles = found
		}
	}
	return roles
}

// rolesAt answers the entries of exactly one path, nil where there are none.
func (s *Simulator) rolesAt(at, typ string, ids []string, final bool) map[string]bool {
	var found map[string]bool
	for _, e := range s.state.ACL {
		if e.Path != at || e.Type != typ || !slices.Contains(ids, e.UGID) || !final && !e.Propagate {
			continue
		}
		if e.Role == noAccess {
			return map[string]bool{noAccess: e.Propagate}
		}
		if found == nil {
			found = map[string]bool{}
		}
		found[e.Role] = e.Propagate
	}
	return found
}

// prefixes answers "/", "/a", "/a/b" for "/a/b".
func prefixes(p string) []string {
	out := []string{"/"}
	for i := 1; i < len(p); i++ {
		if p[i] == '/' {
			out = append(out, p[:i])
		}
	}
	if p != "/" {
		out = append(out, p)
	}
	return out
}

// privilegesOn answers what who may do on a path. A token without privilege
// separation has its user's privileges, one with it only those that both have.
func (s *Simulator) privilegesOn(who principal, p string) privileges {
	if who.token != "" {
		u := s.state.Users[who.user]
		if u == nil || u.Tokens[who.token] == nil {
			return privileges{}
		}
		users := s.privilegesOn(principal{user: who.user}, p)
		if !u.Tokens[who.token].Privsep {
			return users
		}
		own := s.grantedOn(who, p)
		maps.DeleteFunc(own, func(priv string, _ bool) bool { _, ok := users[priv]; return !ok })
		return own
	}
	if who.user == superuser {
		return set(s.release.allPrivileges()...)
	}
	return s.grantedOn(who, p)
}

// grantedOn turns the roles on a path, and those on the pools that hold it, into
// privileges.
func (s *Simulator) grantedOn(who principal, p string) privileges {
	roles := s.rolesOn(who, p)
	privs := privileges{}
	if _, ok := roles[noAccess]; ok {
		return privs
	}
	for _, pl := range s.poolsHolding(p) {
		poolRoles := s.rolesOn(who, "/pool/"+pl)
		if _, ok := poolRoles[noAccess]; ok {
			return privs // on a pool it takes away what the path itself grants
		}
		for role := range poolRoles {
			if _, ok := roles[role]; !ok {
				roles[role] = false
			}
		}
	}
	for role, propagate := range roles {
		names, _, _ := s.rolePrivileges(role)
		for _, n := range names {
			privs[n] = privs[n] || propagate
		}
	}
	return privs
}

// poolsHolding answers the pools that a machine's or a storage's path is in.
func (s *Simulator) poolsHolding(p string) []string {
	var out []string
	if id, ok := strings.CutPrefix(p, "/vms/"); ok {
		vmid, err := strconv.Atoi(id)
		for name, pl := range s.state.Pools {
			if err == nil && slices.Contains(pl.VMs, vmid) {
				out = append(out, name)
			}
		}
	}
	if id, ok := strings.CutPrefix(p, "/storage/"); ok {
		for name, pl := range s.state.Pools {
			if slices.Contains(pl.Storages, id) {
				out = append(out, name)
			}
		}
	}
	return out
}

var aclPaths = regexp.MustCompile(`^(/|/access|/access/groups(/[^/]+)?|/access/realm(/[^/]+)?|/mapping(/(pci|usb|dir)(/[^/]+)?)?|` +
	`/nodes(/[A-Za-z0-9.-]+)?|/pool(/[A-Za-z0-9._-]+){0,3}|/sdn(/(zones(/[A-Za-z0-9._-]+){0,3}|controllers(/[^/]+)?|dns(/[^/]+)?|ipams(/[^/]+)?|fabrics(/[^/]+)?))?|` +
	`/storage(/[A-Za-z0-9._-]+)?|/vms(/[1-9][0-9]{2,})?)$`)

// normalizePath cleans an access control path; ok is false for those that
// Proxmox VE refuses.
func normalizePath(p string) (string, bool) {
	if !strings.HasPrefix(p, "/") {
		return "", false
	}
	p = path.Clean(p)
	return p, aclPaths.MatchString(p)
}

// may says whether who has all of the privileges on a path.
func (s *Simulator) may(who principal, p string, privs ...string) bool {
	return s.demand(who, p, privs...) == nil
}

// demand refuses who does not have all of the privileges on a path.
func (s *Simulator) demand(who principal, p string, privs ...string) error {
	have := s.privilegesOn(who, p)
	for _, priv := range privs {
		if _, ok := have[priv]; !ok {
			return forbidden(p + ", " + priv)
		}
	}
	return nil
}

// demandAny refuses who has none of the privileges on a path.
func (s *Simulator) demandAny(who principal, p string, privs ...string) error {
	have := s.privilegesOn(who, p)
	for _, priv := range privs {
		if _, ok := have[priv]; ok {
			return nil
		}
	}
	return forbidden(p + ", " + strings.Join(privs, "|"))
}

// check is a privilege test of the table.
type check func(*call) error

var placeholder = regexp.MustCompile(`\{[a-z]+\}`)

// expand puts parameters into a path of the table.
func (c *call) expand(p string) string {
	return placeholder.ReplaceAllStringFunc(p, func(m string) string { return c.str(m[1 : len(m)-1]) })
}

// perm demands all of the privileges.
func perm(p string, privs ...string) check {
	return func(c *call) error { return c.demand(c.who, c.expand(p), privs...) }
}

// permAny demands one of the privileges.
func permAny(p string, privs ...string) check {
	return func(c *call) error { return c.demandAny(c.who, c.expand(p), privs...) }
}

// permWith is perm that fails when a parameter was not given.
func permWith(param, p string, privs ...string) check {
	return func(c *call) error {
		if !c.has(param) {
			return forbidden("")
		}
		return c.demand(c.who, c.expand(p), privs...)
	}
}

func allOf(checks ...check) check {
	return func(c *call) error {
		for _, ch := range checks {
			if err := ch(c); err != nil {
				return err
			}
		}
		return nil
	}
}

// anyOf refuses with a bare text when none of the checks passes.
func anyOf(checks ...check) check {
	return func(c *call) error {
		for _, ch := range checks {
			if ch(c) == nil {
				return nil
			}
		}
		return forbidden("")
	}
}

// userSelf passes a user that asks about itself.
func userSelf(c *call) error {
	if c.state.Users[c.str("userid")] == nil {
		return die("no such user ('%s')", c.str("userid"))
	}
	if c.who.String() == c.str("userid") {
		return nil
	}
	return forbidden("")
}

// userRealm demands Realm.AllocateUser on the realm of the user named.
func userRealm(c *call) error {
	id := c.str("userid")
	if !reUser.MatchString(id) {
		return invalid("userid", "invalid format - value '%s' does not look like a valid user name\n", id)
	}
	realm := id[strings.LastIndex(id, "@")+1:]
	return c.demand(c.who, "/access/realm/"+realm, "Realm.AllocateUser")
}

// userGroup demands a privilege on all groups, or on one that the user named is
// in. With create the user need not exist and the groups named are what counts.
func userGroup(create bool, privs ...string) check {
	return func(c *call) error {
		id := c.str("userid")
		u := c.state.Users[id]
		if !create && u == nil {
			return die("no such user ('%s')", id)
		}
		if c.demandAny(c.who, "/access/groups", privs...) == nil {
			return nil
		}
		if create {
			groups := splitList(c.str("groups"))
			if len(groups) == 0 {
				return forbidden("/access/groups, " + strings.Join(privs, "|"))
			}
			for _, g := range groups {
				if err := c.demandAny(c.who, "/access/groups/"+g, privs...); err != nil {
					return err
				}
			}
			return nil
		}
		for _, g := range u.Groups {
			if c.demandAny(c.who, "/access/groups/"+g, privs...) == nil {
				return nil
			}
		}
		return forbidden("")
	}
}

// aclModify demands the right to change permissions of a path.
func (s *Simulator) aclModify(who principal, p string) error {
	privs := []string{"Permissions.Modify"}
	switch {
	case strings.HasPrefix(p, "/storage/"):
		privs = append(privs, "Datastore.Allocate")
	case strings.HasPrefix(p, "/vms/"):
		privs = append(privs, "VM.Allocate")
	case strings.HasPrefix(p, "/pool/"):
		privs = append(privs, "Pool.Allocate")
	}
	return s.demandAny(who, p, privs...)
}
