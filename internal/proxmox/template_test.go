// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

func TestATemplateIsMadeAsItWasAskedFor(t *testing.T) {
	r := newRig(t)
	instance := uuid.NewString()
	var begun []int
	made, err := r.client().EnsureTemplate(t.Context(), r.spec(), instance, nil, func(t Template) { begun = append(begun, t.VMID) })
	if err != nil {
		t.Fatal(err)
	}
	if !made.Finished || made.Instance != instance || made.VMID < 100 || made.UUID == "" || made.DiskGiB != 10 || made.Labels["talos"] != "v1.13.7" {
		t.Errorf("the answer is %+v", made)
	}
	if len(begun) != 2 || begun[0] != 0 || begun[1] != made.VMID {
		t.Errorf("begun was told the ids %v, want 0 before the image and %d after the VM", begun, made.VMID)
	}
	read, err := r.client().ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID)
	if err != nil {
		t.Fatal(err)
	}
	want := r.spec().TemplateSettings
	want.Tags = []string{"a", "b"}
	if fmt.Sprint(read.TemplateSettings) != fmt.Sprint(want) || read.Storage != "local-lvm" || read.BIOS != "ovmf" {
		t.Errorf("read back %+v on %s with %s, want %+v", read.TemplateSettings, read.Storage, read.BIOS, want)
	}
	for device, volume := range read.volumes {
		if !strings.Contains(volume, "base-") {
			t.Errorf("%s is %s, no base volume", device, volume)
		}
	}
	if left := r.imports(); len(left) > 0 {
		t.Errorf("image files are left: %v", left)
	}
}

func TestTemplatesAreMadeOnEveryKindOfStorage(t *testing.T) {
	for _, kind := range []string{"dir", "nfs", "btrfs", "lvm", "lvmthin", "zfspool", "rbd"} {
		for _, bios := range []string{"ovmf", "seabios"} {
			t.Run(kind+" "+bios, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(o *pvesim.Options) {
					o.Storages = append(pvesim.DefaultStorages(), pvesim.Storage{ID: "target", Type: kind, Content: []string{"images"}})
				})
				spec := r.spec()
				spec.Storage, spec.BIOS = "target", bios
				if bios == "seabios" {
					spec.Machine = ""
				}
				made := r.make(spec)
				r.exactlyOne(made, made.Instance)
				if made.Storage != "target" || made.BIOS != bios {
					t.Errorf("the template is on %s with %s", made.Storage, made.BIOS)
				}
				if err := r.client().DeleteTemplate(t.Context(), made, nil); err != nil {
					t.Fatal(err)
				}
				if s := r.sim.Summary(); len(s.VMs)+len(s.Files) > 0 {
					t.Errorf("the deletion left %+v", s)
				}
			})
		}
	}
}

func TestTheImageFileStaysWhereItIsAskedFor(t *testing.T) {
	r := newRig(t)
	spec := r.spec()
	spec.KeepImage = true
	made := r.make(spec)
	if got := r.imports(); len(got) != 1 {
		t.Fatalf("image files: %v, want one", got)
	}
	if err := r.client().DeleteTemplate(t.Context(), made, nil); err != nil {
		t.Fatal(err)
	}
	if summary := r.sim.Summary(); len(summary.VMs)+len(summary.Files) > 0 {
		t.Errorf("after the deletion there is still %+v", summary)
	}
}

// slow gives each task some time, so that a run can be killed during one.
func slow(o *pvesim.Options) {
	const d = 12 * time.Millisecond
	o.Timing = pvesim.Timing{Create: d, Config: d, Resize: d, Template: d, Delete: d, Download: d, Upload: d, DeleteVolume: d}
}

// way is a way on which an image comes, for tests that interrupt it.
type way struct {
	options func(*pvesim.Options)
	client  func(*rig) *Client
	spec    func(*rig) TemplateSpec
}

var ways = map[string]way{
	TransferDownload: {slow, func(r *rig) *Client { return r.client() }, (*rig).spec},
	TransferUpload: {slow, func(r *rig) *Client { return r.client() }, func(r *rig) TemplateSpec {
		spec := r.spec()
		spec.Upload = true
		return spec
	}},
	TransferDownloadISO: {func(o *pvesim.Options) { o.Release = "8.1"; isoOnly(o); slow(o) }, (*rig).root, (*rig).spec},
}

// rig is a rig for the way, and ensure one run on it.
func (w way) rig(t *testing.T) *rig { return newRig(t, w.options) }

func (w way) ensure(ctx context.Context, r *rig, instance string) (Template, error) {
	return w.client(r).EnsureTemplate(ctx, w.spec(r), instance, nil, func(Template) {})
}

// writes are the writing calls of an undisturbed run.
func (w way) writes(t *testing.T) []string {
	t.Helper()
	r := w.rig(t)
	r.faults.strike(0, false, nil)
	if _, err := w.ensure(t.Context(), r, uuid.NewString()); err != nil {
		t.Fatal(err)
	}
	calls := r.faults.calls()
	if len(calls) < 6 {
		t.Fatalf("an undisturbed run writes only %v", calls)
	}
	return calls
}

// atEveryWrite runs a test for each writing call of each way, to be struck
// before or after it is carried out.
func atEveryWrite(t *testing.T, test func(t *testing.T, w way, n int, after bool)) {
	t.Helper()
	for name, w := range ways {
		for i, call := range w.writes(t) {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %d %s after=%v", name, i+1, call, after), func(t *testing.T) {
					t.Parallel()
					test(t, w, i+1, after)
				})
			}
		}
	}
}

func TestARunThatIsKilledAtAnyWriteIsFinishedByTheNextOne(t *testing.T) {
	atEveryWrite(t, func(t *testing.T, w way, n int, after bool) {
		r := w.rig(t)
		ctx, kill := context.WithCancel(t.Context())
		defer kill()
		r.faults.strike(n, after, kill)
		if _, err := w.ensure(ctx, r, uuid.NewString()); err == nil {
			t.Fatal("the killed run reports success")
		}
		r.faults.strike(0, false, nil)
		instance := uuid.NewString()
		made, err := w.ensure(t.Context(), r, instance)
		if err != nil {
			t.Fatal(err)
		}
		r.exactlyOne(made, instance)
	})
}

func TestARunWhoseAnswerGetsLostGoesOnByItself(t *testing.T) {
	atEveryWrite(t, func(t *testing.T, w way, n int, after bool) {
		r := w.rig(t)
		r.faults.strike(n, after, nil)
		instance := uuid.NewString()
		made, err := w.ensure(t.Context(), r, instance)
		if err != nil {
			t.Fatal(err)
		}
		r.exactlyOne(made, instance)
	})
}

// exactlyOne fails the test unless the template is all there is.
func (r *rig) exactlyOne(made Template, instance string) {
	r.t.Helper()
	summary := r.sim.Summary()
	if len(summary.VMs) != 1 || summary.VMs[0].ID != made.VMID || !summary.VMs[0].Template || summary.VMs[0].Lock != "" {
		r.t.Errorf("VMs are %+v, want the template %d alone", summary.VMs, made.VMID)
	}
	if !made.Finished || made.Instance != instance || made.DiskGiB != 10 {
		r.t.Errorf("the template is %+v", made)
	}
	if left := r.imports(); len(left) > 0 {
		r.t.Errorf("image files are left: %v", left)
	}
}

func TestAnotherRunAtWorkIsLeftAlone(t *testing.T) {
	r := newRig(t)
	first := r.make(r.spec())
	// The other run renews its lease while this one waits.
	lease := func(seconds int64) {
		fresh, err := r.client().ReadTemplate(t.Context(), "pve1", first.VMID, "")
		if err != nil {
			t.Error(err)
			return
		}
		fresh.mark.Until = time.Now().Unix() + seconds
		if err := r.client().writeMark(t.Context(), &fresh); err != nil {
			t.Error(err)
		}
	}
	lease(20)
	renewed := false
	waiting := func(ctx context.Context, phase, _ string) {
		if phase == "waiting" && !renewed {
			renewed = true
			lease(25)
		}
	}
	_, err := r.client(func(c *Config) { c.Lease = 30 * time.Second }).EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), waiting, func(Template) {})
	if err == nil || !strings.Contains(err.Error(), "another run is making the template") {
		t.Errorf("error is %v", err)
	}
	if vms := r.sim.Summary().VMs; len(vms) != 1 {
		t.Errorf("VMs are %+v", vms)
	}
}

func TestAKeptTemplateIsNeverTakenOver(t *testing.T) {
	r := newRig(t)
	first := r.make(r.spec())
	if err := r.client().KeepTemplate(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	second := r.make(r.spec())
	if second.VMID == first.VMID {
		t.Fatal("a second create took over a template that is in somebody's state")
	}
	kept, err := r.client().ReadTemplate(t.Context(), "pve1", first.VMID, first.UUID)
	if err != nil || kept.Instance != first.Instance || !kept.Kept() {
		t.Errorf("the first is %+v, %v", kept, err)
	}
}

func TestATemplateOnPlainDisksIsNotTakenForFinished(t *testing.T) {
	r := newRig(t)
	spec := r.spec()
	m := mark{Kind: "template", ID: 100, Instance: "other", State: stateBuilding, Key: spec.key()}
	r.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": 100, "name": spec.Name, "scsi0": "local-lvm:10", "template": 1, "description": m.String()})
	_, err := r.client().EnsureTemplate(t.Context(), spec, uuid.NewString(), nil, func(Template) {})
	if err == nil || !strings.Contains(err.Error(), "is no base volume") || !strings.Contains(err.Error(), "qm destroy 100") {
		t.Errorf("error is %v", err)
	}
}

// Proxmox VE copies a template's notes to its clones, the mark with them.
func TestAMachineIsNeverTakenForTheTemplateItWasClonedFrom(t *testing.T) {
	r := newRig(t)
	made := r.make(r.spec())
	r.raw(http.MethodPost, vmPath("pve1", made.VMID, "clone"), map[string]any{"newid": 300, "name": made.Name, "full": 1})
	clone, err := r.client().ReadTemplate(t.Context(), "pve1", 300, "")
	if err != nil {
		t.Fatal(err)
	}
	if config, err := r.client().readConfig(t.Context(), "pve1", 300); err != nil || !strings.Contains(config.text("description"), made.Instance) {
		t.Fatalf("the clone has no copy of the notes, so that nothing is tested: %v", err)
	}
	if clone.Instance != "" || clone.Finished {
		t.Errorf("the clone passes for a template: %+v", clone)
	}
	if err := r.client().DeleteTemplate(t.Context(), made, nil); err != nil {
		t.Fatal(err)
	}
	again := r.make(r.spec())
	if again.VMID == 300 {
		t.Error("a machine was turned into a template")
	}
	if err := r.client().DiscardTemplate(t.Context(), r.spec(), made.Instance, nil); err != nil {
		t.Fatal(err)
	}
	if vms := r.sim.Summary().VMs; len(vms) != 2 || vms[1].ID != 300 || vms[1].Template {
		t.Errorf("the VMs are %+v, want the new template and the machine 300", vms)
	}
}

func TestAnswersAboutATemplateAreThree(t *testing.T) {
	r := newRig(t, func(o *pvesim.Options) { o.Nodes = []pvesim.Node{{Name: "pve1"}, {Name: "pve2"}} })
	made := r.make(r.spec())
	t.Run("present", func(t *testing.T) {
		if _, err := r.client().ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID); err != nil {
			t.Error(err)
		}
	})
	t.Run("present on the node it was migrated to", func(t *testing.T) {
		got, err := r.client().ReadTemplate(t.Context(), "pve2", made.VMID, made.UUID)
		if err != nil || got.Node != "pve1" {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	t.Run("unknown while the node does not answer", func(t *testing.T) {
		r.sim.SetNodeOffline("pve1", true)
		defer r.sim.SetNodeOffline("pve1", false)
		_, err := r.client().ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID)
		if err == nil || kube.IsAbsent(err) {
			t.Errorf("error is %v, want one that proves nothing", err)
		}
	})
	t.Run("unknown while nothing answers", func(t *testing.T) {
		gone := r.client(func(c *Config) { c.Endpoint = "https://127.0.0.1:1" })
		_, err := gone.ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID)
		if err == nil || kube.IsAbsent(err) || !strings.Contains(err.Error(), "no answer from Proxmox VE") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("absent where the id belongs to another VM by now", func(t *testing.T) {
		if _, err := r.client().ReadTemplate(t.Context(), "pve1", made.VMID, uuid.NewString()); !kube.IsAbsent(err) {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("absent once it is deleted", func(t *testing.T) {
		if err := r.client().DeleteTemplate(t.Context(), made, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := r.client().ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID); !kube.IsAbsent(err) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestSettingsAreChangedInPlace(t *testing.T) {
	tests := []struct {
		name   string
		change func(*TemplateSettings)
	}{
		{"name", func(s *TemplateSettings) { s.Name = "other" }},
		{"description", func(s *TemplateSettings) { s.Description = "two\nlines" }},
		{"no description", func(s *TemplateSettings) { s.Description = "" }},
		{"tags", func(s *TemplateSettings) { s.Tags = []string{"c"} }},
		{"no tags", func(s *TemplateSettings) { s.Tags = nil }},
		{"cpu type", func(s *TemplateSettings) { s.CPUType = "host" }},
		{"cores", func(s *TemplateSettings) { s.Cores = 4 }},
		{"memory", func(s *TemplateSettings) { s.MemoryMiB = 4096 }},
		{"agent", func(s *TemplateSettings) { s.Agent = false }},
		{"sockets", func(s *TemplateSettings) { s.Sockets = 2 }},
		{"NUMA", func(s *TemplateSettings) { s.NUMA = true }},
		{"ballooning off", func(s *TemplateSettings) { s.Balloon = "0" }},
		{"ballooning left to Proxmox VE", func(s *TemplateSettings) { s.Balloon = "" }},
		{"system", func(s *TemplateSettings) { s.OSType = "other" }},
		{"machine type", func(s *TemplateSettings) { s.Machine = "pc" }},
		{"SCSI controller", func(s *TemplateSettings) { s.SCSIController = "virtio-scsi-single" }},
		{"display", func(s *TemplateSettings) { s.VGA = "serial0" }},
		{"no display", func(s *TemplateSettings) { s.VGA = "" }},
		{"no serial port", func(s *TemplateSettings) { s.Serial = false }},
		{"random numbers", func(s *TemplateSettings) { s.RNG = true }},
		{"start with the node", func(s *TemplateSettings) { s.StartOnBoot = true }},
		{"protection", func(s *TemplateSettings) { s.Protection = true }},
		{"no protection", func(s *TemplateSettings) { s.Protection = false }},
		{"a pool", func(s *TemplateSettings) { s.Pool = "one" }},
		{"another pool", func(s *TemplateSettings) { s.Pool = "two" }},
		{"no pool", func(s *TemplateSettings) { s.Pool = "" }},
		{"VLAN", func(s *TemplateSettings) { s.Networks[0].VLAN = 12 }},
		{"a second network device", func(s *TemplateSettings) {
			s.Networks = append(s.Networks, NetworkDevice{Model: "e1000", Bridge: "vmbr0", MTU: 9000, Queues: 2, Rate: 10, Firewall: true})
		}},
		{"no network device", func(s *TemplateSettings) { s.Networks = nil }},
	}
	r := newRig(t)
	for _, pool := range []string{"one", "two"} {
		r.raw(http.MethodPost, "/pools", map[string]any{"poolid": pool})
	}
	made := r.make(r.spec())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			current, err := r.client().ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID)
			if err != nil {
				t.Fatal(err)
			}
			want := current.TemplateSettings
			want.Tags, want.Networks = slices.Clone(want.Tags), slices.Clone(want.Networks)
			tt.change(&want)
			spec := TemplateSpec{Labels: current.Labels, TemplateSettings: want}
			if _, err := r.client().UpdateTemplate(t.Context(), current, spec); err != nil {
				t.Fatal(err)
			}
			got, err := r.client().ReadTemplate(t.Context(), "pve1", made.VMID, made.UUID)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(got.TemplateSettings) != fmt.Sprint(want) || got.Instance != made.Instance || !got.Finished {
				t.Errorf("got %+v (instance %s), want %+v", got.TemplateSettings, got.Instance, want)
			}
			r.faults.strike(0, false, nil)
			if _, err := r.client().UpdateTemplate(t.Context(), got, spec); err != nil {
				t.Fatal(err)
			}
			if calls := r.faults.calls(); len(calls) > 0 {
				t.Errorf("an update without a difference writes: %v", calls)
			}
		})
	}
}

func TestAChangeByOthersInBetweenIsNotOverwritten(t *testing.T) {
	r := newRig(t)
	made := r.make(r.spec())
	r.raw(http.MethodPut, vmPath("pve1", made.VMID, "config"), map[string]any{"cores": 8})
	settings := made.TemplateSettings
	settings.MemoryMiB = 4096
	if _, err := r.client().UpdateTemplate(t.Context(), made, TemplateSpec{Labels: made.Labels, TemplateSettings: settings}); err == nil || !strings.Contains(err.Error(), "file change by other user") {
		t.Errorf("error is %v", err)
	}
}

func TestATemplateWithLinkedClonesIsNotDeleted(t *testing.T) {
	r := newRig(t, func(o *pvesim.Options) {
		o.Storages = append(pvesim.DefaultStorages(), pvesim.Storage{ID: "zfs", Type: "zfspool", Content: []string{"images"}})
	})
	spec := r.spec()
	spec.Storage = "zfs"
	made := r.make(spec)
	r.raw(http.MethodPost, vmPath("pve1", made.VMID, "clone"), map[string]any{"newid": 300, "name": "clone"})
	err := r.client().DeleteTemplate(t.Context(), made, nil)
	if err == nil || !strings.Contains(err.Error(), "in use by linked clones: VM 300") {
		t.Fatalf("error is %v", err)
	}
	r.raw(http.MethodDelete, vmPath("pve1", 300, ""), nil)
	if err := r.client().DeleteTemplate(t.Context(), made, nil); err != nil {
		t.Error(err)
	}
}

func TestADownloadThatWasCutShortIsFetchedAgain(t *testing.T) {
	r := newRig(t)
	r.sim.ShortDownload(1000)
	made := r.make(r.spec())
	downloads := 0
	for _, call := range r.faults.calls() {
		if strings.HasSuffix(call, "/download-url") {
			downloads++
		}
	}
	if !made.Finished || downloads != 2 {
		t.Errorf("finished %v after %d downloads, want 2", made.Finished, downloads)
	}
}
