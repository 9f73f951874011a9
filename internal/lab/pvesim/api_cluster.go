// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
)

func clusterEndpoints() []endpoint {
	node := nodeParam("node").need()
	poolID := poolParam("poolid").need()
	members := schema{poolID, str("comment"), str("vms"), str("storage"), boolean("delete"), boolean("allow-move")}
	return []endpoint{
		{method: "GET", path: "/version", handle: getVersion},
		{method: "GET", path: "/cluster/status", check: perm("/", "Sys.Audit"), handle: clusterStatus},
		{method: "GET", path: "/cluster/resources", schema: schema{str("type").oneOf("vm", "storage", "node", "sdn")}, handle: clusterResources},
		{method: "GET", path: "/cluster/nextid", schema: schema{vmidParam("vmid")}, handle: nextID},
		{method: "GET", path: "/nodes", handle: listNodes},
		{method: "GET", path: "/nodes/{node}/status", schema: schema{node}, check: perm("/nodes/{node}", "Sys.Audit"), handle: nodeStatus},
		{method: "GET", path: "/nodes/{node}/version", schema: schema{node}, handle: getVersion},
		{method: "GET", path: "/nodes/{node}/network", schema: schema{node, str("type")}, handle: nodeNetwork},
		{method: "GET", path: "/pools", schema: schema{poolParam("poolid"), str("type").oneOf("qemu", "lxc", "storage")}, handle: listPools},
		{method: "POST", path: "/pools", schema: schema{poolID, str("comment")}, check: perm("/pool/{poolid}", "Pool.Allocate"), handle: createPool},
		{method: "PUT", path: "/pools", schema: members, check: perm("/pool/{poolid}", "Pool.Allocate"), handle: updatePool},
		{method: "DELETE", path: "/pools", schema: schema{poolID}, check: perm("/pool/{poolid}", "Pool.Allocate"), handle: deletePool},
		{method: "GET", path: "/pools/{poolid}", schema: schema{poolID, str("type").oneOf("qemu", "lxc", "storage")}, check: perm("/pool/{poolid}", "Pool.Audit"), handle: getPool},
		{method: "PUT", path: "/pools/{poolid}", schema: members, check: perm("/pool/{poolid}", "Pool.Allocate"), handle: updatePool},
		{method: "DELETE", path: "/pools/{poolid}", schema: schema{poolID}, check: perm("/pool/{poolid}", "Pool.Allocate"), handle: deletePool},
	}
}

func getVersion(c *call) (any, error) {
	return map[string]any{"version": c.release.version, "release": c.release.short, "repoid": "1ab0c0de"}, nil
}

func clusterStatus(c *call) (any, error) {
	out := []map[string]any{}
	if len(c.opts.Nodes) > 1 {
		out = append(out, map[string]any{
			"type": "cluster", "id": "cluster", "name": "lab", "version": len(c.opts.Nodes), "nodes": len(c.opts.Nodes), "quorate": 1,
		})
	}
	host, _, err := net.SplitHostPort(c.listener.Addr().String())
	if err != nil {
		return nil, err
	}
	for i, n := range c.opts.Nodes {
		nodeid := i + 1
		if len(c.opts.Nodes) == 1 {
			nodeid = 0
		}
		out = append(out, map[string]any{
			"type": "node", "id": "node/" + n.Name, "name": n.Name, "nodeid": nodeid, "ip": host, "level": "",
			"local": flag(i == 0), "online": flag(!n.Offline),
		})
	}
	return out, nil
}

// nextID answers the lowest free id, as a string, or checks the one given.
func nextID(c *call) (any, error) {
	if c.has("vmid") {
		id := c.integer("vmid")
		if c.state.VMs[id] != nil {
			return nil, invalid("vmid", "VM %d already exists", id)
		}
		return strconv.Itoa(id), nil
	}
	for id := 100; ; id++ {
		if c.state.VMs[id] == nil {
			return strconv.Itoa(id), nil
		}
	}
}

// nodeLevel is a node as lists show it.
func (c *call) nodeLevel(n *Node) map[string]any {
	m := map[string]any{"node": n.Name, "id": "node/" + n.Name, "type": "node", "status": "online"}
	if n.Offline {
		m["status"] = "offline"
		return m
	}
	if c.may(c.who, "/nodes/"+n.Name, "Sys.Audit") {
		m["cpu"], m["maxcpu"], m["mem"], m["maxmem"] = 0.02, n.CPUs, c.memoryUsed(n), n.Memory
		m["disk"], m["maxdisk"], m["uptime"], m["level"] = 8*GiB, 100*GiB, 86400, ""
	}
	return m
}

func (s *Simulator) memoryUsed(n *Node) int64 {
	used := 2 * GiB
	for id := range s.running {
		if m := s.state.VMs[id]; m != nil && m.Node == n.Name {
			used += int64(m.memoryMiB()) << 20
		}
	}
	return min(used, n.Memory)
}

func listNodes(c *call) (any, error) {
	out := []map[string]any{}
	for i := range c.opts.Nodes {
		m := c.nodeLevel(&c.opts.Nodes[i])
		m["ssl_fingerprint"] = strings.TrimSuffix(strings.Repeat("AB:", 32), ":")
		out = append(out, m)
	}
	return out, nil
}

func nodeStatus(c *call) (any, error) {
	n, _ := c.node(c.str("node"))
	used := c.memoryUsed(n)
	return map[string]any{
		"uptime": 86400, "cpu": 0.02, "wait": 0, "idle": 0, "loadavg": []string{"0.10", "0.12", "0.09"},
		"memory": map[string]any{"total": n.Memory, "used": used, "free": n.Memory - used, "available": n.Memory - used},
		"swap":   map[string]any{"total": 8 * GiB, "used": 0, "free": 8 * GiB},
		"rootfs": map[string]any{"total": 100 * GiB, "used": 8 * GiB, "avail": 92 * GiB, "free": 92 * GiB},
		"ksm":    map[string]any{"shared": 0},
		"cpuinfo": map[string]any{
			"cpus": n.CPUs, "cores": n.CPUs, "sockets": 1, "model": "Simulated CPU", "mhz": "2400.000", "hvm": "1", "user_hz": 100, "flags": "fpu vme sse4_2 popcnt",
		},
		"kversion": "Linux 6.14.11-4-pve #1 SMP PREEMPT_DYNAMIC", "pveversion": "pve-manager/" + c.release.version + "/1ab0c0de",
		"current-kernel": map[string]any{"sysname": "Linux", "release": "6.14.11-4-pve", "version": "#1 SMP PREEMPT_DYNAMIC", "machine": "x86_64"},
		"boot-info":      map[string]any{"mode": "efi", "secureboot": 0},
	}, nil
}

func nodeNetwork(c *call) (any, error) {
	n, _ := c.node(c.str("node"))
	out := []map[string]any{}
	for i, b := range n.Bridges {
		if c.may(c.who, "/nodes/"+n.Name, "Sys.Audit") || c.may(c.who, "/sdn/zones/localnetwork/"+b, "SDN.Use") {
			out = append(out, map[string]any{"iface": b, "type": "bridge", "active": 1, "autostart": 1, "method": "static", "priority": i + 2})
		}
	}
	return out, nil
}

// clusterResources is the statistics daemon's view, which lags behind.
func clusterResources(c *call) (any, error) {
	out := []map[string]any{}
	typ := c.str("type")
	if typ == "" {
		for _, name := range slices.Sorted(maps.Keys(c.state.Pools)) {
			if c.may(c.who, "/pool/"+name, "Pool.Audit") {
				out = append(out, map[string]any{"id": "/pool/" + name, "type": "pool", "pool": name})
			}
		}
	}
	if typ == "" || typ == "vm" {
		out = append(out, c.vmResources()...)
	}
	if typ == "" || typ == "node" {
		for i := range c.opts.Nodes {
			out = append(out, c.nodeLevel(&c.opts.Nodes[i]))
		}
	}
	if typ == "" || typ == "storage" {
		out = append(out, c.storageResources()...)
	}
	if typ == "" || typ == "sdn" {
		for _, n := range c.opts.Nodes {
			if c.may(c.who, "/sdn/zones/localnetwork", "SDN.Audit") {
				out = append(out, map[string]any{"id": "sdn/" + n.Name + "/localnetwork", "type": "sdn", "sdn": "localnetwork", "node": n.Name, "status": "ok"})
			}
		}
	}
	return out, nil
}

func (c *call) vmResources() []map[string]any {
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(c.state.VMs)) {
		m := c.state.VMs[id]
		if !c.may(c.who, vmPath(id), "VM.Audit") {
			continue
		}
		row := map[string]any{"id": fmt.Sprintf("qemu/%d", id), "type": "qemu", "vmid": id, "node": m.Node, "status": "unknown", "template": 0}
		for name, p := range c.state.Pools {
			if slices.Contains(p.VMs, id) {
				row["pool"] = name
			}
		}
		if shown, known := c.published(m); known {
			live := c.vmState(m)
			for _, k := range []string{"status", "cpu", "mem", "disk", "diskread", "diskwrite", "netin", "netout", "uptime", "maxmem", "maxdisk"} {
				row[k] = live[k]
			}
			row["maxcpu"] = live["cpus"]
			row["name"] = fmt.Sprintf("VM %d", id)
			for k, v := range shown {
				row[k] = v
			}
			row["template"] = flag(shown["template"] == "1")
		}
		out = append(out, row)
	}
	return out
}

func (c *call) storageResources() []map[string]any {
	out := []map[string]any{}
	for _, n := range c.opts.Nodes {
		for _, id := range slices.Sorted(maps.Keys(c.state.Storages)) {
			st := c.state.Storages[id]
			if st.Disabled || !st.onNode(n.Name) || !c.may(c.who, "/storage/"+id, "Datastore.Audit") {
				continue
			}
			out = append(out, map[string]any{
				"id": "storage/" + n.Name + "/" + id, "type": "storage", "storage": id, "node": n.Name, "status": "available", "shared": flag(st.Shared),
				"plugintype": st.Type, "content": strings.Join(st.Content, ","), "disk": c.used(st, n.Name), "maxdisk": st.Total,
			})
		}
	}
	return out
}

func listPools(c *call) (any, error) {
	if c.has("poolid") {
		if err := c.demand(c.who, "/pool/"+c.str("poolid"), "Pool.Audit"); err != nil {
			return nil, err
		}
		p, err := getPool(c)
		if err != nil {
			return nil, err
		}
		return []any{p}, nil
	}
	out := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(c.state.Pools)) {
		if c.may(c.who, "/pool/"+name, "Pool.Audit") {
			m := map[string]any{"poolid": name}
			if comment := c.state.Pools[name].Comment; comment != "" {
				m["comment"] = comment
			}
			out = append(out, m)
		}
	}
	return out, nil
}

func (c *call) findPool() (*pool, error) {
	p := c.state.Pools[c.str("poolid")]
	if p == nil {
		return nil, die("pool '%s' does not exist", c.str("poolid"))
	}
	return p, nil
}

func createPool(c *call) (any, error) {
	name := c.str("poolid")
	if c.state.Pools[name] != nil {
		return nil, die("create pool failed: pool '%s' already exists", name)
	}
	c.state.Pools[name] = &pool{Comment: c.str("comment")}
	return nil, nil
}

func getPool(c *call) (any, error) {
	p, err := c.findPool()
	if err != nil {
		return nil, err
	}
	members := []map[string]any{}
	for _, id := range p.VMs {
		m := c.state.VMs[id]
		if m == nil || !c.may(c.who, vmPath(id), "VM.Audit") || c.str("type") == "storage" {
			continue
		}
		row := c.vmState(m)
		row["id"], row["type"], row["node"] = fmt.Sprintf("qemu/%d", id), "qemu", m.Node
		members = append(members, row)
	}
	for _, id := range p.Storages {
		if st := c.state.Storages[id]; st != nil && c.str("type") != "qemu" {
			members = append(members, map[string]any{"id": "storage/" + c.opts.Nodes[0].Name + "/" + id, "type": "storage", "storage": id, "node": c.opts.Nodes[0].Name})
		}
	}
	out := map[string]any{"poolid": c.str("poolid"), "members": members}
	if p.Comment != "" {
		out["comment"] = p.Comment
	}
	return out, nil
}

func updatePool(c *call) (any, error) {
	p, err := c.findPool()
	if err != nil {
		return nil, prefixed("update pools failed", err)
	}
	remove := c.boolean("delete", false)
	if c.has("comment") {
		p.Comment = c.str("comment")
	}
	for _, raw := range splitList(c.str("vms")) {
		id, err := strconv.Atoi(raw)
		if err != nil {
			return nil, invalid("vms", "invalid format - value does not look like a valid VM ID\n")
		}
		if err := c.demand(c.who, vmPath(id), "VM.Allocate"); err != nil {
			return nil, err
		}
		if err := c.poolMember(p, id, remove); err != nil {
			return nil, prefixed("update pools failed", err)
		}
	}
	for _, id := range splitList(c.str("storage")) {
		if err := c.demand(c.who, "/storage/"+id, "Datastore.Allocate"); err != nil {
			return nil, err
		}
		p.Storages = slices.DeleteFunc(p.Storages, func(s string) bool { return s == id })
		if !remove {
			p.Storages = append(p.Storages, id)
		}
	}
	return nil, nil
}

// poolMember puts a machine into a pool or takes it out.
func (c *call) poolMember(p *pool, id int, remove bool) error {
	in := slices.Contains(p.VMs, id)
	if remove {
		if !in {
			return die("VM %d is not a pool member", id)
		}
		p.VMs = slices.DeleteFunc(p.VMs, func(v int) bool { return v == id })
		return nil
	}
	if in {
		return die("VM %d is already a pool member", id)
	}
	for name, other := range c.state.Pools {
		if slices.Contains(other.VMs, id) {
			if !c.boolean("allow-move", false) {
				return die("VM %d belongs already to pool '%s' and 'allow-move' is not set", id, name)
			}
			other.VMs = slices.DeleteFunc(other.VMs, func(v int) bool { return v == id })
		}
	}
	p.VMs = append(p.VMs, id)
	return nil
}

func deletePool(c *call) (any, error) {
	p, err := c.findPool()
	name := c.str("poolid")
	if err != nil {
		return nil, prefixed("delete pool failed", err)
	}
	if len(p.VMs) > 0 {
		return nil, die("delete pool failed: pool '%s' is not empty (contains VM %d)", name, p.VMs[0])
	}
	if len(p.Storages) > 0 {
		return nil, die("delete pool failed: pool '%s' is not empty (contains storage '%s')", name, p.Storages[0])
	}
	delete(c.state.Pools, name)
	c.state.ACL = slices.DeleteFunc(c.state.ACL, func(e aclEntry) bool { return e.Path == "/pool/"+name })
	return nil, nil
}
