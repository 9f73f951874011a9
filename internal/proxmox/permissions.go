// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// need is a set of privileges on one path, all of which are needed.
type need struct {
	path       string
	privileges []string
	why        string
}

// Privileges are those that somebody holds on a path.
type Privileges map[string]bool

// lacking answers those of the privileges that are not held, in order.
func (p Privileges) lacking(privileges []string) []string {
	var out []string
	for _, privilege := range slices.Sorted(slices.Values(privileges)) {
		if !p[privilege] {
			out = append(out, privilege)
		}
	}
	return out
}

// Permissions answers the effective privileges of a user or token, by path; of
// whoever works where identity is empty. With a path it answers that one alone,
// else all paths that the access control list names. Others' are told only with
// Sys.Audit on /access.
func (c *Client) Permissions(ctx context.Context, identity, path string) (map[string]Privileges, error) {
	query := params{}
	if identity != "" && identity != c.Identity() {
		query["userid"] = identity
	}
	if path != "" {
		query["path"] = path
	}
	var answer map[string]map[string]any
	if err := c.get(ctx, "/access/permissions", query, &answer); err != nil {
		return nil, fmt.Errorf("asking for the privileges of %s: %w", orElse(identity, c.Identity()), err)
	}
	out := map[string]Privileges{}
	for at, privileges := range answer {
		out[at] = Privileges{}
		for privilege := range privileges { // the value says whether it is inherited; being there is holding it
			out[at][privilege] = true
		}
	}
	return out, nil
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// privileges answers what somebody may do on a path. ok is false where Proxmox
// VE would not say.
func (c *Client) privileges(ctx context.Context, identity, path string) (held Privileges, ok bool, err error) {
	answer, err := c.Permissions(ctx, identity, path)
	if isDenied(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return answer[path], true, nil
}

// lacks answers those of the privileges on a path that whoever works has not.
func (c *Client) lacks(ctx context.Context, path string, privileges ...string) ([]string, error) {
	held, ok, err := c.privileges(ctx, "", path)
	if err != nil || !ok {
		return nil, err
	}
	return held.lacking(privileges), nil
}

// Shortage is what somebody lacks on a path.
type Shortage struct {
	Path       string
	Privileges []string
	// Commands grant it, one a line, on a node's shell.
	Commands []string
}

// Shortages answers what a user or token lacks of the privileges that are
// required on each path; of whoever works where identity is empty.
func (c *Client) Shortages(ctx context.Context, identity string, required map[string][]string) ([]Shortage, error) {
	var out []Shortage
	for _, path := range slices.Sorted(maps.Keys(required)) {
		answer, err := c.Permissions(ctx, identity, path)
		if err != nil {
			return nil, err
		}
		lacking := answer[path].lacking(required[path])
		if len(lacking) == 0 {
			continue
		}
		commands, err := c.grantsFor(ctx, orElse(identity, c.Identity()), path, answer[path], lacking)
		if err != nil {
			return nil, err
		}
		out = append(out, Shortage{Path: path, Privileges: lacking, Commands: commands})
	}
	return out, nil
}

// preflight refuses to begin what could not be finished: it names each path,
// the privileges that are missing there and the commands that grant them.
func (c *Client) preflight(ctx context.Context, needs []need) error {
	var lines []string
	for _, n := range needs {
		held, ok, err := c.privileges(ctx, "", n.path)
		if err != nil {
			return err
		}
		lacking := held.lacking(n.privileges)
		if !ok || len(lacking) == 0 {
			continue
		}
		commands, err := c.grantsFor(ctx, c.Identity(), n.path, held, lacking)
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("on %s: %s, to %s. To grant it:\n  %s", n.path, strings.Join(lacking, " "), n.why, strings.Join(commands, "\n  ")))
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s lacks privileges, and nothing was made:\n%s", ErrDenied, c.Identity(), strings.Join(lines, "\n"))
}

// grantsFor are the commands after which identity has the lacking privileges on
// a path. An entry below / replaces what is inherited from above, so what is
// held there by now is granted with it. A token with separate privileges has
// what its user has as well, so the user may be in need of the same.
func (c *Client) grantsFor(ctx context.Context, identity, path string, held Privileges, lacking []string) ([]string, error) {
	commands := grantCommands(identity, path, withHeld(path, held, lacking))
	user, _, isToken := strings.Cut(identity, "!")
	if !isToken || user == superuser {
		return commands, nil
	}
	of, ok, err := c.privileges(ctx, user, path)
	if err != nil || !ok {
		return commands, err
	}
	if short := of.lacking(lacking); len(short) > 0 {
		commands = append(grantCommands(user, path, withHeld(path, of, short)), commands...)
	}
	return commands, nil
}

// superuser has every privilege.
const superuser = "root@pam"

func withHeld(path string, held Privileges, lacking []string) []string {
	if path == "/" {
		return lacking // roles on one path add up
	}
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(held)), lacking))))
}

// grantCommands make a role with the privileges and give it to a user or token
// on a path.
func grantCommands(identity, path string, privileges []string) []string {
	kind := "users"
	if strings.Contains(identity, "!") {
		kind = "tokens"
	}
	// A role of its own for each path and kind: what it holds differs.
	role := strings.Trim("Terraform-"+kind+unsafeInRole.ReplaceAllString(path, "-"), "-")
	list := strings.Join(privileges, " ")
	return []string{
		fmt.Sprintf("pveum role add %s --privs '%s' || pveum role modify %s --append 1 --privs '%s'", role, list, role, list),
		fmt.Sprintf("pveum acl modify %s --%s %s --roles %s", path, kind, shellQuoted(identity), role),
	}
}

// shellQuoted answers a text as one word of a shell's command: a user's name may
// hold anything.
func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// plainWord matches what needs no quotes.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9@._-]+$`)

// ShellWord answers a text as one word of a command for a node's shell, in quotes
// where it needs them.
func ShellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return shellQuoted(text)
}
