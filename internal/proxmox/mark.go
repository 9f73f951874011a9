// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"encoding/json"
	"strings"
	"time"
)

// markPrefix starts the line that says that, and for whom, a thing was made by
// this provider. It lies in a VM's description, and in the comment of a user
// and of a token.
const markPrefix = "terraform-provider-capi:"

// State of a marked thing.
const (
	// stateBuilding: not finished yet.
	stateBuilding = "building"
	// stateMade: finished, but the run that made it may have been killed before
	// it could tell Terraform. Whoever creates the same may take it over once
	// the lease has run out.
	stateMade = "made"
	// stateKept: finished and known to be in a state. Nobody else touches it.
	stateKept = "kept"
	// stateRetired: a finished template that another has taken the place of, and
	// that was left for a while; Until says when it retired. Or a token that a
	// rotation has replaced, which works until it expires.
	stateRetired = "retired"
)

// defaultLease is how long a mark's holder may be silent. The lease is renewed
// at every step; steps that take longer are tasks of Proxmox VE, which are
// waited for.
const defaultLease = 30 * time.Second

// mark is the ownership mark.
type mark struct {
	// Kind is template, user or token.
	Kind string `json:"kind"`
	// Instance is the UUID that the owner keeps in its state.
	Instance string `json:"instance"`
	// ID is the id of the template. Proxmox VE copies a template's notes to its
	// clones, whose mark this tells from the template's own.
	ID int `json:"id,omitempty"`
	// State is one of those above.
	State string `json:"state"`
	// Until is when the lease runs out by the clock of Proxmox VE, in seconds since
	// 1970; zero when kept. Of a retired template it is when it retired.
	Until int64 `json:"until,omitempty"`
	// Key identifies a template's content and place; of a token it is the name
	// that was asked for, which a rotation adds a number to.
	Key string `json:"key,omitempty"`
	// Image is the volume id of the image file that a template is made of.
	Image string `json:"image,omitempty"`
	// Family is what templates that follow one another have in common.
	Family string `json:"family,omitempty"`
	// Labels is what the owner wants to find again when it is imported.
	Labels map[string]string `json:"labels,omitempty"`
}

// leased answers the mark with a fresh lease.
func (c *Client) leased(m mark) mark {
	m.Until = c.clock.now().Add(c.config.Lease).Unix()
	return m
}

// kept answers the mark of a thing that is known to be in a state.
func (m mark) kept() mark {
	m.State, m.Until = stateKept, 0
	return m
}

// finished says whether the thing was completed.
func (m mark) finished() bool {
	return m.State == stateMade || m.State == stateKept || m.State == stateRetired
}

// String answers the mark's line.
func (m mark) String() string {
	text, err := json.Marshal(m)
	if err != nil { // strings and numbers always marshal
		return markPrefix
	}
	return markPrefix + " " + string(text)
}

// with puts the mark below, or for a comment behind, the user's own text, whose
// blanks at both ends count for nothing.
func (m mark) with(text, separator string) string {
	if text = strings.TrimSpace(text); text == "" {
		return m.String()
	}
	return text + separator + m.String()
}

// splitMark takes the mark out of a description or comment and answers the rest.
func splitMark(text string) (m mark, rest string, ok bool) {
	before, after, found := strings.Cut(text, markPrefix)
	if !found {
		return mark{}, strings.TrimSpace(text), false
	}
	line, below, _ := strings.Cut(strings.TrimSpace(after), "\n")
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		return mark{}, strings.TrimSpace(text), false
	}
	return m, strings.TrimSpace(strings.TrimSpace(before) + "\n" + strings.TrimSpace(below)), true
}
