// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

func onZFS(o *pvesim.Options) {
	o.Storages = append(pvesim.DefaultStorages(), pvesim.Storage{ID: "zfs", Type: "zfspool", Content: []string{"images"}})
}

// generation makes the nth template of a family.
func (r *rig) generation(n int, change ...func(*TemplateSpec)) Template {
	r.t.Helper()
	spec := r.spec()
	spec.Name, spec.Identity, spec.Family = fmt.Sprintf("talos-%d", n), fmt.Sprintf("test/%d", n), "talos"
	for _, c := range change {
		c(&spec)
	}
	made := r.make(spec)
	if err := r.client().KeepTemplate(r.t.Context(), made); err != nil {
		r.t.Fatal(err)
	}
	kept, err := r.client().ReadTemplate(r.t.Context(), made.Node, made.VMID, made.UUID)
	if err != nil {
		r.t.Fatal(err)
	}
	return kept
}

// names are those of the VMs that there are.
func (r *rig) names() []string {
	var out []string
	for _, vm := range r.sim.Summary().VMs {
		out = append(out, vm.Name)
	}
	slices.Sort(out)
	return out
}

func (r *rig) retire(t Template, keep int) []string {
	r.t.Helper()
	left, err := r.client().RetireTemplate(r.t.Context(), t, keep, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return left
}

func TestTheLastFewOfAFamilyStay(t *testing.T) {
	r := newRig(t)
	stranger := r.make(r.spec()) // of no family
	var last Template
	for n := range 5 {
		made := r.generation(n)
		if n > 0 {
			if successor, err := r.client().HasSuccessor(t.Context(), last); err != nil || !successor {
				t.Errorf("generation %d has a successor: %v, %v", n-1, successor, err)
			}
			if left := r.retire(last, 2); len(left) > 0 {
				t.Errorf("generation %d: %q", n, left)
			}
		}
		last = made
	}
	if got, want := r.names(), []string{stranger.Name, "talos-2", "talos-3", "talos-4"}; !slices.Equal(got, want) {
		t.Fatalf("there is %v, want %v", got, want)
	}
	if successor, err := r.client().HasSuccessor(t.Context(), last); err != nil || successor {
		t.Errorf("the last has a successor: %v, %v", successor, err)
	}
	t.Run("without tags, which a selector could match", func(t *testing.T) {
		for _, vm := range r.sim.Summary().VMs {
			read, err := r.client().ReadTemplate(t.Context(), "pve1", vm.ID, "")
			if err != nil {
				t.Fatal(err)
			}
			retired := vm.Name == "talos-2" || vm.Name == "talos-3"
			if retired != (len(read.Tags) == 0) || !read.Finished {
				t.Errorf("%s has the tags %v, finished %v", vm.Name, read.Tags, read.Finished)
			}
		}
	})
	t.Run("and are taken up by no other create", func(t *testing.T) {
		again := r.generation(3)
		if len(r.names()) != 5 || again.Name != "talos-3" {
			t.Errorf("there is %v", r.names())
		}
	})
	t.Run("until all of them are to go", func(t *testing.T) {
		if _, err := r.client().PruneTemplates(t.Context(), "pve1", "talos", 0, nil); err != nil {
			t.Fatal(err)
		}
		if got, want := r.names(), []string{stranger.Name, "talos-3", "talos-4"}; !slices.Equal(got, want) {
			t.Errorf("there is %v, want %v", got, want)
		}
	})
}

func TestWhatIsInUseOrProtectedOutlivesItsTime(t *testing.T) {
	r := newRig(t, onZFS)
	used := r.generation(0, func(s *TemplateSpec) { s.Storage = "zfs" })
	r.raw(http.MethodPost, vmPath("pve1", used.VMID, "clone"), map[string]any{"newid": 300, "name": "clone"})
	r.retire(used, 1)
	protected := r.generation(1, func(s *TemplateSpec) { s.Protection = true })
	left := r.retire(protected, 0)
	text := strings.Join(left, "\n")
	if len(left) != 2 || !strings.Contains(text, "in use by linked clones: VM 300") || !strings.Contains(text, "is protected") {
		t.Errorf("what stays is told as %q", left)
	}
	if got := r.names(); len(got) != 3 {
		t.Errorf("there is %v", got)
	}
	// Once nothing holds them any more, the next time takes them.
	r.raw(http.MethodDelete, vmPath("pve1", 300, ""), nil)
	r.raw(http.MethodPut, vmPath("pve1", protected.VMID, "config"), map[string]any{"protection": 0})
	if left, err := r.client().PruneTemplates(t.Context(), "pve1", "talos", 0, nil); err != nil || len(left) > 0 {
		t.Errorf("%q, %v", left, err)
	}
	if got := r.names(); len(got) != 0 {
		t.Errorf("there is %v", got)
	}
}

func TestRetiringWhoseAnswerGetsLostIsDone(t *testing.T) {
	for _, cut := range []pvesim.Cut{pvesim.CutBefore, pvesim.CutAfter} {
		r := newRig(t)
		made := r.generation(0)
		r.sim.Inject(pvesim.Fault{Method: "PUT", Path: configCall, Cut: cut})
		r.retire(made, 1)
		if got := r.names(); len(got) != 1 || r.sim.ClearFaults() != 1 {
			t.Errorf("there is %v", got)
		}
		if left, err := r.client().PruneTemplates(t.Context(), "pve1", "talos", 0, nil); err != nil || len(left) > 0 || len(r.names()) > 0 {
			t.Errorf("it did not retire: %v, %v", left, err)
		}
	}
}

func TestAProtectedTemplateIsNotDeleted(t *testing.T) {
	r := newRig(t)
	made := r.generation(0, func(s *TemplateSpec) { s.Protection = true })
	if err := r.client().DeleteTemplate(t.Context(), made, nil); err == nil || !strings.Contains(err.Error(), "protection = false") {
		t.Errorf("error is %v", err)
	}
}

func TestIDsComeFromTheRange(t *testing.T) {
	r := newRig(t)
	r.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": 9000})
	ranged := func(n int) TemplateSpec {
		spec := r.spec()
		spec.Name, spec.VMID, spec.LastVMID = fmt.Sprintf("t%d", n), 9000, 9002
		return spec
	}
	for n, want := range []int{9001, 9002} {
		if made := r.make(ranged(n)); made.VMID != want {
			t.Errorf("the template is %d, want %d", made.VMID, want)
		}
	}
	_, err := r.client().EnsureTemplate(t.Context(), ranged(3), uuid.NewString(), nil, func(Template) {})
	if err == nil || !strings.Contains(err.Error(), "all ids from 9000 to 9002 are taken") {
		t.Errorf("error is %v", err)
	}
	if left := r.imports(); len(left) > 0 {
		t.Errorf("image files are left: %v", left)
	}
}

func TestAnIDOfTheRangeThatSomebodyTakesMeanwhileIsReplacedByTheNext(t *testing.T) {
	r := newRig(t)
	taken := false
	r.faults.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/qemu") && !taken {
			taken = true
			r.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": 9000})
		}
		return false
	}
	spec := r.spec()
	spec.VMID, spec.LastVMID = 9000, 9009
	if made := r.make(spec); made.VMID != 9001 {
		t.Errorf("the template is %d, want 9001", made.VMID)
	}
}

// An interrupted run had other settings, which are no part of the content.
func TestAnUnfinishedTemplateIsFinishedWithTheNewSettings(t *testing.T) {
	r := newRig(t)
	r.raw(http.MethodPost, "/pools", map[string]any{"poolid": "templates"})
	r.sim.Inject(pvesim.Fault{Method: "POST", Path: templateCall, Task: "it breaks"})
	if _, err := r.client().EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {}); err == nil {
		t.Fatal("no error")
	}
	spec := r.spec()
	spec.Cores, spec.Tags, spec.Pool = 7, []string{"z"}, "templates"
	made := r.make(spec)
	r.exactlyOne(made, made.Instance)
	read, err := r.client().ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID)
	if err != nil || !read.Same(spec.TemplateSettings) {
		t.Errorf("it has the settings %+v, %v", read.TemplateSettings, err)
	}
}

func TestNotesThatLostTheMarkGetItBack(t *testing.T) {
	r := newRig(t)
	made := r.generation(0)
	r.raw(http.MethodPut, vmPath("pve1", made.VMID, "config"), map[string]any{"description": "somebody's own words"})
	bare, err := r.client().ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID)
	if err != nil || bare.Instance != "" {
		t.Fatalf("the mark is still there: %+v, %v", bare, err)
	}
	spec := TemplateSpec{Labels: made.Labels, Family: "talos", TemplateSettings: made.TemplateSettings}
	if _, err := r.client().UpdateTemplate(t.Context(), bare, spec); err != nil {
		t.Fatal(err)
	}
	if config, err := r.client().readConfig(t.Context(), "pve1", made.VMID); err != nil || config.text("description") != made.Description {
		t.Errorf("without an owner the notes become %q, %v", config.text("description"), err)
	}
	spec.Instance = made.Instance
	bare, err = r.client().ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID)
	if err != nil {
		t.Fatal(err)
	}
	marked, err := r.client().UpdateTemplate(t.Context(), bare, spec)
	if err != nil || marked.Instance != made.Instance || !marked.Kept() || marked.Family() != "talos" || marked.Labels["talos"] != "v1.13.7" || !marked.Same(made.TemplateSettings) {
		t.Errorf("the template is %+v, %v", marked, err)
	}
}

func TestHardwareIsMadeAsAskedForAndReadBack(t *testing.T) {
	r := newRig(t)
	for name, hardware := range map[string]TemplateHardware{
		"plain":       {DiskGiB: 4, BIOS: "seabios"},
		"firmware":    {DiskGiB: 2, BIOS: "ovmf", PreEnrolledKeys: true, TPM: true},
		"disk":        {DiskGiB: 2, BIOS: "ovmf", Disk: DiskOptions{Discard: true, SSD: true, IOThread: true, Cache: "writeback"}},
		"cloud-init":  {DiskGiB: 2, BIOS: "ovmf", CloudInitStorage: "local-lvm"},
		"as it comes": {DiskGiB: 0, BIOS: "ovmf"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := r.spec()
			spec.Name, spec.TemplateHardware, spec.SCSIController = strings.ReplaceAll(name, " ", "-"), hardware, "virtio-scsi-single"
			made := r.make(spec)
			want := hardware
			if want.DiskGiB == 0 {
				want.DiskGiB = 2
			}
			if made.TemplateHardware != want {
				t.Errorf("made %+v, want %+v", made.TemplateHardware, want)
			}
			if err := r.client().DeleteTemplate(t.Context(), made, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAPoolGivesThePrivilegesOfItsMembers(t *testing.T) {
	r := newRig(t)
	r.raw(http.MethodPost, "/pools", map[string]any{"poolid": "templates"})
	client := r.limited("VM.Allocate", "VM.Config.CPU", "VM.Audit")
	r.raw(http.MethodPost, "/access/roles", map[string]any{"roleid": "InPool", "privs": "VM.Allocate,VM.Audit,VM.Config.CPU,VM.Config.Disk,VM.Config.HWType,VM.Config.Memory,VM.Config.Network,VM.Config.Options,Pool.Audit"})
	r.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/pool/templates", "roles": "InPool", "users": "builder@pve", "propagate": 1})
	spec := r.spec()
	spec.Pool = "templates"
	made, err := client.EnsureTemplate(t.Context(), spec, uuid.NewString(), nil, func(Template) {})
	if err != nil {
		t.Fatal(err)
	}
	r.exactlyOne(made, made.Instance)
}

func TestOnlyLocalStorageKeepsTheOthersOut(t *testing.T) {
	r := newRig(t, func(o *pvesim.Options) {
		o.Nodes = []pvesim.Node{{Name: "pve1"}, {Name: "pve2"}, {Name: "pve3"}}
		o.Storages = append(pvesim.DefaultStorages(), pvesim.Storage{ID: "ceph", Type: "rbd", Content: []string{"images"}})
	})
	for storage, want := range map[string][]string{"local-lvm": {"pve2", "pve3"}, "ceph": nil, "nope": nil} {
		got, err := r.client().NodesThatCannotClone(t.Context(), "pve1", storage)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", storage, got, err, want)
		}
	}
}
