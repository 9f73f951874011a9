// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"fmt"
	"regexp"
	"slices"
)

// Permissions that a service account may be given.
const (
	// LeastPrivilege is one role of our own with what Cluster API's Proxmox
	// provider calls for.
	LeastPrivilege = "least_privilege"
	// Article is the set of four built-in roles that guides name. It allows more:
	// every VM, every storage, SDN administration.
	Article = "article"
)

// articleRoles are the built-in roles of [Article].
var articleRoles = []string{"PVEAuditor", "PVEDatastoreAdmin", "PVESDNAdmin", "PVEVMAdmin"}

// AccountSpec is what a service account is to be.
type AccountSpec struct {
	// UserID is "name@realm", TokenName the token's name.
	UserID, TokenName string
	// Comment is shown for user and token.
	Comment string
	// Permissions is [LeastPrivilege] or [Article].
	Permissions string
	// PrivilegeSeparation gives the token privileges of its own (the same as the
	// user's); without, it has whatever the user has.
	PrivilegeSeparation bool
}

// TokenID answers "user@realm!name".
func (s AccountSpec) TokenID() string { return s.UserID + "!" + s.TokenName }

// roleName is the role that belongs to the user, and to nothing else.
func (s AccountSpec) roleName() string {
	return "CAPI-" + unsafeInRole.ReplaceAllString(s.UserID, "-")
}

// roles answers the roles of the account on /.
func (s AccountSpec) roles() []string {
	if s.Permissions == Article {
		return slices.Clone(articleRoles)
	}
	return []string{s.roleName()}
}

var unsafeInRole = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// leastPrivileges are what Cluster API's Proxmox provider (v0.8, v0.9) calls
// for, on a release of Proxmox VE. Datastore.Allocate is for the deletion of the
// cloud-init image it uploads.
func leastPrivileges(v Version) []string {
	list := []string{
		"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit",
		"SDN.Use", "Sys.Audit",
		"VM.Allocate", "VM.Audit", "VM.Clone",
		"VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options",
		"VM.PowerMgmt",
	}
	if v.AtLeast(9, 0) { // VM.Monitor is gone from 9.0 on
		list = append(list, "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")
	} else {
		list = append(list, "VM.Monitor")
	}
	slices.Sort(list)
	return list
}

// Account is a service account as it was found.
type Account struct {
	UserID, TokenName string
	Comment           string
	// Permissions is as in [AccountSpec]; empty where the roles on / are none of
	// the known sets.
	Permissions         string
	PrivilegeSeparation bool
	// Instance is the owner's UUID from the user's mark; empty where there is none.
	Instance string
	// TokenThere says that the token exists.
	TokenThere bool
	// Faults lists what keeps the account from working, or from being what was
	// asked for: "the user is disabled".
	Faults []string

	userMark, tokenMark mark
	tokens              []string
}

// fault notes what is wrong.
func (a *Account) fault(format string, args ...any) {
	a.Faults = append(a.Faults, fmt.Sprintf(format, args...))
}

// Kept says whether the account's marks need no [Client.KeepAccount].
func (a Account) Kept() bool { return a.userMark.State != stateMade && a.tokenMark.State != stateMade }

// others are the user's tokens beside the account's own.
func (a Account) others() []string {
	return slices.DeleteFunc(slices.Clone(a.tokens), func(name string) bool { return name == a.TokenName })
}
