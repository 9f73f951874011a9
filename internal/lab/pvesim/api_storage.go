// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

func storageEndpoints() []endpoint {
	node, id := nodeParam("node").need(), storageParam("storage").need()
	vol := str("volume").need()
	anyUse := permAny("/storage/{storage}", "Datastore.Audit", "Datastore.AllocateSpace")
	return []endpoint{
		{method: "GET", path: "/storage", schema: schema{str("type")}, handle: listStorageConfig},
		{method: "POST", path: "/storage", check: perm("/storage", "Datastore.Allocate"), handle: createStorage, schema: schema{
			id, str("type").need().oneOf("dir", "nfs", "cifs", "cephfs", "btrfs", "lvm", "lvmthin", "zfspool", "rbd"), str("content"), str("nodes"),
			str("path"), boolean("shared"), boolean("disable"), str("server"), str("export"), str("share"), str("vgname"), str("thinpool"), str("pool"),
		}},
		{method: "GET", path: "/storage/{storage}", schema: schema{id}, check: perm("/storage/{storage}", "Datastore.Allocate"), handle: getStorageConfig},
		{method: "PUT", path: "/storage/{storage}", check: perm("/storage", "Datastore.Allocate"), handle: updateStorage, schema: schema{
			id, str("content"), str("nodes"), boolean("shared"), boolean("disable"), str("delete"), str("digest").between(0, 64),
		}},
		{method: "DELETE", path: "/storage/{storage}", schema: schema{id}, check: perm("/storage", "Datastore.Allocate"), handle: deleteStorage},
		{method: "GET", path: "/nodes/{node}/storage", handle: listNodeStorage, schema: schema{
			node, storageParam("storage"), str("content"), boolean("enabled"), nodeParam("target"), boolean("format"),
		}},
		{method: "GET", path: "/nodes/{node}/storage/{storage}", schema: schema{node, id}, check: anyUse, handle: storageIndex},
		{method: "GET", path: "/nodes/{node}/storage/{storage}/status", schema: schema{node, id}, check: anyUse, handle: storageStatus},
		{method: "GET", path: "/nodes/{node}/storage/{storage}/content", schema: schema{node, id, str("content"), vmidParam("vmid")}, check: anyUse, handle: listContent},
		{method: "GET", path: "/nodes/{node}/storage/{storage}/content/{volume}", schema: schema{node, id, vol}, handle: getVolume},
		{method: "DELETE", path: "/nodes/{node}/storage/{storage}/content/{volume}", schema: schema{node, id, vol, integer("delay").between(1, 30)}, handle: deleteVolume},
		{method: "POST", path: "/nodes/{node}/storage/{storage}/download-url", handle: downloadURL, check: mayDownload("{storage}"), schema: schema{
			node, id, str("url").need().matching(`^https?://.*`), str("content").need().oneOf("iso", "vztmpl", "import"),
			str("filename").need().between(0, 255), str("checksum").with("checksum-algorithm"),
			str("checksum-algorithm").oneOf(checksumNames...).with("checksum"), str("compression"), boolean("verify-certificates"),
		}},
		{method: "POST", path: "/nodes/{node}/storage/{storage}/upload", upload: true, unlocked: true,
			check: perm("/storage/{storage}", "Datastore.AllocateTemplate"), handle: upload, schema: schema{
				node, id, str("content").need().oneOf("iso", "vztmpl", "import"), str("filename").need().between(0, 255),
				str("checksum").with("checksum-algorithm"), str("checksum-algorithm").oneOf(checksumNames...).with("checksum"), str("tmpfilename"),
			}},
		{method: "GET", path: "/nodes/{node}/query-url-metadata", handle: queryURL, check: mayDownload(""), unlocked: true, schema: schema{
			node, str("url").need().matching(`^https?://.*`), boolean("verify-certificates"),
		}},
	}
}

// config is a storage as its configuration shows it.
func (st *Storage) config() map[string]any {
	m := map[string]any{"storage": st.ID, "type": st.Type, "content": strings.Join(st.Content, ",")}
	switch {
	case st.typ().files:
		m["path"] = "/mnt/pve/" + st.ID
		if st.ID == "local" {
			m["path"] = "/var/lib/vz"
		}
	case st.Type == "lvmthin":
		m["vgname"], m["thinpool"] = "pve", "data"
	case st.Type == "lvm":
		m["vgname"] = st.ID
	default:
		m["pool"] = st.ID
	}
	if st.Shared {
		m["shared"] = 1
	}
	if st.Disabled {
		m["disable"] = 1
	}
	if len(st.Nodes) > 0 {
		m["nodes"] = strings.Join(st.Nodes, ",")
	}
	return m
}

// storageDigest changes with any storage's configuration.
func (s *Simulator) storageDigest() string {
	data, err := json.Marshal(s.state.Storages)
	if err != nil {
		return ""
	}
	sum := sha1.Sum(data)
	return hex.EncodeToString(sum[:])
}

func listStorageConfig(c *call) (any, error) {
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(c.state.Storages)) {
		st := c.state.Storages[id]
		if c.has("type") && st.Type != c.str("type") || c.demandAny(c.who, "/storage/"+id, "Datastore.Audit", "Datastore.AllocateSpace") != nil {
			continue
		}
		m := st.config()
		m["digest"] = c.storageDigest()
		out = append(out, m)
	}
	return out, nil
}

func getStorageConfig(c *call) (any, error) {
	st, err := c.storage(c.str("storage"))
	if err != nil {
		return nil, err
	}
	m := st.config()
	m["digest"] = c.storageDigest()
	return m, nil
}

func createStorage(c *call) (any, error) {
	id := c.str("storage")
	if c.state.Storages[id] != nil {
		return nil, die("create storage failed: storage ID '%s' already defined", id)
	}
	st := &Storage{ID: id, Type: c.str("type"), Total: 500 * GiB}
	if err := c.applyStorage(st); err != nil {
		return nil, err
	}
	st.Shared = st.Shared || st.typ().network
	c.state.Storages[id] = st
	return map[string]any{"storage": id, "type": st.Type}, nil
}

// contentTypes are what a type of storage may hold in this release.
func (s *Simulator) contentTypes(typ string) []string {
	out := []string{"images", "rootdir", "none"}
	if storageTypes[typ].files {
		out = append(out, "iso", "vztmpl", "backup", "snippets")
		if s.release.atLeast(8, 3) {
			out = append(out, "import")
		}
	}
	return out
}

func (c *call) applyStorage(st *Storage) error {
	if c.has("content") {
		content := splitList(c.str("content"))
		for _, ct := range content {
			if !slices.Contains(c.contentTypes(st.Type), ct) {
				return invalid("content", "storage does not support content type '%s'\n", ct)
			}
		}
		st.Content = content
	}
	if c.has("nodes") {
		st.Nodes = splitList(c.str("nodes"))
	}
	if c.has("shared") {
		st.Shared = c.boolean("shared", false)
	}
	if c.has("disable") {
		st.Disabled = c.boolean("disable", false)
	}
	for _, f := range splitList(c.str("delete")) {
		switch f {
		case "nodes":
			st.Nodes = nil
		case "disable":
			st.Disabled = false
		}
	}
	return nil
}

func updateStorage(c *call) (any, error) {
	st, err := c.storage(c.str("storage"))
	if err != nil {
		return nil, prefixed("update storage failed", err)
	}
	if c.has("digest") && c.str("digest") != c.storageDigest() {
		return nil, die("update storage failed: checksum mismatch (file change by other user?)")
	}
	changed := *st
	if err := c.applyStorage(&changed); err != nil {
		return nil, err
	}
	*st = changed
	return map[string]any{"storage": st.ID, "type": st.Type}, nil
}

func deleteStorage(c *call) (any, error) {
	id := c.str("storage")
	if _, err := c.storage(id); err != nil {
		return nil, prefixed("delete storage failed", err)
	}
	delete(c.state.Storages, id)
	c.state.ACL = slices.DeleteFunc(c.state.ACL, func(e aclEntry) bool { return e.Path == "/storage/"+id })
	return nil, nil
}

// status is a storage's fill level on a node.
func (c *call) storageLevel(st *Storage, node string) map[string]any {
	used := c.used(st, node)
	m := map[string]any{
		"type": st.Type, "content": strings.Join(st.Content, ","), "shared": flag(st.Shared),
		"active": flag(!st.Disabled), "enabled": flag(!st.Disabled), "total": st.Total, "used": used, "avail": st.Total - used,
	}
	if st.Disabled {
		m["total"], m["used"], m["avail"] = 0, 0, 0
	}
	return m
}

func listNodeStorage(c *call) (any, error) {
	node := c.str("node")
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(c.state.Storages)) {
		st := c.state.Storages[id]
		if c.demandAny(c.who, "/storage/"+id, "Datastore.Audit", "Datastore.AllocateSpace") != nil || !st.onNode(node) ||
			c.has("storage") && c.str("storage") != id || c.boolean("enabled", false) && st.Disabled ||
			c.has("target") && (!st.Shared || !st.onNode(c.str("target"))) {
			continue
		}
		if c.has("content") && !slices.ContainsFunc(splitList(c.str("content")), st.holds) {
			continue
		}
		m := c.storageLevel(st, node)
		m["storage"] = id
		if !st.Disabled {
			m["used_fraction"] = float64(c.used(st, node)) / float64(st.Total)
		}
		out = append(out, m)
	}
	return out, nil
}

func storageIndex(c *call) (any, error) {
	if _, err := c.storage(c.str("storage")); err != nil {
		return nil, err
	}
	return []map[string]any{{"subdir": "content"}, {"subdir": "download-url"}, {"subdir": "status"}, {"subdir": "upload"}}, nil
}

func storageStatus(c *call) (any, error) {
	st, err := c.storage(c.str("storage"))
	if err != nil {
		return nil, err
	}
	if !st.onNode(c.str("node")) {
		return nil, die("storage '%s' is not available on node '%s'", st.ID, c.str("node"))
	}
	return c.storageLevel(st, c.str("node")), nil
}

// mayUse checks the right to use a volume that exists.
func (s *Simulator) mayUse(who principal, v *volume) error {
	switch v.Content {
	case "iso", "vztmpl":
		return s.demandAny(who, "/storage/"+v.Storage, "Datastore.AllocateSpace", "Datastore.Audit")
	case "import":
		return s.demandAny(who, "/storage/"+v.Storage, "Datastore.AllocateSpace", "Datastore.Audit", "Datastore.Allocate")
	}
	if s.may(who, "/storage/"+v.Storage, "Datastore.Allocate") {
		return nil
	}
	return s.demandAny(who, vmPath(v.VMID), "VM.Config.Disk", "VM.Clone")
}

func listContent(c *call) (any, error) {
	st, err := c.usableStorage(c.str("storage"), c.str("node"))
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, v := range c.state.Volumes {
		if v.Storage != st.ID || v.Node != "" && v.Node != c.str("node") || c.has("content") && v.Content != c.str("content") ||
			c.has("vmid") && v.VMID != c.integer("vmid") || !st.holds(v.Content) || c.mayUse(c.who, v) != nil {
			continue
		}
		m := map[string]any{"volid": v.id(st), "format": v.Format, "size": v.Size, "ctime": v.CTime, "content": v.Content}
		if v.VMID != 0 {
			m["vmid"] = v.VMID
		}
		if v.Parent != "" {
			m["parent"] = v.Parent
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b map[string]any) int { return strings.Compare(a["volid"].(string), b["volid"].(string)) })
	return out, nil
}

// namedVolume answers the volume of the call, whose id may lack the storage.
func (c *call) namedVolume() (*Storage, *volume, string, error) {
	id := c.str("volume")
	storage, _, ok := splitVolumeID(id)
	if !ok {
		storage, id = c.str("storage"), c.str("storage")+":"+id
	}
	if storage != c.str("storage") {
		return nil, nil, "", die("storage ID missmatch (%s != %s)", storage, c.str("storage"))
	}
	st, err := c.usableStorage(storage, c.str("node"))
	if err != nil {
		return nil, nil, "", err
	}
	return st, c.findVolume(c.str("node"), id), id, nil
}

func getVolume(c *call) (any, error) {
	st, v, id, err := c.namedVolume()
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, die("volume_size_info on '%s' failed - no such volume", id)
	}
	if err := c.mayUse(c.who, v); err != nil {
		return nil, err
	}
	return map[string]any{"path": st.path(v), "size": v.Size, "used": v.Size, "format": v.Format}, nil
}

func deleteVolume(c *call) (any, error) {
	st, v, id, err := c.namedVolume()
	if err != nil {
		return nil, err
	}
	if err := c.demand(c.who, "/storage/"+st.ID, "Datastore.Allocate"); err != nil {
		return nil, err
	}
	if v != nil && v.Content == "images" {
		if _, ok := c.state.VMs[v.VMID]; ok {
			return nil, die("cannot remove image, a guest with VMID '%d' exists!", v.VMID)
		}
	}
	node, about := c.str("node"), st.ID
	if v != nil && v.VMID != 0 {
		about = fmt.Sprintf("%d@%s", v.VMID, st.ID)
	}
	return c.fork(node, "imgdel", about, c.who, c.opts.Timing.DeleteVolume, func(w *worker) error {
		return w.locked(func() error {
			v := w.findVolume(node, id)
			if v == nil {
				return die("can't unlink '%s': No such file or directory", id)
			}
			w.removeVolume(v)
			return nil
		})
	}), nil
}
