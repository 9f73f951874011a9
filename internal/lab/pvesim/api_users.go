// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/crypto/bcrypt"
)

func userEndpoints() []endpoint {
	uid := userParam("userid").need()
	userFields := schema{
		uid, boolean("enable"), integer("expire"), str("comment").between(0, 2048), str("email").between(0, 254),
		str("firstname").between(0, 1024), str("lastname").between(0, 1024), str("groups"), str("keys").between(0, 4096).matching(`^[0-9a-zA-Z!=]*$`),
	}
	tokenSchema := schema{uid, str("tokenid").need().between(2, 0).matching(reToken.String())}
	tokenFields := append(slices.Clone(tokenSchema), str("comment"), integer("expire"), boolean("privsep"))
	own := anyOf(userSelf, userGroup(false, "User.Modify"))
	return []endpoint{
		{method: "POST", path: "/access/ticket", world: true, ticketOnly: true, handle: createTicket, schema: schema{
			str("username").need().between(0, 64), str("password").need(), str("realm"), str("otp"), str("path"), str("privs"),
			boolean("new-format"), str("tfa-challenge"),
		}},
		{method: "GET", path: "/access/users", schema: schema{boolean("enabled"), boolean("full")}, handle: listUsers},
		{method: "POST", path: "/access/users", schema: append(slices.Clone(userFields), str("password").between(8, 64)),
			check: allOf(userRealm, userGroup(true, "User.Modify")), handle: createUser},
		{method: "GET", path: "/access/users/{userid}", schema: schema{uid}, check: userGroup(false, "User.Modify", "Sys.Audit"), handle: getUser},
		{method: "PUT", path: "/access/users/{userid}", schema: append(slices.Clone(userFields), boolean("append").with("groups")),
			check: userUpdate, handle: updateUser},
		{method: "DELETE", path: "/access/users/{userid}", schema: schema{uid}, check: allOf(userRealm, userDelete), handle: deleteUser},
		{method: "GET", path: "/access/users/{userid}/token", schema: schema{uid}, check: own, handle: listTokens},
		{method: "GET", path: "/access/users/{userid}/token/{tokenid}", schema: tokenSchema, check: own, handle: getToken},
		{method: "POST", path: "/access/users/{userid}/token/{tokenid}", schema: tokenFields, check: tokenOwner, handle: createToken},
		{method: "PUT", path: "/access/users/{userid}/token/{tokenid}", schema: append(slices.Clone(tokenFields), boolean("regenerate"), str("delete")),
			check: tokenOwner, handle: updateToken},
		{method: "DELETE", path: "/access/users/{userid}/token/{tokenid}", schema: tokenSchema, check: tokenOwner, handle: deleteToken},
	}
}

// tokenOwner says first that a user is missing, before any permission.
func tokenOwner(c *call) error {
	if c.state.Users[c.str("userid")] == nil {
		return die("no such user ('%s')", c.str("userid"))
	}
	return anyOf(userSelf, userGroup(false, "User.Modify"))(c)
}

// userUpdate is the check of an update, whose error names the call.
func userUpdate(c *call) error {
	if c.state.Users[c.str("userid")] == nil {
		return die("update user failed: no such user ('%s')", c.str("userid"))
	}
	return userGroup(false, "User.Modify")(c)
}

// userDelete lets root delete a user that is not there.
func userDelete(c *call) error {
	if c.who.root() {
		return nil
	}
	return userGroup(false, "User.Modify")(c)
}

func createTicket(c *call) (any, error) {
	name := c.str("username")
	if !strings.Contains(name, "@") {
		name += "@" + cmp.Or(c.str("realm"), "pam")
	}
	denied := &refusal{status: 401, message: "authentication failure"} // says no more, lest users be guessed
	u := c.state.Users[name]
	if u == nil || c.usable(name, u) != nil || c.has("otp") && c.has("tfa-challenge") {
		return nil, denied
	}
	password := c.str("password")
	needed := false
	if c.has("tfa-challenge") { // the second half of a login
		got, challenge, ok := c.verifyTicket(c.str("tfa-challenge"))
		if !ok || !challenge || got != name || !c.secondFactorOK(u, password) {
			return nil, denied
		}
	} else if got, challenge, ok := c.verifyTicket(password); ok && !challenge && (got == name || got == superuser) {
		// A ticket as password renews the session.
	} else {
		switch {
		case !c.passwordOK(name, password):
			return nil, denied
		case c.has("otp"):
			if len(u.TOTP) == 0 || !c.secondFactorOK(u, c.str("otp")) {
				return nil, denied
			}
		default:
			needed = len(u.TOTP) > 0
		}
	}
	out := map[string]any{"username": name, "CSRFPreventionToken": c.csrfToken(name)}
	if needed {
		out["ticket"], out["NeedTFA"] = c.newChallenge(name), 1
		return out, nil
	}
	capabilities := map[string]map[string]int{}
	for group, p := range map[string]string{"access": "/access", "dc": "/", "nodes": "/nodes", "storage": "/storage", "vms": "/vms", "sdn": "/sdn", "mapping": "/mapping"} {
		capabilities[group] = map[string]int{}
		for priv := range c.privilegesOn(principal{user: name}, p) {
			capabilities[group][priv] = 1
		}
	}
	out["ticket"], out["cap"] = c.newTicket(name), capabilities
	return out, nil
}

// seesUser says whether a user is in the caller's list.
func (c *call) seesUser(name string, u *user) bool {
	if name == c.who.user {
		return true
	}
	if c.demandAny(c.who, "/access/groups", "User.Modify", "Sys.Audit") == nil {
		return true
	}
	return slices.ContainsFunc(u.Groups, func(g string) bool {
		return c.demandAny(c.who, "/access/groups/"+g, "User.Modify", "Sys.Audit") == nil
	})
}

func listUsers(c *call) (any, error) {
	out := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(c.state.Users)) {
		u := c.state.Users[name]
		if !c.seesUser(name, u) || c.has("enabled") && c.boolean("enabled", true) != u.Enable {
			continue
		}
		m := u.fields()
		m["userid"] = name
		m["realm-type"] = "pve"
		if strings.HasSuffix(name, "@pam") {
			m["realm-type"] = "pam"
		}
		if c.boolean("full", false) {
			m["groups"] = strings.Join(u.Groups, ",")
			tokens := []map[string]any{}
			for _, id := range slices.Sorted(maps.Keys(u.Tokens)) {
				t := u.Tokens[id].fields()
				t["tokenid"] = id
				tokens = append(tokens, t)
			}
			m["tokens"] = tokens
		}
		out = append(out, m)
	}
	return out, nil
}

// fields is what lists and single answers of a user share.
func (u *user) fields() map[string]any {
	m := map[string]any{"enable": flag(u.Enable), "expire": u.Expire}
	for k, v := range map[string]string{"comment": u.Comment, "email": u.Email, "firstname": u.Firstname, "lastname": u.Lastname, "keys": u.Keys} {
		if v != "" {
			m[k] = v
		}
	}
	return m
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (t *token) fields() map[string]any {
	m := map[string]any{"privsep": flag(t.Privsep), "expire": t.Expire}
	if t.Comment != "" {
		m["comment"] = t.Comment
	}
	return m
}

func getUser(c *call) (any, error) {
	u := c.state.Users[c.str("userid")]
	m := u.fields()
	m["groups"] = append([]string{}, u.Groups...)
	if len(u.Tokens) > 0 {
		tokens := map[string]any{}
		for id, t := range u.Tokens {
			tokens[id] = t.fields()
		}
		m["tokens"] = tokens
	}
	return m, nil
}

// prefixed puts the call's own words before a failure's.
func prefixed(prefix string, err error) error {
	var ref *refusal
	if errors.As(err, &ref) && ref.status == 500 {
		return die("%s: %s", prefix, ref.message)
	}
	return err
}

func createUser(c *call) (any, error) {
	const what = "create user failed"
	name := c.str("userid")
	if c.state.Users[name] != nil {
		return nil, die("%s: user '%s' already exists", what, name)
	}
	u := &user{Enable: c.boolean("enable", true)}
	if c.has("password") {
		realm := name[strings.LastIndex(name, "@")+1:]
		if realm != "pam" && realm != "pve" {
			return nil, die("%s: auth domain '%s' does not exist", what, realm)
		}
		if realm == "pam" {
			return nil, die("%s: change password failed: user '%s' does not exist", what, strings.TrimSuffix(name, "@pam"))
		}
		hash, err := bcrypt.GenerateFromPassword([]byte(c.str("password")), bcrypt.MinCost)
		if err != nil {
			return nil, die("%s: %v", what, err)
		}
		u.Password = hash
	}
	if err := c.applyUser(u, false); err != nil {
		return nil, prefixed(what, err)
	}
	c.state.Users[name] = u
	return nil, nil
}

// applyUser takes the parameters over that were given; empty ones clear.
func (c *call) applyUser(u *user, appendGroups bool) error {
	for name, field := range map[string]*string{
		"comment": &u.Comment, "email": &u.Email, "firstname": &u.Firstname, "lastname": &u.Lastname, "keys": &u.Keys,
	} {
		if c.has(name) {
			*field = c.str(name)
		}
	}
	if c.has("expire") {
		u.Expire = int64(c.integer("expire"))
	}
	if c.has("enable") {
		u.Enable = c.boolean("enable", true)
	}
	if !c.has("groups") {
		return nil
	}
	groups := splitList(c.str("groups"))
	for _, g := range groups {
		if c.state.Groups[g] == nil {
			return die("no such group '%s'", g)
		}
	}
	if appendGroups {
		groups = append(slices.Clone(u.Groups), groups...)
	}
	slices.Sort(groups)
	u.Groups = slices.Compact(groups)
	return nil
}

func updateUser(c *call) (any, error) {
	if err := c.applyUser(c.state.Users[c.str("userid")], c.boolean("append", false)); err != nil {
		return nil, prefixed("update user failed", err)
	}
	return nil, nil
}

func deleteUser(c *call) (any, error) {
	name := c.str("userid")
	if name == superuser {
		return nil, die("delete user failed: unable to delete root user '%s'", name)
	}
	delete(c.state.Users, name)
	c.state.ACL = slices.DeleteFunc(c.state.ACL, func(e aclEntry) bool {
		return e.Type == "user" && e.UGID == name || e.Type == "token" && strings.HasPrefix(e.UGID, name+"!")
	})
	return nil, nil
}

func listTokens(c *call) (any, error) {
	u := c.state.Users[c.str("userid")]
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(u.Tokens)) {
		m := u.Tokens[id].fields()
		m["tokenid"] = id
		out = append(out, m)
	}
	return out, nil
}

// findToken answers the token named by the call.
func (c *call) findToken() (*token, error) {
	t := c.state.Users[c.str("userid")].Tokens[c.str("tokenid")]
	if t == nil {
		return nil, die("no such token '%s' for user '%s'", c.str("tokenid"), c.str("userid"))
	}
	return t, nil
}

func getToken(c *call) (any, error) {
	t, err := c.findToken()
	if err != nil {
		return nil, err
	}
	return t.fields(), nil
}

func createToken(c *call) (any, error) {
	u := c.state.Users[c.str("userid")]
	if u.Tokens[c.str("tokenid")] != nil {
		return nil, invalid("tokenid", "Token already exists.")
	}
	secret := uuid.NewString()
	t := &token{
		Comment: c.str("comment"), Expire: int64(c.integer("expire")), Privsep: c.boolean("privsep", true), Hash: tokenHash(secret),
	}
	u.setToken(c.str("tokenid"), t)
	return map[string]any{
		"full-tokenid": c.str("userid") + "!" + c.str("tokenid"), "info": infoOf(t), "value": secret,
	}, nil
}

// infoOf is the token in the answer of a create, where Proxmox VE echoes the
// parameters as strings.
func infoOf(t *token) map[string]any {
	m := map[string]any{"privsep": fmt.Sprint(flag(t.Privsep))}
	if t.Expire != 0 {
		m["expire"] = fmt.Sprint(t.Expire)
	}
	if t.Comment != "" {
		m["comment"] = t.Comment
	}
	return m
}

func updateToken(c *call) (any, error) {
	for name, since := range map[string][2]int{"regenerate": {9, 2}, "delete": {9, 1}} {
		if c.has(name) && !c.release.atLeast(since[0], since[1]) {
			return nil, invalid(name, "property is not defined in schema and the schema does not allow additional properties")
		}
	}
	t, err := c.findToken()
	if err != nil {
		return nil, err
	}
	if c.has("comment") {
		t.Comment = c.str("comment")
	}
	if c.has("expire") {
		t.Expire = int64(c.integer("expire"))
	}
	if c.has("privsep") {
		t.Privsep = c.boolean("privsep", true)
	}
	for _, f := range splitList(c.str("delete")) {
		if f != "comment" {
			return nil, invalid("delete", "unable to delete '%s'", f)
		}
		t.Comment = ""
	}
	out := t.fields()
	if c.boolean("regenerate", false) {
		secret := uuid.NewString()
		t.Hash = tokenHash(secret)
		out["value"], out["full-tokenid"] = secret, c.str("userid")+"!"+c.str("tokenid")
	}
	return out, nil
}

func deleteToken(c *call) (any, error) {
	if _, err := c.findToken(); err != nil {
		return nil, err
	}
	full := c.str("userid") + "!" + c.str("tokenid")
	delete(c.state.Users[c.str("userid")].Tokens, c.str("tokenid"))
	c.state.ACL = slices.DeleteFunc(c.state.ACL, func(e aclEntry) bool { return e.Type == "token" && e.UGID == full })
	return nil, nil
}
