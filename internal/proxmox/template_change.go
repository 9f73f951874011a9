// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// KeepTemplate notes in the template's mark that its id is known to its owner:
// from then on no other run takes it over. Called once the owner's state is
// known to be written, so not by the run that makes the template.
func (c *Client) KeepTemplate(ctx context.Context, t Template) error {
	if t.mark.State != stateMade {
		return nil
	}
	t.mark = t.mark.kept()
	return c.writeMark(ctx, &t)
}

// Kept says whether the template's mark needs no [Client.KeepTemplate].
func (t Template) Kept() bool { return t.mark.State != stateMade }

// UpdateTemplate brings what can be changed on a template to the given settings.
// Nothing is sent where nothing differs. A change by others between the reading
// of t and this call is an error, which the next apply resolves.
func (c *Client) UpdateTemplate(ctx context.Context, t Template, settings TemplateSettings, labels map[string]string) (Template, error) {
	m := t.mark
	if m.Kind != "" {
		m.Labels = labels
	}
	want := settings.config(m, t.macs["net0"])
	have := t.config(t.mark, t.macs["net0"])
	body := params{}
	var dropped []string
	for name, value := range want {
		switch value {
		case have[name]:
		case "":
			dropped = append(dropped, name)
		default:
			body[name] = value
		}
	}
	if m.Kind == "" && settings.Description == t.Description {
		delete(body, "description") // nothing of ours to write there
	}
	if len(body) == 0 && len(dropped) == 0 {
		return t, nil
	}
	if len(dropped) > 0 {
		slices.Sort(dropped)
		body["delete"] = strings.Join(dropped, ",")
	}
	body["digest"] = t.digest
	put := c.put(ctx, vmPath(t.Node, t.VMID, "config"), body, nil)
	if put != nil && !saying(put, digestRefused) {
		return t, fmt.Errorf("changing the configuration of template %d on node %s: %w", t.VMID, t.Node, put)
	}
	fresh, err := c.readVM(ctx, t.Node, t.VMID)
	if err != nil {
		return t, fmt.Errorf("reading template %d on node %s: %w", t.VMID, t.Node, err)
	}
	if put != nil && !maps.Equal(fresh.config(fresh.mark, fresh.macs["net0"]), want) {
		return t, fmt.Errorf("changing the configuration of template %d on node %s: %w", t.VMID, t.Node, put)
	}
	return fresh, nil
}

// DeleteTemplate deletes a template that was read and is the caller's. Linked
// clones that still use it make it refuse, naming them as far as the storage
// knows them.
func (c *Client) DeleteTemplate(ctx context.Context, t Template, reporter progress.Reporter) error {
	where := fmt.Sprintf("template %d (%s) on node %s", t.VMID, t.Name, t.Node)
	if t.protected {
		return fmt.Errorf("%s is protected: take the protection away first (qm set %d --protection 0)", where, t.VMID)
	}
	clones, err := c.linkedClones(ctx, t)
	if err != nil {
		return err
	}
	if len(clones) > 0 {
		return fmt.Errorf("%s is in use by linked clones: %s; delete these VMs, or move them to full clones (qm move-disk), first", where, strings.Join(clones, ", "))
	}
	reporter.Report(ctx, "delete", "deleting "+where)
	var upid string
	err = c.remove(ctx, vmPath(t.Node, t.VMID, ""), params{"purge": 1}, &upid)
	if err == nil {
		err = c.wait(ctx, upid)
	}
	switch {
	case err == nil || missing(err):
		return c.DropImage(ctx, t)
	case saying(err, "still in use by linked clone"):
		return fmt.Errorf("%s is in use by linked clones; delete these VMs, or move them to full clones (qm move-disk), first: %w", where, err)
	}
	return fmt.Errorf("deleting %s: %w", where, err)
}

// DropImage deletes the image file that the template was made of, where it was
// kept. An account that may not is no reason to fail.
func (c *Client) DropImage(ctx context.Context, t Template) error {
	if t.mark.Image == "" {
		return nil
	}
	if err := c.removeVolume(ctx, t.Node, t.mark.Image); err != nil && !errors.Is(err, ErrDenied) {
		return err
	}
	return nil
}

// linkedClones names the VMs whose disks lie on the template's base volumes, as
// far as the volume ids show it: directories, ZFS and RBD do, LVM-thin does not.
func (c *Client) linkedClones(ctx context.Context, t Template) ([]string, error) {
	if t.Storage == "" {
		return nil, nil
	}
	var list []struct {
		VolID  string `json:"volid"`
		Parent string `json:"parent"`
		VMID   any    `json:"vmid"`
	}
	if err := c.get(ctx, "/nodes/"+t.Node+"/storage/"+t.Storage+"/content", params{"content": "images"}, &list); err != nil {
		if isDenied(err) {
			return nil, nil // the deletion itself checks as well
		}
		return nil, fmt.Errorf("looking for linked clones of template %d in storage %s: %w", t.VMID, t.Storage, err)
	}
	base := fmt.Sprintf("base-%d-disk-", t.VMID)
	var clones []string
	for _, entry := range list {
		vmid := fmt.Sprint(entry.VMID)
		if vmid == fmt.Sprint(t.VMID) || (!strings.Contains(entry.VolID, base) && !strings.Contains(entry.Parent, base)) {
			continue
		}
		clones = append(clones, "VM "+vmid)
	}
	slices.Sort(clones)
	return slices.Compact(clones), nil
}

// DiscardTemplate removes what an interrupted run of this instance has left
// before it had an id to tell: the VM, where there is one with its mark, and the
// image file.
func (c *Client) DiscardTemplate(ctx context.Context, spec TemplateSpec, instance string, reporter progress.Reporter) error {
	b := &build{c: c, spec: spec, instance: instance, reporter: reporter}
	if err := b.settleTasks(ctx); err != nil {
		return err
	}
	candidates, err := b.candidates(ctx)
	if err != nil {
		return err
	}
	for _, t := range candidates {
		if t.mark.Instance != instance {
			continue
		}
		if err := c.DeleteTemplate(ctx, t, reporter); err != nil {
			return err
		}
	}
	_, importing, err := c.chooseStorages(ctx, spec)
	if err != nil {
		return err
	}
	return c.removeVolume(ctx, spec.Node, imageVolume(importing.Name, spec.imageFile()))
}
