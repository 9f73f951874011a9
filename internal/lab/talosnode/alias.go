// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import "net/netip"

// Addresses that stand for a node inside its cluster. Both ranges belong to the
// benchmarking range 198.18.0.0/15 (RFC 2544), which no network routes.
var (
	// apiAliases stand for a node's Talos API in EndpointSlices, which refuse the
	// loopback addresses that a lab's nodes have.
	apiAliases = netip.MustParsePrefix("198.18.0.0/16")
	// podAliases are what a node's hostNetwork pods have as their address: the
	// node's own is the host's, where the control plane listens.
	podAliases = netip.MustParsePrefix("198.19.0.0/16")
	// kubernetesAlias stands for the API servers of a cluster, whichever answers.
	kubernetesAlias = netip.MustParseAddrPort("198.18.255.254:6443")
)

// aliasTable gives every address one alias of a range. It is not safe for
// concurrent use.
type aliasTable map[netip.Addr]netip.Addr

func (t aliasTable) of(addr netip.Addr, among netip.Prefix) netip.Addr {
	if a, ok := t[addr]; ok {
		return a
	}
	last := among.Addr()
	for _, a := range t {
		if last.Less(a) {
			last = a
		}
	}
	t[addr] = last.Next()
	return t[addr]
}

// apiAlias is the address under which a node's Talos API appears in the cluster.
func (f *fabric) apiAlias(addr netip.Addr) netip.Addr {
	if !addr.IsLoopback() {
		return addr
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.apis.of(addr, apiAliases)
}

// podAlias is the address of a node's hostNetwork pods.
func (f *fabric) podAlias(addr netip.Addr) netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods.of(addr, podAliases)
}

// translate turns the alias of a Talos API back into the node's address.
func (f *fabric) translate(to netip.AddrPort) netip.AddrPort {
	if !apiAliases.Contains(to.Addr()) {
		return to
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for addr, a := range f.apis {
		if a == to.Addr() {
			return netip.AddrPortFrom(addr, to.Port())
		}
	}
	return to
}
