// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// machines makes plain VMs on the nodes and answers references to them.
func (r *rig) machines(nodes ...string) []VMRef {
	r.t.Helper()
	var refs []VMRef
	for i, node := range nodes {
		id := 200 + i
		r.raw(http.MethodPost, "/nodes/"+node+"/qemu", map[string]any{"vmid": id, "scsi0": "local-lvm:1"})
		config, err := r.client().readConfig(r.t.Context(), node, id)
		if err != nil {
			r.t.Fatal(err)
		}
		refs = append(refs, VMRef{Node: node, ID: id, UUID: property(config.text("smbios1"))["uuid"]})
	}
	return refs
}

func TestExactlyTheNamedVMsAreDestroyed(t *testing.T) {
	r := newRig(t, func(o *pvesim.Options) {
		o.Nodes = []pvesim.Node{{Name: "pve1"}, {Name: "pve2"}}
		o.Timing.Stop, o.Timing.Delete, o.Timing.Start = 10*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	})
	refs := r.machines("pve1", "pve2", "pve1", "pve1")
	r.raw(http.MethodPost, vmPath("pve1", 200, "status/start"), nil)
	ours := []VMRef{
		refs[0], // running
		{Node: "pve1", ID: refs[1].ID, UUID: strings.ToUpper(refs[1].UUID)}, // migrated since, and the UUID in capitals
		{Node: "pve1", ID: refs[2].ID, UUID: uuid.NewString()},              // its id belongs to another VM by now
		{Node: "pve1", ID: 999, UUID: uuid.NewString()},                     // gone
	}
	found, err := r.client().FindVMs(t.Context(), ours)
	if err != nil || len(found) != 2 || found[1].Node != "pve2" {
		t.Fatalf("found %v, %v", found, err)
	}
	if err := r.client().DestroyVMs(t.Context(), ours, nil); err != nil {
		t.Fatal(err)
	}
	var left []int
	for _, vm := range r.sim.Summary().VMs {
		left = append(left, vm.ID)
	}
	if fmt.Sprint(left) != "[202 203]" {
		t.Errorf("left are %v, want [202 203]", left)
	}
	if err := r.client().DestroyVMs(t.Context(), ours, nil); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestAVMWithoutUUIDIsNotTouched(t *testing.T) {
	r := newRig(t)
	refs := r.machines("pve1")
	refs[0].UUID = ""
	if err := r.client().DestroyVMs(t.Context(), refs, nil); err == nil || !strings.Contains(err.Error(), "without its UUID") {
		t.Errorf("error is %v", err)
	}
	if vms := r.sim.Summary().VMs; len(vms) != 1 {
		t.Errorf("VMs are %+v", vms)
	}
}

func TestTheOtherVMsGoWhereOneIsProtected(t *testing.T) {
	r := newRig(t)
	refs := r.machines("pve1", "pve1")
	r.raw(http.MethodPut, vmPath("pve1", 200, "config"), map[string]any{"protection": 1})
	err := r.client().DestroyVMs(t.Context(), refs, nil)
	if err == nil || !strings.Contains(err.Error(), "qm set 200 --protection 0") {
		t.Errorf("error is %v", err)
	}
	if vms := r.sim.Summary().VMs; len(vms) != 1 || vms[0].ID != 200 {
		t.Errorf("VMs are %+v, want the protected one alone", vms)
	}
}

func TestUnansweredMeansUnknown(t *testing.T) {
	r := newRig(t)
	refs := r.machines("pve1")
	r.sim.SetNodeOffline("pve1", true)
	if found, err := r.client().FindVMs(t.Context(), refs); err == nil {
		t.Errorf("found %v without an error", found)
	}
}

func TestStrayClonesAreStoppedVMsOfAMachinesName(t *testing.T) {
	r := newRig(t, func(o *pvesim.Options) { o.Nodes = []pvesim.Node{{Name: "pve1"}, {Name: "pve2"}} })
	refs := r.machines("pve1", "pve2", "pve1", "pve2", "pve1")
	names := []string{"kmgt-cp-x7k2p", "kmgt-cp-x7k2p", "kmgt-cp-x7k2p", "kmgt-cp-other", "kmgt-cp-x7k2p"}
	for i, ref := range refs {
		r.raw(http.MethodPut, vmPath(ref.Node, ref.ID, "config"), map[string]any{"name": names[i]})
	}
	r.raw(http.MethodPost, vmPath("pve1", refs[0].ID, "status/start"), nil) // the machine
	r.raw(http.MethodPost, vmPath("pve1", refs[2].ID, "status/start"), nil) // somebody's, since it runs
	r.raw(http.MethodPost, vmPath("pve1", refs[4].ID, "template"), nil)     // a template
	strays, err := r.client().StrayClones(t.Context(), refs[:1])
	if err != nil || len(strays) != 1 || strays[0] != refs[1] {
		t.Errorf("strays %v, %v, want %v alone", strays, err, refs[1])
	}
	for what, given := range map[string][]VMRef{
		"no machine is given":         nil,
		"the machine's id is another": {{Node: "pve1", ID: refs[0].ID, UUID: uuid.NewString()}},
	} {
		if strays, err := r.client().StrayClones(t.Context(), given); err != nil || len(strays) > 0 {
			t.Errorf("where %s: strays %v, %v", what, strays, err)
		}
	}
}
