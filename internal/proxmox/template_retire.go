// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// RetireTemplate gives up a template whose place another of its family has
// taken, without deleting it: machines can still be cloned from it by its id.
// Its tags go, since a template selector of Cluster API's provider refuses to
// choose between two that match. Of those that have retired, the youngest keep
// stay and the others are deleted, see [Client.PruneTemplates].
func (c *Client) RetireTemplate(ctx context.Context, t Template, keep int, reporter progress.Reporter) (left []string, err error) {
	reporter.Report(ctx, "retire", fmt.Sprintf("template %d (%s) on node %s retires", t.VMID, t.Name, t.Node))
	family := t.mark.Family
	t.mark.State, t.mark.Until = stateRetired, c.clock.now().Unix()
	body := params{"description": t.mark.with(t.Description, "\n\n"), "digest": t.digest}
	if len(t.Tags) > 0 {
		body["delete"] = "tags"
	}
	put := c.put(ctx, vmPath(t.Node, t.VMID, "config"), body, nil)
	if put != nil {
		fresh, err := c.readVM(ctx, t.Node, t.VMID)
		if err != nil || fresh.mark.State != stateRetired {
			return nil, fmt.Errorf("retiring template %d on node %s: %w", t.VMID, t.Node, put)
		}
	}
	return c.PruneTemplates(ctx, t.Node, family, keep, reporter)
}

// PruneTemplates deletes the retired templates of a family on a node, but for
// the youngest keep. Those that are in use or protected stay, and are answered
// in words.
func (c *Client) PruneTemplates(ctx context.Context, node, family string, keep int, reporter progress.Reporter) (left []string, err error) {
	all, err := c.family(ctx, node, family)
	if err != nil {
		return nil, err
	}
	retired := slices.DeleteFunc(all, func(t Template) bool { return t.mark.State != stateRetired })
	slices.SortFunc(retired, func(a, b Template) int {
		if a.mark.Until != b.mark.Until {
			return int(b.mark.Until - a.mark.Until)
		}
		return b.VMID - a.VMID
	})
	for _, t := range retired[min(keep, len(retired)):] {
		err := c.DeleteTemplate(ctx, t, reporter)
		switch {
		case errors.Is(err, ErrInUse), errors.Is(err, ErrProtected):
			left = append(left, err.Error())
		case err != nil:
			return left, err
		}
	}
	return left, nil
}

// Family is what the template has in common with those before and after it.
func (t Template) Family() string { return t.mark.Family }

// HasSuccessor says whether the node has another template of t's family that has
// not retired: then t is being replaced.
func (c *Client) HasSuccessor(ctx context.Context, t Template) (bool, error) {
	all, err := c.family(ctx, t.Node, t.mark.Family)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all, func(o Template) bool { return o.VMID != t.VMID && o.mark.State != stateRetired }), nil
}

// family reads the templates of a family on a node.
func (c *Client) family(ctx context.Context, node, family string) ([]Template, error) {
	if family == "" {
		return nil, nil
	}
	list, err := c.nodeVMs(ctx, node)
	if err != nil {
		return nil, err
	}
	var out []Template
	for _, vm := range list {
		if !vm.converted() {
			continue
		}
		t, err := c.readVM(ctx, node, vm.VMID)
		if missing(err) || isDenied(err) {
			continue // deleted meanwhile, or nothing of ours
		}
		if err != nil {
			return nil, fmt.Errorf("reading VM %d on node %s: %w", vm.VMID, node, err)
		}
		if t.mark.Kind == "template" && t.mark.Family == family {
			out = append(out, t)
		}
	}
	return out, nil
}

// nodeVM is an entry of a node's list of VMs.
type nodeVM struct {
	VMID     int    `json:"vmid"`
	Name     string `json:"name"`
	Status   string `json:"status"`
	Template any    `json:"template"` // 1, or an empty string or nothing for a VM
}

func (v nodeVM) converted() bool { return fmt.Sprint(v.Template) == "1" }

func (c *Client) nodeVMs(ctx context.Context, node string) ([]nodeVM, error) {
	var list []nodeVM
	if err := c.get(ctx, "/nodes/"+node+"/qemu", nil, &list); err != nil {
		return nil, fmt.Errorf("listing the VMs of node %s: %w", node, err)
	}
	return list, nil
}
