// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/url"
	"strings"
)

// need is a set of privileges on one path, all of which are needed.
type need struct {
	path       string
	privileges []string
	why        string
}

// privileges answers what whoever works may do on a path. ok is false where
// Proxmox VE would not say.
func (c *Client) privileges(ctx context.Context, path string) (held map[string]bool, ok bool, err error) {
	var answer map[string]map[string]int
	if err := c.get(ctx, "/access/permissions?path="+url.QueryEscape(path), nil, &answer); err != nil {
		if isDenied(err) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("asking for the privileges on %s: %w", path, err)
	}
	held = map[string]bool{}
	for privilege := range answer[path] {
		held[privilege] = true
	}
	return held, true, nil
}

// lacks answers those of the privileges on a path that whoever works has not.
func (c *Client) lacks(ctx context.Context, path string, privileges ...string) ([]string, error) {
	held, ok, err := c.privileges(ctx, path)
	if err != nil || !ok {
		return nil, err
	}
	var lacking []string
	for _, privilege := range privileges {
		if !held[privilege] {
			lacking = append(lacking, privilege)
		}
	}
	return lacking, nil
}

// preflight refuses to begin what could not be finished: it names each path,
// the privileges that are missing there and the command that grants them.
func (c *Client) preflight(ctx context.Context, needs []need) error {
	var lines []string
	for _, n := range needs {
		lacking, err := c.lacks(ctx, n.path, n.privileges...)
		if err != nil {
			return err
		}
		if len(lacking) == 0 {
			continue
		}
		list := strings.Join(lacking, " ")
		lines = append(lines, fmt.Sprintf("on %s: %s, to %s. To grant it: %s", n.path, list, n.why, c.grantLine(n.path, list)))
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s lacks privileges, and nothing was made:\n%s", ErrDenied, c.Identity(), strings.Join(lines, "\n"))
}
