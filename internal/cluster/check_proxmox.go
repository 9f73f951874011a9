// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"net/netip"
)

// Limits of CAPMOX v0.9.0 (api/v1alpha2/proxmoxmachine_types.go) and of Proxmox VE.
const (
	memoryStep   = 8   // MiB
	smallestDisk = 5   // GB
	smallestVMID = 100 // those below are Proxmox VE's own
)

// checkProxmox judges ProxmoxClusters and ProxmoxMachineTemplates.
func (c *checker) checkProxmox() {
	for _, o := range c.objects(proxmoxClusterKind) {
		c.checkProxmoxCluster(o)
	}
	for _, o := range c.objects(proxmoxMachineKind) {
		c.checkProxmoxTemplate(o)
	}
}

func (c *checker) checkProxmoxCluster(o Object) {
	if !o.at("spec.ipv4Config").set() && !o.at("spec.ipv6Config").set() {
		c.wrong(o.at("spec"), "there is neither an ipv4Config nor an ipv6Config: without one the IPAM provider has no addresses for the machines")
	}
	external := o.at("spec.externalManagedControlPlane")
	if host := o.at("spec.controlPlaneEndpoint.host"); !host.set() && c.known(external) && external.value != true {
		c.wrong(host, "the address of the API server is missing")
	}
	servers := o.at("spec.dnsServers")
	if len(servers.items()) == 0 {
		c.wrong(servers, "there is no DNS server for the machines")
	}
	for _, f := range servers.items() {
		if text, ok := c.text(f); ok {
			if _, err := netip.ParseAddr(text); err != nil {
				c.wrong(f, "%q is not an address", text)
			}
		}
	}
	c.checkCredentials(o.at("spec.credentialsRef"))
}

// checkCredentials wants the Secret with the credentials in the cluster's
// namespace, where a move finds it, and beside the manifest.
func (c *checker) checkCredentials(f field) {
	if !f.set() {
		return
	}
	if namespace, ok := c.text(f.at("namespace")); ok && namespace != c.options.Namespace {
		c.wrong(f.at("namespace"), "the credentials lie in the namespace %q, but this cluster's is %q: they would not move with it", namespace, c.options.Namespace)
		return
	}
	name, ok := c.text(f.at("name"))
	if !ok || c.options.Secrets == nil {
		return
	}
	for _, o := range c.options.Secrets.Objects {
		if o.GetName() == name {
			return
		}
	}
	c.doubtful(f.at("name"), "secrets_wo has no Secret %q: somebody else must put it into the bootstrap cluster", name)
}

func (c *checker) checkProxmoxTemplate(o Object) {
	spec := o.at("spec.template.spec")
	if memory, ok := c.number(spec.at("memoryMiB")); ok && (memory%memoryStep != 0 || memory < 0) {
		c.wrong(spec.at("memoryMiB"), "%d MiB is not a multiple of %d", memory, memoryStep)
	}
	if size, ok := c.number(spec.at("disks.bootVolume.sizeGb")); ok && size < smallestDisk {
		c.wrong(spec.at("disks.bootVolume.sizeGb"), "%d GB is too small: CAPMOX takes %d GB at least", size, smallestDisk)
	}
	for _, name := range []string{"numCores", "numSockets"} {
		if count, ok := c.number(spec.at(name)); ok && count < 1 {
			c.wrong(spec.at(name), "a VM needs at least one")
		}
	}
	if id, ok := c.number(spec.at("templateID")); ok && id < smallestVMID {
		c.wrong(spec.at("templateID"), "%d is not the id of a VM: they start at %d", id, smallestVMID)
	}
	byID := spec.at("templateID").set() && spec.at("sourceNode").set()
	if !byID && !spec.at("templateSelector").set() {
		c.wrong(spec, "it names no VM template: set templateID and sourceNode, or templateSelector")
	}
	if spec.at("providerID").set() {
		c.wrong(spec.at("providerID"), "a template cannot have a provider id")
	}
	if full := spec.at("full"); full.value == false {
		for _, name := range []string{"storage", "format"} {
			if spec.at(name).set() {
				c.wrong(spec.at(name), "a linked clone (full: false) takes no %s", name)
			}
		}
	}
	c.checkDevices(spec.at("network.networkDevices"))
}

func (c *checker) checkDevices(devices field) {
	if len(devices.items()) == 0 {
		c.wrong(devices, "a machine needs at least one network device")
	}
	names := map[string]bool{}
	for _, f := range devices.items() {
		name, ok := c.text(f.at("name"))
		if !f.at("name").set() {
			name, ok = "net0", true // the definition's default
		}
		if !ok {
			return
		}
		names[name] = true
		if vlan, ok := c.number(f.at("vlan")); ok && (vlan < 1 || vlan > 4094) {
			c.wrong(f.at("vlan"), "%d is not a VLAN: they go from 1 to 4094", vlan)
		}
	}
	for i := range devices.items() {
		if want := fmt.Sprintf("net%d", i); !names[want] {
			c.wrong(devices, "%d network devices must be named net0 to net%d; there is no %s", len(devices.items()), len(devices.items())-1, want)
			return
		}
	}
}
