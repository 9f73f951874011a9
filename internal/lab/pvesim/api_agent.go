// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"net/netip"
)

func agentEndpoints() []endpoint {
	one := schema{nodeParam("node").need(), vmidParam("vmid").need()}
	const base = "/nodes/{node}/qemu/{vmid}/agent"
	command := param{name: "command", kind: kindArray, required: true}
	read := agentRight("VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")
	return []endpoint{
		{method: "GET", path: base, schema: one, check: read, handle: agentIndex},
		{method: "GET", path: base + "/get-osinfo", schema: one, check: read, handle: agentCall(osInfo)},
		{method: "GET", path: base + "/get-host-name", schema: one, check: read, handle: agentCall(hostName)},
		{method: "GET", path: base + "/network-get-interfaces", schema: one, check: read, handle: agentCall(interfaces)},
		{method: "GET", path: base + "/info", schema: one, check: read, handle: agentCall(agentInfo)},
		{method: "POST", path: base + "/ping", schema: one, check: read, handle: agentCall(func(Guest) any { return map[string]any{} })},
		{method: "POST", path: base + "/exec", schema: append(schema{command, str("input-data")}, one...),
			check: agentRight("VM.GuestAgent.Unrestricted"), handle: agentExec},
		{method: "GET", path: base + "/exec-status", schema: append(schema{integer("pid").need()}, one...),
			check: agentRight("VM.GuestAgent.Unrestricted"), handle: agentExecStatus},
	}
}

// agentRight is the privilege for the guest agent: VM.Monitor before 9.0.
func agentRight(privs ...string) check {
	return func(c *call) error {
		path := c.expand("/vms/{vmid}")
		if !c.release.atLeast(9, 0) {
			return c.demand(c.who, path, "VM.Monitor")
		}
		if len(privs) == 1 {
			return c.demand(c.who, path, privs...)
		}
		return c.demandAny(c.who, path, privs...)
	}
}

func agentIndex(c *call) (any, error) {
	if _, err := c.findVM(); err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, n := range []string{"get-osinfo", "get-host-name", "network-get-interfaces", "info", "ping", "exec", "exec-status"} {
		out = append(out, map[string]any{"name": n})
	}
	return out, nil
}

// agent answers the guest whose agent can be asked.
func (c *call) agent() (Guest, error) {
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	if !m.agentEnabled() {
		return nil, die("No QEMU guest agent configured")
	}
	p := c.running[m.ID]
	if p == nil {
		return nil, die("VM %d is not running", m.ID)
	}
	if p.guest == nil || !p.guest.AgentRunning() {
		return nil, die("QEMU guest agent is not running")
	}
	return p.guest, nil
}

// agentCall wraps an answer of the agent as Proxmox VE does.
func agentCall(f func(Guest) any) func(*call) (any, error) {
	return func(c *call) (any, error) {
		g, err := c.agent()
		if err != nil {
			return nil, err
		}
		return map[string]any{"result": f(g)}, nil
	}
}

func osInfo(Guest) any {
	return map[string]any{
		"id": "talos", "name": "Talos", "pretty-name": "Talos (lab)", "version": "lab", "version-id": "lab",
		"machine": "x86_64", "kernel-release": "6.18.0-talos", "kernel-version": "#1 SMP",
	}
}

func hostName(g Guest) any { return map[string]any{"host-name": g.Hostname()} }

func agentInfo(Guest) any {
	return map[string]any{"version": "9.2.0", "supported_commands": []any{}}
}

// interfaces lists the loopback device and one network device with the guest's
// addresses.
func interfaces(g Guest) any {
	address := func(p netip.Prefix) map[string]any {
		typ := "ipv4"
		if p.Addr().Is6() {
			typ = "ipv6"
		}
		return map[string]any{"ip-address": p.Addr().String(), "ip-address-type": typ, "prefix": p.Bits()}
	}
	list := []map[string]any{}
	for _, p := range g.Addresses() {
		list = append(list, address(p))
	}
	return []map[string]any{
		{"name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": []any{address(netip.MustParsePrefix("127.0.0.1/8"))}},
		{"name": "eth0", "ip-addresses": list},
	}
}

// agentExec refuses: Talos has no programs that its agent could run.
func agentExec(c *call) (any, error) {
	if _, err := c.agent(); err != nil {
		return nil, err
	}
	return nil, die("Agent error: The command guest-exec has not been found")
}

func agentExecStatus(c *call) (any, error) {
	if _, err := c.agent(); err != nil {
		return nil, err
	}
	return nil, die("Agent error: PID %d does not exist", c.integer("pid"))
}
