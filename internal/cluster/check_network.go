// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"net/netip"
)

// block is one CIDR block of the Cluster's.
type block struct {
	field  field
	prefix netip.Prefix
}

// maxServiceBits is how many bits of addresses the service network may have:
// kube-apiserver refuses more (cmd/kube-apiserver/app/options/validation.go).
const maxServiceBits = 20

// clusterBlocks answers the Cluster's pod and service networks that are known and
// well formed, and tells what is wrong with each by itself.
func (c *checker) clusterBlocks() []block {
	o, ok := c.cluster()
	if !ok {
		return nil
	}
	var blocks []block
	for _, kind := range []string{"pods", "services"} {
		for _, f := range o.at("spec.clusterNetwork." + kind + ".cidrBlocks").items() {
			text, ok := c.text(f)
			if !ok {
				continue
			}
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				c.wrong(f, "%q is not a CIDR block such as 10.244.0.0/16", text)
				continue
			}
			if kind == "services" && prefix.Addr().BitLen()-prefix.Bits() > maxServiceBits {
				c.wrong(f, "%s is too large for services: kube-apiserver takes /%d at most", prefix, prefix.Addr().BitLen()-maxServiceBits)
			}
			blocks = append(blocks, block{f, prefix})
		}
	}
	return blocks
}

// checkClusterNetworks wants the Cluster's networks to be well formed, and apart
// from each other and from the network of the machines: where they overlap, a
// pod's packets to a machine never leave the node.
func (c *checker) checkClusterNetworks() {
	blocks := c.clusterBlocks()
	for i, b := range blocks {
		for _, other := range blocks[:i] {
			if other.prefix.Overlaps(b.prefix) {
				c.wrong(b.field, "%s overlaps %s of %s", b.prefix, other.prefix, other.field.path)
			}
		}
	}
}

// endpoint is where the API server is to be reached.
type endpoint struct {
	field field
	// host is a name or an address; address is zero for a name.
	host    string
	address netip.Addr
}

func (c *checker) endpoint() (endpoint, bool) {
	var hosts []field
	for _, o := range c.manifest.Objects {
		if group := o.GroupVersionKind().Group; group == infrastructureGroup || group == coreGroup {
			hosts = append(hosts, o.at("spec.controlPlaneEndpoint.host"))
		}
	}
	for _, f := range hosts {
		if host, ok := c.text(f); ok {
			address, _ := netip.ParseAddr(host)
			return endpoint{field: f, host: host, address: address}, true
		}
	}
	return endpoint{}, false
}

// checkAddresses judges the pools, and the control plane endpoint against them.
func (c *checker) checkAddresses() {
	pools := c.pools()
	blocks := c.clusterBlocks()
	for _, p := range pools {
		for _, b := range blocks {
			if p.network.IsValid() && b.prefix.Overlaps(p.network) {
				c.wrong(b.field, "%s overlaps the network of the machines, %s (line %d)", b.prefix, p.network, p.field.line())
			}
		}
	}
	c.checkPoolSizes(pools)
	e, ok := c.endpoint()
	if !ok || !e.address.IsValid() {
		return
	}
	inNetwork := len(pools) == 0
	for _, p := range pools {
		inNetwork = inNetwork || !p.network.IsValid() || p.network.IsSingleIP() || p.network.Contains(e.address)
		if p.set != nil && p.set.Contains(e.address) {
			c.wrong(e.field, "the control plane endpoint %s is one of the machines' addresses (line %d): a machine would get it as its own", e.host, p.field.at("addresses").line())
		}
		if p.gateway == e.address {
			c.wrong(e.field, "the control plane endpoint %s is the gateway", e.host)
		}
	}
	if !inNetwork {
		c.doubtful(e.field, "the control plane endpoint %s lies outside the machines' network: as a virtual address it would not be reached", e.host)
	}
	for _, b := range blocks {
		if b.prefix.Contains(e.address) {
			c.wrong(e.field, "the control plane endpoint %s lies in the Cluster's network %s", e.host, b.prefix)
		}
	}
}

// checkPoolSizes wants enough addresses for all machines and those that a rollout
// adds for a while.
func (c *checker) checkPoolSizes(pools []pool) {
	groups := c.machineGroups()
	for _, p := range pools {
		if p.zone || p.set == nil || p.field.object.GroupVersionKind().GroupKind() != proxmoxClusterKind || c.hasZones(p) {
			continue
		}
		need, surge, complete := int64(0), int64(0), true
		for _, g := range groups {
			if g.infrastructure.kind != proxmoxMachineKind {
				continue
			}
			need, surge, complete = need+g.replicas, surge+g.surge, complete && g.counted
		}
		if !p.fits(need + surge) {
			atLeast := ""
			if !complete {
				atLeast = " at least"
			}
			c.wrong(p.field.at("addresses"), "too few addresses: the machines need%s %d, and a rollout %d more for a while", atLeast, need, surge)
		}
	}
}

// hasZones says whether machines take their addresses from zones, whose numbers
// cannot be told from the text.
func (c *checker) hasZones(p pool) bool { return len(p.field.object.at("spec.zoneConfig").items()) > 0 }
