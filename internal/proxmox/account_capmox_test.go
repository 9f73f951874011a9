// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"bytes"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	pve "github.com/luthermonson/go-proxmox"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/factory"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

// idleGuest runs and has a guest agent.
type idleGuest struct{}

func (idleGuest) Boot(context.Context, pvesim.VM) (pvesim.Guest, error) { return idleGuest{}, nil }
func (idleGuest) Shutdown(context.Context) error                        { return nil }
func (idleGuest) Kill()                                                 {}
func (idleGuest) AgentRunning() bool                                    { return true }
func (idleGuest) Hostname() string                                      { return "machine" }
func (idleGuest) Addresses() []netip.Prefix                             { return nil }

// bootable serves an image that the simulated machines boot from.
func (r *rig) bootable() {
	r.t.Helper()
	f, err := factory.Start(r.t.Context(), factory.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	image, err := talos.NewDiskImage(talos.Schematic{}, talos.Image{Factory: f.URL(), Version: "v1.13.7"}, talos.Factory{})
	if err != nil {
		r.t.Fatal(err)
	}
	var content bytes.Buffer
	if err := image.Prepare(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	if _, err := image.Download(r.t.Context(), &content); err != nil {
		r.t.Fatal(err)
	}
	r.image = content.Bytes()
}

// machine provisions and removes a VM by the calls that Cluster API's Proxmox
// provider v0.9.0 makes (internal/service/vmservice, pkg/proxmox/goproxmox), in a
// pool where one is named.
func machine(t *testing.T, c *Client, template int, pool string) (failed string, err error) {
	const id = 500
	vm := vmPath("pve1", id, "")
	upload := func(upid *string) error {
		content := []byte("an ISO image")
		return c.api.UploadReader("/nodes/pve1/storage/local/upload", map[string]string{"content": "iso"}, "user-data-500.iso",
			bytes.NewReader(content), int64(len(content)), upid)
	}
	clone := map[string]any{"newid": id, "name": "machine", "full": 1}
	if pool != "" {
		clone["pool"] = pool
	}
	steps := []struct {
		method, path string
		body         map[string]any
	}{
		{http.MethodGet, "/version", nil},
		{http.MethodGet, "/cluster/status", nil},
		{http.MethodGet, "/cluster/nextid?vmid=500", nil},
		{http.MethodGet, "/nodes/pve1/status", nil},
		{http.MethodGet, "/nodes/pve1/qemu", nil},
		{http.MethodGet, "/nodes/pve1/lxc", nil},
		{http.MethodGet, "/cluster/resources?type=vm", nil},
		{http.MethodGet, vmPath("pve1", template, "status/current"), nil},
		{http.MethodGet, vmPath("pve1", template, "config"), nil},
		{http.MethodPost, vmPath("pve1", template, "clone"), clone},
		{http.MethodGet, vm + "/status/current", nil},
		{http.MethodPost, vm + "/config", map[string]any{"sockets": 1, "cores": 2, "memory": 2048, "description": "a machine", "net0": "virtio,bridge=vmbr0", "tags": "a"}},
		{http.MethodPut, vm + "/resize", map[string]any{"disk": "scsi0", "size": "20G"}},
		{http.MethodPost, vm + "/config", map[string]any{"tags": "a;ip_net0_10.0.0.1"}},
		{http.MethodGet, "/nodes/pve1/storage", nil},
		{"UPLOAD", "", nil},
		{http.MethodPost, vm + "/config", map[string]any{"ide0": "local:iso/user-data-500.iso,media=cdrom", "boot": "order=scsi0;ide0"}},
		{http.MethodPost, vm + "/status/start", nil},
		{http.MethodGet, vm + "/agent/get-osinfo", nil},
		{http.MethodPost, vm + "/config", map[string]any{"ide0": "none,media=cdrom"}},
		{http.MethodGet, "/nodes/pve1/storage/local/content/local:iso/user-data-500.iso", nil},
		{http.MethodDelete, "/nodes/pve1/storage/local/content/local:iso/user-data-500.iso", nil},
		{http.MethodPost, vm + "/status/stop", nil},
		{http.MethodDelete, vm, nil},
	}
	for _, step := range steps {
		var answer any
		switch step.method {
		case "UPLOAD":
			var upid string
			err = upload(&upid)
			answer = upid
		case http.MethodGet:
			err = c.api.Get(t.Context(), step.path, &answer)
		case http.MethodPost:
			err = c.api.Post(t.Context(), step.path, params(step.body).body(), &answer)
		case http.MethodPut:
			err = c.api.Put(t.Context(), step.path, step.body, &answer)
		case http.MethodDelete:
			err = c.api.Delete(t.Context(), step.path, &answer)
		}
		if upid, ok := answer.(string); err == nil && ok && strings.HasPrefix(upid, "UPID:") {
			err = pve.NewTask(pve.UPID(upid), c.api).Wait(t.Context(), c.config.PollInterval, c.config.PollInterval*1000)
		}
		if err != nil {
			return step.method + " " + step.path, err
		}
	}
	return "", nil
}

func TestTheLeastPrivilegesAreEnoughForAMachinesLife(t *testing.T) {
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			r := newRig(t, func(o *pvesim.Options) { o.Release, o.Booter = release, idleGuest{} })
			r.bootable()
			template := r.make(r.spec())
			h := r.account(accountSpec())
			if failed, err := machine(t, r.as(accountSpec(), h.Secret), template.VMID, ""); err != nil {
				t.Errorf("%s: %v", failed, err)
			}
			if vms := r.sim.Summary().VMs; len(vms) != 1 {
				t.Errorf("the VMs are %+v, want the template alone", vms)
			}
		})
	}
}

// covered are privileges whose calls another one of the role allows as well:
// the agent's, either of which does for get-osinfo (exec, which machines with
// cloud-init need, takes Unrestricted), and Datastore.Audit, which the wider
// privileges on storages include for what is called here.
var covered = []string{"VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted", "Datastore.Audit"}

// Each other privilege is needed: without it some call of a machine's life fails.
func TestNoneOfTheLeastPrivilegesCanBeLeftOut(t *testing.T) {
	version := Version{Major: 9, Minor: 2}
	for _, privilege := range allLeastPrivileges(version) {
		if slices.Contains(covered, privilege) {
			continue
		}
		t.Run(privilege, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *pvesim.Options) { o.Booter = idleGuest{} })
			r.bootable()
			template := r.make(r.spec())
			h := r.account(accountSpec())
			var rest []string
			for _, p := range allLeastPrivileges(version) {
				if p != privilege {
					rest = append(rest, p)
				}
			}
			r.raw(http.MethodPut, "/access/roles/CAPI-capi-pve", map[string]any{"privs": strings.Join(rest, ",")})
			if _, err := machine(t, r.as(accountSpec(), h.Secret), template.VMID, ""); err == nil {
				t.Errorf("a machine lives and dies without %s", privilege)
			}
		})
	}
}
