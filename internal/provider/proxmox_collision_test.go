// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// flat is what the CLI printed, without frames and line ends.
func flat(out string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(out, "│", " ")), " ")
}

// Two people apply the same configuration at the same moment, each with a state
// of its own.
func TestTwoAppliesAtOnceFromTwoStates(t *testing.T) {
	t.Setenv(leaseVariable, "10s")
	lab := newProxmoxLab(t, func(o *pvesim.Options) { o.Timing = pvesim.RealTiming().Scale(0.1) })
	both := lab.provider() + lab.template("v1.13.7", "disk_size = 10") + account()
	workspaces := []*workspace{newWorkspace(t, both), newWorkspace(t, both)}
	said, failed := make([]string, 2), make([]error, 2)
	var running sync.WaitGroup
	for i, w := range workspaces {
		running.Add(1)
		go func() {
			defer running.Done()
			said[i], failed[i] = w.run("apply", "-auto-approve", "-input=false", "-no-color")
		}()
	}
	running.Wait()
	for i, out := range said {
		// What a loser is told; a template of its own it gets with the next apply.
		told := strings.Contains(flat(out), "nother run is making the") || strings.Contains(flat(out), "already exists") ||
			strings.Contains(flat(out), "belongs to another resource of this provider")
		if failed[i] != nil && !told {
			t.Errorf("workspace %d fails without an explanation:\n%s", i, out)
		}
	}
	s := lab.sim.Summary()
	if !slices.Equal(s.Users, []string{"capi@pve"}) || len(s.Tokens) != 2 || len(s.VMs) == 0 || len(s.VMs) > 2 {
		t.Errorf("there is %+v", s)
	}
	for i, w := range workspaces {
		if out, err := w.run("destroy", "-auto-approve", "-input=false", "-no-color"); err != nil {
			t.Errorf("the destroy of workspace %d: %v\n%s", i, err, out)
		}
	}
	if err := lab.empty(); err != nil {
		t.Error(err)
	}
}

// A create takes over what it has to take for unfinished: nothing on Proxmox VE
// tells it from what is in a state that was never refreshed. The first state says
// so from then on, and keeps its hands off.
func TestAStateWhoseObjectsWereTakenOverSaysSo(t *testing.T) {
	lab := newProxmoxLab(t)
	both := lab.provider() + lab.template("v1.13.7") + account()
	first, second := newWorkspace(t, both), newWorkspace(t, both)
	first.must("apply", "-auto-approve", "-input=false")
	second.must("apply", "-auto-approve", "-input=false")
	out := flat(first.must("plan", "-input=false", "-no-color"))
	for _, want := range []string{"VM pve1/100 bears the mark of another resource", "user capi@pve bears the mark of another resource", "terraform state rm"} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan of the first has no %q:\n%s", want, out)
		}
	}
	first.must("destroy", "-auto-approve", "-input=false")
	if s := lab.sim.Summary(); len(s.VMs) != 1 || !slices.Equal(s.Users, []string{"capi@pve"}) {
		t.Errorf("the first destroy left %+v", s)
	}
	if out := second.must("plan", "-detailed-exitcode", "-input=false", "-no-color"); strings.Contains(out, "mark of another") {
		t.Errorf("the plan of the second says:\n%s", out)
	}
	second.must("destroy", "-auto-approve", "-input=false")
	if err := lab.empty(); err != nil {
		t.Error(err)
	}
}

// Somebody deletes by hand what a plan that is applied later is about.
func TestWhatIsDeletedBetweenPlanAndApply(t *testing.T) {
	lab := newProxmoxLab(t)
	w := newWorkspace(t, lab.provider()+lab.template("v1.13.7")+account())
	w.must("apply", "-auto-approve", "-input=false")
	remove := func() {
		lab.raw(http.MethodDelete, "/nodes/pve1/qemu/100", nil)
		lab.raw(http.MethodDelete, "/access/users/capi@pve", nil)
	}

	// A change of what is gone is an error; the next apply makes it again.
	w.configure(lab.provider() + lab.template("v1.13.7", "cores = 8") + account(`comment = "changed"`))
	w.must("plan", "-out=change", "-input=false")
	remove()
	out, err := w.run("apply", "-input=false", "-no-color", "change")
	if err == nil || !strings.Contains(flat(out), "Unable to update the template talos-v1.13.7-ce4c9805 on node pve1") || !strings.Contains(flat(out), "template 100 on node pve1") {
		t.Errorf("the apply says: %v\n%s", err, out)
	}
	w.must("apply", "-auto-approve", "-input=false")
	if s := lab.sim.Summary(); len(s.VMs) != 1 || !s.VMs[0].Template || !slices.Equal(s.Users, []string{"capi@pve"}) || len(s.Tokens) != 2 {
		t.Errorf("there is %+v", s)
	}
	if out, err := w.run("plan", "-detailed-exitcode", "-input=false"); err != nil {
		t.Errorf("the plan after it is not empty: %v\n%s", err, out)
	}

	// A destroy of what is gone has nothing to do, even where the id is somebody
	// else's by now.
	w.must("plan", "-destroy", "-out=destroy", "-input=false")
	remove()
	lab.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": 100, "name": "somebody"})
	lab.raw(http.MethodPost, "/access/users", map[string]any{"userid": "capi@pve", "comment": "somebody"})
	w.must("apply", "-input=false", "destroy")
	if s := lab.sim.Summary(); len(s.VMs) != 1 || s.VMs[0].Name != "somebody" || !slices.Equal(s.Users, []string{"capi@pve"}) {
		t.Errorf("there is %+v", s)
	}
}

// The provider is killed at each write of a destroy; the next destroy removes the
// rest, with the image file and the roles.
func TestADestroyWhoseProviderIsKilledIsFinished(t *testing.T) {
	configuration := func(lab *proxmoxLab) string {
		return lab.provider() + lab.template("v1.13.7", "keep_image = true") + account(`confine_to = { disk_storages = ["local-lvm"] }`, "depends_on = [capi_proxmox_template.talos]")
	}
	begin := func(t *testing.T) (*proxmoxLab, *workspace) {
		lab := newProxmoxLab(t)
		w := newWorkspace(t, configuration(lab))
		w.must("apply", "-auto-approve", "-input=false")
		w.must("plan", "-input=false") // whose refresh makes the marks final
		return lab, w
	}
	lab, w := begin(t)
	lab.strike(0, nil)
	w.must("destroy", "-auto-approve", "-input=false")
	writes := lab.strike(0, nil)
	if writes < 10 {
		t.Fatalf("an undisturbed destroy writes only %d times", writes)
	}
	// In the middle of the roles, after the user, after the image file.
	for _, at := range []int{2, writes - 2, writes - 1} {
		t.Run(fmt.Sprintf("write %d of %d", at, writes), func(t *testing.T) {
			lab, w := begin(t)
			lab.strike(at, w.kill)
			if out, err := w.run("destroy", "-auto-approve", "-input=false"); err == nil {
				t.Fatalf("the destroy whose provider was killed succeeds:\n%s", out)
			}
			lab.strike(0, nil)
			w.must("destroy", "-auto-approve", "-input=false")
			if err := lab.empty(); err != nil {
				t.Error(err)
			}
		})
	}
}
