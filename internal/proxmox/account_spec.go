// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"fmt"
	"slices"
	"time"
)

// Permissions that a service account may be given.
const (
	// LeastPrivilege is what Cluster API's Proxmox provider calls for, in roles of
	// the account's own: one role on /, or several on the paths of a [Scope].
	LeastPrivilege = "least_privilege"
	// Article is the set of four built-in roles on / that guides name. It allows
	// more: every VM, every storage, SDN administration.
	Article = "article"
	// Custom is what [AccountSpec.Grants] lists.
	Custom = "custom"
)

// AccountSpec is what a service account is to be.
type AccountSpec struct {
	// UserID is "name@realm".
	UserID string
	// TokenName is the token's name as asked for, CurrentToken that of the token
	// in use, which differs after a rotation; empty means TokenName.
	TokenName, CurrentToken string
	// Comment is shown for user and token.
	Comment string
	// Expire is when the token runs out; zero means never.
	Expire time.Time
	// Permissions is [LeastPrivilege], [Article] or [Custom].
	Permissions string
	// Scope confines LeastPrivilege.
	Scope Scope
	// Grants are the permissions of Custom.
	Grants []Grant
	// PrivilegeSeparation gives the token privileges of its own (the same as the
	// user's); without, it has whatever the user has.
	PrivilegeSeparation bool
}

// current answers the name of the token in use.
func (s AccountSpec) current() string { return orElse(s.CurrentToken, s.TokenName) }

// TokenID answers "user@realm!name" of the token in use.
func (s AccountSpec) TokenID() string { return s.UserID + "!" + s.current() }

// expire is what Proxmox VE keeps: seconds since 1970, zero for never.
func (s AccountSpec) expire() int64 {
	if s.Expire.IsZero() {
		return 0
	}
	return s.Expire.Unix()
}

// Account is a service account as it was found.
type Account struct {
	AccountSpec
	// Instance is the owner's UUID from the user's mark; empty where there is none.
	Instance string
	// TokenThere says that the token in use exists.
	TokenThere bool
	// Retiring are the tokens that a rotation has replaced and that still work, or
	// were not removed yet.
	Retiring []RetiringToken
	// Faults lists what keeps the account from working, or from being what was
	// asked for: "the user is disabled".
	Faults []string

	asOf                time.Time // by the clock of Proxmox VE
	userMark, tokenMark mark
	strangers           []string // tokens of the user that are not the account's
}

// RetiringToken is a token that a rotation has replaced.
type RetiringToken struct {
	Name string
	// Until is when Proxmox VE refuses it.
	Until time.Time
}

// fault notes what is wrong.
func (a *Account) fault(format string, args ...any) {
	a.Faults = append(a.Faults, fmt.Sprintf(format, args...))
}

// Kept says whether the account's marks need no [Client.KeepAccount].
func (a Account) Kept() bool { return a.userMark.State != stateMade && a.tokenMark.State != stateMade }

// Expired are the retired tokens that worked no more when the account was read,
// and can go.
func (a Account) Expired() []string {
	var out []string
	for _, t := range a.Retiring {
		if !t.Until.After(a.asOf) {
			out = append(out, t.Name)
		}
	}
	return out
}

// leastPrivileges are what Cluster API's Proxmox provider (v0.8, v0.9) calls
// for, on a release of Proxmox VE, by what it does there.
func leastPrivileges(v Version) map[part][]string {
	machine := []string{
		"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
	}
	if v.AtLeast(9, 0) { // VM.Monitor is gone from 9.0 on
		machine = append(machine, "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")
	} else {
		machine = append(machine, "VM.Monitor")
	}
	return map[part][]string{
		partNodes:   {"Sys.Audit"},
		partMachine: machine,
		partClone:   {"VM.Audit", "VM.Clone"},
		partDisk:    {"Datastore.AllocateSpace", "Datastore.Audit"},
		// Allocate is for the deletion of the cloud-init image that was uploaded.
		partImage:   {"Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"},
		partNetwork: {"SDN.Use"},
	}
}

// allLeastPrivileges joins them.
func allLeastPrivileges(v Version) []string {
	var list []string
	for _, privileges := range leastPrivileges(v) {
		list = append(list, privileges...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
