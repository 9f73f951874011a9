// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"net/netip"
	"strings"

	"go4.org/netipx"
)

// pool is a set of addresses for machines, and the network that they lie in.
type pool struct {
	// field is the mapping that holds addresses, prefix and gateway.
	field field
	// set is nil where the addresses are not known.
	set *netipx.IPSet
	// gateway and network are zero where they are not known.
	gateway netip.Addr
	network netip.Prefix
	// zone is set for the pool of a deployment zone of CAPMOX.
	zone bool
	ipv6 bool
}

// fits says whether a pool has at least count addresses for machines.
func (p pool) fits(count int64) bool {
	found := int64(0)
	for _, r := range p.set.Ranges() {
		for address := r.From(); address.IsValid() && address.Compare(r.To()) <= 0 && found < count; address = address.Next() {
			// The IPAM provider keeps the gateway back.
			if address != p.gateway {
				found++
			}
		}
	}
	return found >= count
}

// parseAddresses reads an address, a range from-to or a CIDR block, the forms that
// CAPMOX and the in-cluster IPAM provider take.
func parseAddresses(text string, into *netipx.IPSetBuilder) error {
	switch {
	case strings.Contains(text, "-"):
		r, err := netipx.ParseIPRange(text)
		into.AddRange(r)
		return err
	case strings.Contains(text, "/"):
		p, err := netip.ParsePrefix(text)
		into.AddPrefix(p)
		return err
	}
	address, err := netip.ParseAddr(text)
	into.Add(address)
	return err
}

// pools answers the pools of the ProxmoxClusters and of the in-cluster IPAM
// provider, and tells what is wrong with each by itself.
func (c *checker) pools() []pool {
	var fields []field
	var zoned []bool
	for _, o := range c.objects(proxmoxClusterKind) {
		for _, family := range []string{"ipv4Config", "ipv6Config"} {
			fields, zoned = append(fields, o.at("spec."+family)), append(zoned, false)
			for _, zone := range o.at("spec.zoneConfig").items() {
				fields, zoned = append(fields, zone.at(family)), append(zoned, true)
			}
		}
	}
	for _, o := range c.manifest.Objects {
		if kind := o.GetKind(); o.GroupVersionKind().Group == ipamGroup && (kind == "InClusterIPPool" || kind == "GlobalInClusterIPPool") {
			fields, zoned = append(fields, o.at("spec")), append(zoned, false)
		}
	}
	var pools []pool
	for i, f := range fields {
		if f.set() {
			p := c.pool(f)
			p.zone = zoned[i]
			pools = append(pools, p)
		}
	}
	return pools
}

func (c *checker) pool(f field) pool {
	p := pool{field: f, ipv6: strings.HasSuffix(f.path, "ipv6Config")}
	p.set = c.addressSet(f.at("addresses"))
	if text, ok := c.text(f.at("gateway")); ok {
		gateway, err := netip.ParseAddr(text)
		if err != nil {
			c.wrong(f.at("gateway"), "%q is not an address", text)
		}
		p.gateway = gateway
	}
	bits, ok := c.number(f.at("prefix"))
	first := p.gateway
	if !first.IsValid() && p.set != nil && len(p.set.Ranges()) > 0 {
		first = p.set.Ranges()[0].From()
	}
	if !ok || !first.IsValid() {
		return p
	}
	network, err := first.Prefix(int(bits))
	if err != nil || bits == 0 {
		c.wrong(f.at("prefix"), "a prefix of %d bits does not fit the address %s", bits, first)
		return p
	}
	p.network = network
	c.checkFamily(p)
	// Where each machine has a network of its own, all others lie outside.
	if !network.IsSingleIP() && p.set != nil {
		for _, r := range p.set.Ranges() {
			if !network.Contains(r.From()) || !network.Contains(r.To()) {
				c.wrong(f.at("addresses"), "%s lies outside the network %s, in which the machines reach the gateway", r, network)
			}
		}
	}
	return p
}

func (c *checker) checkFamily(p pool) {
	named := strings.HasSuffix(p.field.path, "ipv4Config") || p.ipv6
	if named && p.network.Addr().Is4() == p.ipv6 {
		c.wrong(p.field, "the addresses of %s are of the other family", p.field.path[strings.LastIndex(p.field.path, ".")+1:])
	}
}

func (c *checker) addressSet(f field) *netipx.IPSet {
	if !f.set() || len(f.items()) == 0 {
		c.wrong(f, "there are no addresses for the machines")
		return nil
	}
	var builder netipx.IPSetBuilder
	known := true
	for _, item := range f.items() {
		text, ok := c.text(item)
		if !ok {
			known = false
			continue
		}
		if err := parseAddresses(text, &builder); err != nil {
			c.wrong(item, "%q is neither an address nor a range (10.0.0.160-10.0.0.180) nor a CIDR block", text)
			known = false
		}
	}
	set, err := builder.IPSet()
	if !known || err != nil {
		return nil
	}
	return set
}
