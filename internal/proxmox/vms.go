// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// VMRef names a VM. The id alone is no identity: Proxmox VE gives the id of a
// deleted VM to the next one.
type VMRef struct {
	// Node is where the VM was last seen; it is found elsewhere as well.
	Node string
	ID   int
	// UUID is the SMBIOS UUID, which is also the host part of a providerID
	// "proxmox://UUID".
	UUID string
}

// String answers "VM 101 (UUID)".
func (r VMRef) String() string { return fmt.Sprintf("VM %d (%s)", r.ID, r.UUID) }

// FindVMs answers those of the VMs that are there, with the node each is on now.
// A VM with the id of one of them and another UUID is not among them. It is an
// error where one of them can be proven neither present nor absent.
func (c *Client) FindVMs(ctx context.Context, refs []VMRef) ([]VMRef, error) {
	resources, err := c.vmResources(ctx)
	if err != nil {
		return nil, err
	}
	nodes := map[int]string{}
	for _, r := range resources {
		if r.Type == "qemu" {
			nodes[r.VMID] = r.Node
		}
	}
	var found []VMRef
	for _, ref := range refs {
		if ref.UUID == "" {
			return nil, fmt.Errorf("VM %d was given without its UUID, so that it cannot be told from another VM of that id", ref.ID)
		}
		node := nodes[ref.ID]
		if node == "" {
			node = ref.Node // the list may hide what the account may not see
		}
		if node == "" {
			continue
		}
		config, err := c.readConfig(ctx, node, ref.ID)
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s on node %s: %w", ref, node, err)
		}
		if strings.EqualFold(property(config.text("smbios1"))["uuid"], ref.UUID) {
			found = append(found, VMRef{Node: node, ID: ref.ID, UUID: ref.UUID})
		}
	}
	return found, nil
}

// StrayClones answers the VMs that bear the name of one of the given VMs, and
// are neither one of them nor a template, and do not run. CAPMOX v0.9.0 names a
// machine's VM after the ProxmoxMachine, whose name ends in random letters; when
// it loses the answer to a clone, or reconciles from a cache that does not know
// it yet, it clones once more and forgets the first
// (internal/service/vmservice, createVM). Such a clone belongs to nobody: no
// ProxmoxMachine names it, so no deletion of a cluster takes it along.
func (c *Client) StrayClones(ctx context.Context, machines []VMRef) ([]VMRef, error) {
	known, err := c.FindVMs(ctx, machines)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, ref := range known {
		config, err := c.readConfig(ctx, ref.Node, ref.ID)
		if err != nil && !missing(err) {
			return nil, fmt.Errorf("reading %s on node %s: %w", ref, ref.Node, err)
		}
		if name := config.text("name"); name != "" {
			names[name] = true
		}
	}
	resources, err := c.vmResources(ctx)
	if err != nil {
		return nil, err
	}
	var strays []VMRef
	for _, r := range resources {
		if r.Type != "qemu" || r.Template != 0 || r.Name != "" && !names[r.Name] ||
			slices.ContainsFunc(known, func(ref VMRef) bool { return ref.ID == r.VMID }) {
			continue
		}
		// The list lags behind, and does not know the name of a young VM; the VM's
		// own answers do not.
		stray, err := c.strayClone(ctx, r, names)
		if err != nil {
			return nil, fmt.Errorf("reading VM %d on node %s: %w", r.VMID, r.Node, err)
		}
		if stray != nil {
			strays = append(strays, *stray)
		}
	}
	return strays, nil
}

// strayClone answers the VM if it bears one of the names and does not run.
func (c *Client) strayClone(ctx context.Context, r vmResource, names map[string]bool) (*VMRef, error) {
	config, err := c.readConfig(ctx, r.Node, r.VMID)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !names[config.text("name")] || config.number("template", 0) != 0 {
		return nil, nil
	}
	status, err := c.vmStatus(ctx, r.Node, r.VMID)
	if missing(err) || err == nil && status != "stopped" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &VMRef{Node: r.Node, ID: r.VMID, UUID: property(config.text("smbios1"))["uuid"]}, nil
}

// vmStatus answers "running" or "stopped".
func (c *Client) vmStatus(ctx context.Context, node string, id int) (string, error) {
	var status struct {
		Status string `json:"status"`
	}
	err := c.get(ctx, vmPath(node, id, "status/current"), nil, &status)
	return status.Status, err
}

// DestroyVMs stops and deletes exactly those VMs whose id and UUID match, with
// their disks, for good. A VM of one of the ids with another UUID is left
// alone, and one that is gone is fine. It goes on with the others where one
// fails, and answers all errors.
func (c *Client) DestroyVMs(ctx context.Context, refs []VMRef, reporter progress.Reporter) error {
	found, err := c.FindVMs(ctx, refs)
	if err != nil {
		return err
	}
	if left := len(refs) - len(found); left > 0 {
		reporter.Report(ctx, "destroy-vms", fmt.Sprintf("%d of %d VMs are gone already, or their ids belong to other VMs by now", left, len(refs)))
	}
	var failures []error
	for _, ref := range found {
		reporter.Report(ctx, "destroy-vms", fmt.Sprintf("destroying %s on node %s", ref, ref.Node))
		if err := c.destroyVM(ctx, ref); err != nil {
			failures = append(failures, fmt.Errorf("destroying %s on node %s: %w", ref, ref.Node, err))
		}
	}
	return errors.Join(failures...)
}

func (c *Client) destroyVM(ctx context.Context, ref VMRef) error {
	for range 3 { // something may start it again between stop and deletion
		if err := c.stopVM(ctx, ref); err != nil {
			return err
		}
		var upid string
		err := c.remove(ctx, vmPath(ref.Node, ref.ID, ""), params{"purge": 1}, &upid)
		if err == nil {
			err = c.wait(ctx, upid)
		}
		switch {
		case err == nil || missing(err):
			return nil
		case saying(err, "protection mode enabled"):
			return fmt.Errorf("the VM is protected; take the protection away first (qm set %d --protection 0): %w", ref.ID, err)
		case !saying(err, "is running"):
			return err
		}
	}
	return errors.New("the VM is started again each time it was stopped: something else, such as HA or a controller, works on it")
}

// stopVM cuts the power, as DestroyVMs is for machines that are given up.
func (c *Client) stopVM(ctx context.Context, ref VMRef) error {
	status, err := c.vmStatus(ctx, ref.Node, ref.ID)
	if missing(err) || (err == nil && status == "stopped") {
		return nil
	}
	if err != nil {
		return err
	}
	var upid string
	if err := c.post(ctx, vmPath(ref.Node, ref.ID, "status/stop"), nil, &upid); err != nil && !saying(err, "not running") {
		return err
	}
	return c.wait(ctx, upid)
}
