// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// UpdateTemplate brings what can be changed on a template to what spec says.
// Nothing is sent where nothing differs. A change by others between the reading
// of t and this call is an error, which the next apply resolves.
func (c *Client) UpdateTemplate(ctx context.Context, t Template, spec TemplateSpec) (Template, error) {
	m := t.mark
	if m.Kind == "" && spec.Instance != "" {
		m = mark{Kind: "template", ID: t.VMID, Instance: spec.Instance}.kept()
	}
	if m.Kind != "" {
		m.Labels, m.Family = spec.Labels, spec.Family
	}
	want, have := spec.config(m, t.macs), t.config(t.mark, t.macs)
	if body := difference(want, have); len(body) > 0 {
		body["digest"] = t.digest
		put := c.put(ctx, vmPath(t.Node, t.VMID, "config"), body, nil)
		if put != nil && !saying(put, digestRefused) {
			return t, fmt.Errorf("changing the configuration of template %d on node %s: %w", t.VMID, t.Node, put)
		}
		fresh, err := c.readVM(ctx, t.Node, t.VMID)
		if err != nil {
			return t, fmt.Errorf("reading template %d on node %s: %w", t.VMID, t.Node, err)
		}
		if put != nil && len(difference(spec.config(m, fresh.macs), fresh.config(fresh.mark, fresh.macs))) > 0 {
			return t, fmt.Errorf("changing the configuration of template %d on node %s: %w", t.VMID, t.Node, put)
		}
		fresh.Pool, fresh.Transfer = t.Pool, t.Transfer
		t = fresh
	}
	return t, c.changePool(ctx, &t, spec.Pool)
}

// difference answers the parameters that bring have to want: the options that
// differ, and those that are to be unset.
func difference(want, have map[string]string) params {
	body := params{}
	var dropped []string
	for name, value := range have {
		if value != "" && want[name] == "" {
			dropped = append(dropped, name)
		}
	}
	for name, value := range want {
		if value != "" && value != have[name] {
			body[name] = value
		}
	}
	if len(dropped) > 0 {
		slices.Sort(dropped)
		body["delete"] = strings.Join(dropped, ",")
	}
	return body
}

// changePool moves a template into a pool, or out of its pool.
func (c *Client) changePool(ctx context.Context, t *Template, pool string) error {
	if t.Pool == pool {
		return nil
	}
	where, body := pool, params{"vms": strconv.Itoa(t.VMID), "allow-move": 1}
	if pool == "" {
		where, body = t.Pool, params{"vms": strconv.Itoa(t.VMID), "delete": 1}
	}
	err := c.put(ctx, "/pools/"+where, body, nil)
	// A repeated call whose first answer got lost finds it done.
	if err != nil && !saying(err, "is already a pool member") && !saying(err, "is not a pool member") {
		return fmt.Errorf("changing the pool of template %d: %w", t.VMID, err)
	}
	t.Pool = pool
	return nil
}

// ErrProtected and ErrInUse mark why a template is not deleted.
var (
	ErrProtected = errors.New("protected")
	ErrInUse     = errors.New("in use by linked clones")
)

// DeleteTemplate deletes a template that was read and is the caller's. Linked
// clones that still use it make it refuse, naming them as far as the storage
// knows them.
func (c *Client) DeleteTemplate(ctx context.Context, t Template, reporter progress.Reporter) error {
	where := fmt.Sprintf("template %d (%s) on node %s", t.VMID, t.Name, t.Node)
	if t.Protection {
		return fmt.Errorf("%s is %w: take the protection away first (protection = false, or qm set %d --protection 0)", where, ErrProtected, t.VMID)
	}
	clones, err := c.linkedClones(ctx, t)
	if err != nil {
		return err
	}
	if len(clones) > 0 {
		return fmt.Errorf("%s is %w: %s; delete these VMs, or move them to full clones (qm move-disk), first", where, ErrInUse, strings.Join(clones, ", "))
	}
	// The image file goes first: only the template's notes tell of it.
	if err := c.DropImage(ctx, t, reporter); err != nil {
		return err
	}
	reporter.Report(ctx, "delete", "deleting "+where)
	var upid string
	err = c.remove(ctx, vmPath(t.Node, t.VMID, ""), params{"purge": 1}, &upid)
	if err == nil {
		err = c.wait(ctx, upid)
	}
	switch {
	case err == nil || missing(err):
		return nil
	case saying(err, "still in use by linked clone"):
		return fmt.Errorf("%s is %w; delete these VMs, or move them to full clones (qm move-disk), first: %w", where, ErrInUse, err)
	}
	return fmt.Errorf("deleting %s: %w", where, err)
}

// DropImage deletes the image file that the template was made of, where it was
// kept. An account that may not is no reason to fail: it is told under
// [PhaseImageStays].
func (c *Client) DropImage(ctx context.Context, t Template, reporter progress.Reporter) error {
	if t.mark.Image == "" {
		return nil
	}
	return c.dropVolume(ctx, t.Node, t.mark.Image, reporter)
}

// dropVolume deletes an image file, as far as whoever works may.
func (c *Client) dropVolume(ctx context.Context, node, volume string, reporter progress.Reporter) error {
	err := c.removeVolume(ctx, node, volume)
	if errors.Is(err, ErrDenied) {
		reporter.Report(ctx, PhaseImageStays, fmt.Sprintf("the image file %s on node %s stays: %v; where no other template is made of it, remove it: pvesm free %s", volume, node, err, volume))
		return nil
	}
	return err
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
	return c.discardImages(ctx, spec, reporter)
}

// discardImages removes a template's image file from wherever on its node it may
// have been brought to. Its name is like no other.
func (c *Client) discardImages(ctx context.Context, spec TemplateSpec, reporter progress.Reporter) error {
	list, err := c.storages(ctx, spec.Node)
	if err != nil {
		return err
	}
	for _, storage := range list {
		for _, method := range []string{TransferUpload, TransferUploadISO} {
			t := Transfer{Method: method, storage: storage}
			if !storage.holds(t.content()) || !storage.usable() || !storage.files() {
				continue
			}
			if err := c.dropVolume(ctx, spec.Node, t.volume(spec), reporter); err != nil {
				return err
			}
		}
	}
	return nil
}
