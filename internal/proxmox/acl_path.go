// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"fmt"
	"regexp"
)

var (
	// aclPath is what Proxmox VE takes as a path of the access control list
	// (pve-access-control, AccessControl.pm, check_path).
	aclPath = regexp.MustCompile(`^/(access(/(groups|realm)(/[A-Za-z0-9._-]+)?)?|nodes(/[A-Za-z0-9._-]+)?|pool(/[A-Za-z0-9._-]+){0,3}|` +
		`sdn(/(zones(/[A-Za-z0-9._-]+){0,2}|zones/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+/[1-9][0-9]{0,3}|(controllers|dns|fabrics|ipams|prefix-lists|route-maps)(/[A-Za-z0-9_-]+)?))?|` +
		`storage(/[A-Za-z0-9._-]+)?|vms(/[1-9][0-9]{2,})?|mapping(/[A-Za-z0-9._-]+){0,2})?$`)
	privilegePattern = regexp.MustCompile(`^[A-Z][A-Za-z]*(\.[A-Z][A-Za-z]*)+$`)
	rolePattern      = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

// CheckACLPath refuses what Proxmox VE does not take as a path of the access
// control list.
func CheckACLPath(path string) error {
	if !aclPath.MatchString(path) {
		return fmt.Errorf("%q is not a path of Proxmox VE's access control list, such as /, /vms/100, /pool/NAME, /storage/NAME, /nodes/NAME or /sdn/zones/ZONE/NETWORK", path)
	}
	return nil
}

// CheckPrivilege refuses what cannot be a privilege of any release.
func CheckPrivilege(privilege string) error {
	if !privilegePattern.MatchString(privilege) {
		return fmt.Errorf("%q is not a privilege, such as VM.Audit or Datastore.AllocateSpace; roles have other names", privilege)
	}
	return nil
}

// CheckRole refuses what Proxmox VE does not take as a role's name.
func CheckRole(role string) error {
	if !rolePattern.MatchString(role) {
		return fmt.Errorf("%q is not the name of a role, such as PVEVMUser", role)
	}
	return nil
}
