// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/luthermonson/go-proxmox"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// minimalRole is what the Cluster API provider for Proxmox VE needs of a role
// on "/" with its checks of the agent switched on.
const minimalRole = "VM.Allocate,VM.Audit,VM.Clone,VM.Config.CDROM,VM.Config.CPU,VM.Config.Disk,VM.Config.Memory,VM.Config.Network,VM.Config.Options," +
	"VM.PowerMgmt,Sys.Audit,Datastore.Audit,Datastore.AllocateSpace,Datastore.AllocateTemplate,Datastore.Allocate,SDN.Use,VM.GuestAgent.Audit,VM.GuestAgent.Unrestricted"

// macOf is CAPMOX's own way to find a device's address: address and bridge must
// be neighbours.
var macOf = regexp.MustCompile(`([a-zA-Z0-9]+)=([a-zA-Z0-9:]{17}),bridge`)

// TestACAPMOXMachineFromCloneToDeletion makes the calls that CAPMOX v0.9.0 makes
// for one machine, in its order and through its library, with the least rights.
func TestACAPMOXMachineFromCloneToDeletion(t *testing.T) {
	booted := &guests{}
	l := start(t, pvesim.Options{Booter: booted, Timing: pvesim.RealTiming().Scale(0.01)})
	_, image := talosFactory(t)
	l.template(image)
	l.ok("POST", "/access/roles", form("roleid", "Capi", "privs", minimalRole), nil)
	capmox := l.account("capi@pve", "/", "Capi")
	c, ctx := capmox.client(), t.Context()

	if v, err := c.Version(ctx); err != nil || v.Release != "9.2" {
		t.Fatalf("version %+v: %v", v, err)
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if free, err := cluster.CheckID(ctx, 9000); err != nil || free {
		t.Fatalf("id 9000 is free: %v, %v", free, err)
	}
	node, err := c.Node(ctx, "pve1")
	if err != nil || node.Memory.Total == 0 {
		t.Fatalf("node %+v: %v", node, err)
	}
	if _, err := node.Containers(ctx); err != nil {
		t.Fatal(err)
	}
	template, err := node.VirtualMachine(ctx, 9000)
	if err != nil || !bool(template.Template) {
		t.Fatalf("template %+v: %v", template, err)
	}

	id, task, err := template.Clone(ctx, &proxmox.VirtualMachineCloneOptions{Name: "kmgtcp-x1", Full: true})
	if err != nil {
		t.Fatal(err)
	}
	// While it is cloned it is there, locked, and cannot be changed.
	r := capmox.send("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/config", id), form("cores", "2"))
	if r.status != 500 || r.reason != "VM is locked (clone)" {
		t.Fatalf("a change during the clone: %d %s", r.status, r.reason)
	}
	waitTask(t, task)

	vm, err := node.VirtualMachine(ctx, id)
	if err != nil || vm.Name != "kmgtcp-x1" || vm.VirtualMachineConfig.SMBios1 == "" {
		t.Fatalf("clone %+v: %v", vm, err)
	}
	task, err = vm.Config(ctx,
		proxmox.VirtualMachineOption{Name: "sockets", Value: 1}, proxmox.VirtualMachineOption{Name: "cores", Value: 4},
		proxmox.VirtualMachineOption{Name: "memory", Value: 8192}, proxmox.VirtualMachineOption{Name: "net0", Value: "virtio,bridge=vmbr0"},
		proxmox.VirtualMachineOption{Name: "description", Value: "a node"})
	if err != nil {
		t.Fatal(err)
	}
	waitTask(t, task)
	task, err = vm.ResizeDisk(ctx, "scsi0", "20G")
	if err != nil {
		t.Fatal(err)
	}
	waitTask(t, task)
	if vm, err = node.VirtualMachine(ctx, id); err != nil {
		t.Fatal(err)
	}
	cfg := vm.VirtualMachineConfig
	if cfg.Cores == nil || *cfg.Cores != 4 || !macOf.MatchString(cfg.Nets["net0"]) || !strings.Contains(cfg.SCSIs["scsi0"], "size=20G") {
		t.Errorf("configuration: net0 %q, scsi0 %q", cfg.Nets["net0"], cfg.SCSIs["scsi0"])
	}

	if err := vm.CloudInit(ctx, "ide0", "#cloud-config\n", "instance-id: i\n", "", "version: 2\n"); err != nil {
		t.Fatal(err)
	}
	if vm, err = node.VirtualMachine(ctx, id); err != nil {
		t.Fatal(err)
	}
	if got := vm.VirtualMachineConfig.Boot; got != "order=scsi0;ide0" {
		t.Errorf("boot %q", got)
	}
	if got := vm.VirtualMachineConfig.Tags; got != "go-proxmox+cloud-init;talos;v1.13.7" {
		t.Errorf("tags %q", got)
	}
	task, err = vm.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	waitTask(t, task)
	all := booted.all()
	if len(all) != 1 || !bytes.Contains(all[0].iso, []byte("instance-id: i")) || !strings.HasSuffix(all[0].vm.TemplateImage, "/v1.13.7/nocloud-amd64") {
		t.Fatalf("%d guests, the first %+v", len(all), all)
	}
	if err := vm.WaitForAgent(ctx, 5); err != nil {
		t.Fatal(err)
	}

	if err := vm.UnmountCloudInitISO(ctx, "ide0"); err != nil {
		t.Fatal(err)
	}
	for _, f := range l.Summary().Files {
		if strings.HasSuffix(f, ".iso") {
			t.Errorf("%s is still there", f)
		}
	}

	// CAPMOX stops and deletes at once: the first deletion fails.
	if vm, err = node.VirtualMachine(ctx, id); err != nil {
		t.Fatal(err)
	}
	held := make(chan struct{}) // until the deletion has been tried
	release := sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	all[0].held = held
	stop, err := vm.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := vm.Delete(ctx, nil); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("VM %d is running - destroy failed", id)) {
		t.Fatalf("deleting a machine that is being stopped: %v", err)
	}
	release()
	waitTask(t, stop)
	if task, err = vm.Delete(ctx, nil); err != nil {
		t.Fatal(err)
	}
	waitTask(t, task)
	if !all[0].dead() || len(booted.gone) != 1 || booted.gone[0] != all[0].vm.Disk {
		t.Errorf("guest dead: %v, disks destroyed: %v", all[0].dead(), booted.gone)
	}
	if _, err := node.VirtualMachine(ctx, id); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("the deleted machine: %v", err)
	}
	if free, err := cluster.CheckID(ctx, id); err != nil || !free {
		t.Errorf("id %d is free: %v, %v", id, free, err)
	}
}

func waitTask(t *testing.T, task *proxmox.Task) {
	t.Helper()
	if err := task.Wait(t.Context(), 5*time.Millisecond, 20*time.Second); err != nil {
		t.Fatal(err)
	}
}
