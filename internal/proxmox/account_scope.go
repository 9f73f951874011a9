// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Scope confines the least privileges of an account. A member that is empty
// confines nothing of its kind.
type Scope struct {
	// Pool is the resource pool that machines are made in. Cluster API's Proxmox
	// provider has to be told to use it (pool in a ProxmoxMachineTemplate).
	Pool string
	// TemplatePool holds the templates that may be cloned, TemplateIDs names them;
	// with neither they lie where machines do.
	TemplatePool string
	TemplateIDs  []int64
	// DiskStorages take machines' disks, ImageStorages the cloud-init images.
	DiskStorages, ImageStorages []string
	// Bridges are bridges of the nodes ("vmbr0", "vmbr0/100" with a VLAN) or
	// networks of a zone ("zone/network").
	Bridges []string
}

// Empty says that the scope confines nothing.
func (s Scope) Empty() bool {
	return s.Pool == "" && s.TemplatePool == "" && len(s.TemplateIDs)+len(s.DiskStorages)+len(s.ImageStorages)+len(s.Bridges) == 0
}

// Grant is a role on a path of the access control list, or privileges there, for
// which a role of the account's own is made.
type Grant struct {
	Path       string
	Role       string
	Privileges []string
	// Propagate has it hold on the paths below as well.
	Propagate bool
}

// part is a part of the least privileges that has a path of its own.
type part string

const (
	partNodes   part = "nodes"
	partMachine part = "vm"
	partClone   part = "clone"
	partDisk    part = "disk"
	partImage   part = "image"
	partNetwork part = "net"
)

// articleRoles are the built-in roles of [Article].
var articleRoles = []string{"PVEAuditor", "PVEDatastoreAdmin", "PVESDNAdmin", "PVEVMAdmin"}

// localZone is the zone that a node's own bridges are in.
const localZone = "localnetwork"

// grants are the permissions of the account, each with the name of its role.
func (s AccountSpec) grants(v Version) []Grant {
	var out []Grant
	switch {
	case s.Permissions == Article:
		for _, role := range articleRoles {
			out = append(out, Grant{Path: "/", Role: role, Propagate: true})
		}
	case s.Permissions == Custom:
		for _, g := range s.Grants {
			if len(g.Privileges) > 0 {
				g.Role = customRole(s.UserID, g.Privileges)
			}
			out = append(out, g)
		}
	case s.Scope.Empty():
		out = []Grant{{Path: "/", Role: roleOf(s.UserID), Privileges: allLeastPrivileges(v), Propagate: true}}
	default:
		privileges := leastPrivileges(v)
		s.Scope.places(func(path string, p part, propagate bool) {
			out = append(out, Grant{Path: path, Role: partRole(s.UserID, p), Privileges: privileges[p], Propagate: propagate})
		})
	}
	return out
}

// places names the paths of a scope and which part of the least privileges
// belongs on each. An entry on a deeper path replaces those above it, so that a
// storage which is named for one use and not confined for the other needs both.
func (s Scope) places(add func(path string, p part, propagate bool)) {
	add("/", partNodes, false)
	add("/nodes", partNodes, true)
	machines := "/vms"
	if s.Pool != "" {
		machines = "/pool/" + s.Pool
	}
	add(machines, partMachine, true)
	if s.TemplatePool != "" {
		add("/pool/"+s.TemplatePool, partClone, true)
	}
	for _, id := range s.TemplateIDs {
		add("/vms/"+strconv.FormatInt(id, 10), partClone, true)
	}
	if s.TemplatePool == "" && len(s.TemplateIDs) == 0 {
		add(machines, partClone, true)
	}
	named := slices.Concat(s.DiskStorages, s.ImageStorages)
	slices.Sort(named)
	onStorages := func(use part, storages []string) {
		if len(storages) == 0 {
			add("/storage", use, true)
			storages = slices.Compact(slices.Clone(named))
		}
		for _, storage := range storages {
			add("/storage/"+storage, use, true)
		}
	}
	onStorages(partDisk, s.DiskStorages)
	onStorages(partImage, s.ImageStorages)
	if len(s.Bridges) == 0 {
		add("/sdn", partNetwork, true)
	}
	for _, bridge := range s.Bridges {
		add(bridgePath(bridge), partNetwork, true)
	}
}

var vlan = regexp.MustCompile(`^[1-9][0-9]{0,3}$`)

// bridgePath is the path of "bridge", "bridge/vlan" or "zone/network[/vlan]".
func bridgePath(bridge string) string {
	first, rest, more := strings.Cut(bridge, "/")
	if !more || vlan.MatchString(rest) {
		return "/sdn/zones/" + localZone + "/" + bridge
	}
	return "/sdn/zones/" + first + "/" + rest
}

// CheckNetwork refuses what [Scope.Bridges] does not take.
func CheckNetwork(bridge string) error {
	if strings.HasPrefix(bridge, "/") || strings.Count(bridge, "/") > 2 || CheckACLPath(bridgePath(bridge)) != nil {
		return fmt.Errorf("%q is not a bridge (vmbr0, or vmbr0/100 with a VLAN) nor a network of a zone (zone/network)", bridge)
	}
	return nil
}

// scopeOf reads a scope back from the entries that its roles have; ok is false
// where they are not those of a scope.
func scopeOf(user string, entries []aclEntry) (s Scope, ok bool) {
	open := map[part]bool{}
	for _, e := range entries {
		p := part(strings.TrimPrefix(e.Role, roleOf(user)+"."))
		last := e.Path[strings.LastIndexByte(e.Path, '/')+1:]
		pool, inPool := strings.CutPrefix(e.Path, "/pool/")
		switch {
		case p == partMachine && inPool:
			s.Pool, ok = pool, true
		case p == partMachine:
			ok = true
		case p == partClone && inPool:
			s.TemplatePool = pool
		case p == partClone && e.Path != "/vms":
			id, _ := strconv.ParseInt(last, 10, 64)
			s.TemplateIDs = append(s.TemplateIDs, id)
		case p == partDisk && e.Path != "/storage":
			s.DiskStorages = append(s.DiskStorages, last)
		case p == partImage && e.Path != "/storage":
			s.ImageStorages = append(s.ImageStorages, last)
		case p == partNetwork && e.Path != "/sdn":
			bridge := strings.TrimPrefix(e.Path, "/sdn/zones/")
			s.Bridges = append(s.Bridges, strings.TrimPrefix(bridge, localZone+"/"))
		default:
			open[p] = true
		}
	}
	if open[partDisk] {
		s.DiskStorages = nil
	}
	if open[partImage] {
		s.ImageStorages = nil
	}
	if s.TemplatePool == s.Pool { // templates lie where machines do
		s.TemplatePool = ""
	}
	return s, ok
}

// unsafeInRole matches what the name of a role may not hold.
var unsafeInRole = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// plainUser matches the users whose name with its "@" replaced is nobody else's.
var plainUser = regexp.MustCompile(`^[A-Za-z0-9]+@[A-Za-z0-9]+$`)

// roleOf is the role that belongs to a user, and to nobody else: "CAPI-capi-pve"
// of capi@pve. Its parts follow after a dot.
func roleOf(user string) string {
	name := "CAPI-" + strings.ReplaceAll(unsafeInRole.ReplaceAllString(user, "-"), ".", "-")
	if !plainUser.MatchString(user) {
		sum := sha256.Sum256([]byte(user))
		name += "-" + hex.EncodeToString(sum[:4])
	}
	return name
}

func partRole(user string, p part) string { return roleOf(user) + "." + string(p) }

// customRole is the role with privileges of the user's own choice, named by them.
func customRole(user string, privileges []string) string {
	sum := sha256.Sum256([]byte(strings.Join(normalPrivileges(privileges), " ")))
	return roleOf(user) + ".custom-" + hex.EncodeToString(sum[:4])
}

// ownRole says whether a role belongs to the user.
func ownRole(user, role string) bool {
	return role == roleOf(user) || strings.HasPrefix(role, roleOf(user)+".")
}

func normalPrivileges(privileges []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(privileges)))
}
