// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pve "github.com/luthermonson/go-proxmox"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// build is one run of the work that makes a template.
type build struct {
	c        *Client
	spec     TemplateSpec
	instance string
	reporter progress.Reporter
	// begun is told of the first side effect, and again when there is a VM.
	begun func(Template)
	// transfer is how the image comes to the node.
	transfer Transfer
	// served is the image's length in bytes as it is served, and want that of the
	// file that must arrive; zero where nobody says.
	served, want int64
	// keep is set when the image file may not be deleted.
	keep bool
}

func (b *build) report(ctx context.Context, phase, format string, args ...any) {
	b.reporter.Report(ctx, phase, fmt.Sprintf(format, args...))
}

// Phases under which a run tells of what it leaves alone and people may want to
// remove.
const (
	// PhaseLeftover: unfinished templates of other configurations.
	PhaseLeftover = "leftover"
	// PhaseImageStays: image files that whoever works may not delete.
	PhaseImageStays = "image-stays"
)

// EnsureTemplate makes the template, or finishes one that an earlier run began:
// each step looks first at what is there. instance is the caller's UUID that
// marks the template as its own. begun is called right before the first side
// effect, with a template that has no id yet, and again as soon as there is a
// VM, for the caller to note what is there. The answered template is finished;
// it is the caller's for good after [Client.KeepTemplate].
//
// It needs Proxmox VE 8.4, the first to import disk images for a token, or 8.1
// and the login of root@pam with a password.
func (c *Client) EnsureTemplate(ctx context.Context, spec TemplateSpec, instance string, reporter progress.Reporter, begun func(Template)) (Template, error) {
	b := &build{c: c, spec: spec, instance: instance, reporter: reporter, begun: begun}
	var template Template
	err := settle(func() error {
		var err error
		template, err = b.run(ctx)
		return err
	})
	return template, err
}

// choose chooses the way of the image.
func (b *build) choose(ctx context.Context) error {
	version, err := b.c.Version(ctx)
	if err == nil {
		b.transfer, err = b.chooseTransfer(ctx, version)
	}
	return err
}

// CheckTemplate looks whether the template could be made as things are: whether
// there is a way for its image, a free id and every privilege. It changes nothing.
func (c *Client) CheckTemplate(ctx context.Context, spec TemplateSpec) error {
	b := &build{c: c, spec: spec}
	if err := b.choose(ctx); err != nil {
		return err
	}
	id, err := b.pickID(ctx)
	if err != nil {
		return err
	}
	return b.preflight(ctx, id)
}

func (b *build) run(ctx context.Context) (Template, error) {
	if err := b.choose(ctx); err != nil {
		return Template{}, err
	}
	if err := b.settleTasks(ctx); err != nil {
		return Template{}, err
	}
	template, found, err := b.find(ctx)
	if err != nil {
		return Template{}, err
	}
	if found {
		template, err = b.bringUpToDate(ctx, template)
	} else {
		template, err = b.make(ctx)
	}
	if err != nil {
		return Template{}, err
	}
	b.begun(template)
	transfer := template.Transfer
	template, err = b.finish(ctx, template)
	template.Transfer = transfer // no reading tells it
	return template, err
}

// bringUpToDate gives a template that another run began the settings of this one.
func (b *build) bringUpToDate(ctx context.Context, t Template) (Template, error) {
	listed, err := b.c.vmResource(ctx, t.VMID)
	if err != nil {
		return t, err
	}
	t.Pool = listed.Pool
	return b.c.UpdateTemplate(ctx, t, b.spec)
}

// ownTasks are the kinds of task that making a template starts.
var ownTasks = []string{"download", "imgcopy", "qmcreate", "resize", "qmtemplate", "qmconfig", "imgdel"}

// settleTasks waits for the running tasks of this account that may be those of
// a run that was killed: while a VM is being created its configuration holds
// nothing but a lock, so that its mark cannot be seen.
func (b *build) settleTasks(ctx context.Context) error {
	var tasks []struct {
		UPID string `json:"upid"`
		Type string `json:"type"`
		ID   string `json:"id"`
	}
	if err := b.c.get(ctx, "/nodes/"+b.spec.Node+"/tasks", params{"source": "active"}, &tasks); err != nil {
		return fmt.Errorf("listing the running tasks of node %s: %w", b.spec.Node, err)
	}
	user, _, _ := strings.Cut(b.c.Identity(), "!")
	for _, task := range tasks {
		ours := false
		for _, kind := range ownTasks {
			ours = ours || task.Type == kind
		}
		if !ours || !strings.Contains(task.UPID, ":"+user) {
			continue
		}
		b.report(ctx, "waiting", "waiting for the running task %s %s", task.Type, task.ID)
		if err := b.c.wait(ctx, task.UPID); err != nil && ctx.Err() != nil {
			return fmt.Errorf("waiting for the running task %s %s: %w", task.Type, task.ID, err)
		}
	}
	return nil
}

// find looks for a template that this work may go on with: its own, or one with
// the same key whose maker has fallen silent before it was kept.
func (b *build) find(ctx context.Context) (Template, bool, error) {
	candidates, err := b.candidates(ctx)
	if err != nil {
		return Template{}, false, err
	}
	for _, t := range candidates {
		if t.mark.Instance == b.instance {
			return t, true, nil
		}
	}
	for _, t := range candidates {
		if t.mark.Key != b.spec.key() || t.mark.State == stateKept || t.mark.State == stateRetired {
			continue
		}
		t, err := b.takeOver(ctx, t)
		return t, err == nil, err
	}
	for _, t := range candidates {
		if t.mark.State == stateBuilding && t.mark.Key != b.spec.key() {
			b.report(ctx, PhaseLeftover, "VM %d (%s) on node %s is an unfinished template of another configuration; where nobody works on it, remove it: qm destroy %d",
				t.VMID, t.Name, t.Node, t.VMID)
		}
	}
	return Template{}, false, nil
}

// candidates answers the marked templates of the node that have the wished name
// or id, or are not templates yet. Only these are read one by one.
func (b *build) candidates(ctx context.Context) ([]Template, error) {
	list, err := b.c.nodeVMs(ctx, b.spec.Node)
	if err != nil {
		return nil, err
	}
	var out []Template
	for _, vm := range list {
		if vm.Name != b.spec.Name && vm.VMID != b.spec.VMID && (vm.converted() || vm.Status != "stopped") {
			continue
		}
		t, err := b.c.readVM(ctx, b.spec.Node, vm.VMID)
		if missing(err) || isDenied(err) {
			continue // deleted meanwhile, or nothing of ours
		}
		if err != nil {
			return nil, fmt.Errorf("reading VM %d on node %s: %w", vm.VMID, b.spec.Node, err)
		}
		if t.mark.Kind == "template" {
			out = append(out, t)
		}
	}
	return out, nil
}

// takeOver waits until the lease of an unfinished template has run out and
// marks it as this run's. A lease that is renewed meanwhile is an error: another
// run is at work.
func (b *build) takeOver(ctx context.Context, t Template) (Template, error) {
	// Whatever the clocks say: no lease is waited for longer than a lease lasts.
	limit := time.Now().Add(b.c.config.Lease)
	until := t.mark.Until
	for b.c.clock.now().Unix() < until && time.Now().Before(limit) {
		b.report(ctx, "waiting", "template %d was begun by another run, whose lease lasts until %s; waiting for it to run out",
			t.VMID, time.Unix(until, 0).Format(time.TimeOnly))
		if !sleep(ctx, min(b.c.config.PollInterval, b.c.clock.until(time.Unix(until, 0))+time.Millisecond)) {
			return t, fmt.Errorf("waiting for the lease of template %d on node %s: %w", t.VMID, t.Node, ctx.Err())
		}
		fresh, err := b.c.readVM(ctx, t.Node, t.VMID)
		if err != nil {
			return t, fmt.Errorf("reading the unfinished template %d on node %s: %w", t.VMID, t.Node, err)
		}
		if fresh.mark.Until != until || fresh.mark.Instance != t.mark.Instance || fresh.mark.State != t.mark.State {
			return t, fmt.Errorf("another run is making the template %q on node %s as VM %d at this moment: let it finish", b.spec.Name, t.Node, t.VMID)
		}
		t = fresh
	}
	b.report(ctx, "adopting", "taking over the unfinished template %d on node %s", t.VMID, t.Node)
	t.mark.Instance = b.instance
	t.mark.State = stateBuilding
	if err := b.renew(ctx, &t); err != nil {
		return t, err
	}
	return t, nil
}

// renew writes the mark with a fresh lease.
func (b *build) renew(ctx context.Context, t *Template) error {
	t.mark = b.c.leased(t.mark)
	return b.c.writeMark(ctx, t)
}

// writeMark writes the mark as it is in t, guarded by the digest of what was
// read.
func (c *Client) writeMark(ctx context.Context, t *Template) error {
	body := params{"description": t.mark.with(t.Description, "\n\n")}
	if t.digest != "" {
		body["digest"] = t.digest
	}
	put := c.put(ctx, vmPath(t.Node, t.VMID, "config"), body, nil)
	if put != nil && !saying(put, digestRefused) {
		return fmt.Errorf("marking template %d on node %s: %w", t.VMID, t.Node, put)
	}
	fresh, err := c.readVM(ctx, t.Node, t.VMID)
	if err != nil {
		return fmt.Errorf("reading template %d on node %s: %w", t.VMID, t.Node, err)
	}
	if put != nil && fresh.mark.String() != t.mark.String() {
		return fmt.Errorf("marking template %d on node %s: %w", t.VMID, t.Node, put)
	}
	*t = fresh
	return nil
}

// digestRefused is what Proxmox VE says where a configuration is not the one
// that was read. It says so as well when a call is repeated whose answer got
// lost: then the configuration is what was asked for.
const digestRefused = "checksum mismatch (file change by other user?)"

// maxIDs is how many ids are tried where others take them meanwhile: Proxmox VE
// reserves none.
const maxIDs = 10

// make brings the image and makes the VM out of it.
func (b *build) make(ctx context.Context) (Template, error) {
	id, err := b.pickID(ctx)
	if err != nil {
		return Template{}, err
	}
	if err := b.preflight(ctx, id); err != nil {
		return Template{}, err
	}
	if err := b.spec.Image.Prepare(ctx); err != nil {
		return Template{}, err
	}
	b.begun(Template{Node: b.spec.Node, Storage: b.spec.Storage, Transfer: b.transfer})
	if err := b.bringImage(ctx); err != nil {
		return Template{}, err
	}
	volume := b.transfer.volume(b.spec)
	source, err := b.importSource(ctx, volume)
	if err != nil {
		return Template{}, err
	}
	for range maxIDs {
		m := b.c.leased(mark{Kind: "template", ID: id, Instance: b.instance, State: stateBuilding, Key: b.spec.key(),
			Image: volume, Family: b.spec.Family, Labels: b.spec.Labels})
		b.report(ctx, "create", "creating VM %d on node %s from %s", id, b.spec.Node, volume)
		var upid string
		err := b.c.post(ctx, "/nodes/"+b.spec.Node+"/qemu", b.spec.create(id, source, m), &upid)
		if err == nil {
			err = b.c.wait(ctx, upid)
		}
		if err == nil {
			t, err := b.c.readVM(ctx, b.spec.Node, id)
			if err != nil {
				return Template{}, fmt.Errorf("reading VM %d on node %s, which was just made: %w", id, b.spec.Node, err)
			}
			t.Transfer = b.transfer
			return t, nil
		}
		if !saying(err, "already exists") {
			if b.imageTaken(ctx, volume, err) && b.bringImage(ctx) == nil {
				continue
			}
			return Template{}, fmt.Errorf("creating VM %d on node %s: %w", id, b.spec.Node, err)
		}
		if b.spec.VMID != 0 && b.spec.LastVMID == 0 {
			return Template{}, fmt.Errorf("the wished id %d is taken: %w. Choose another vm_id, or leave it out for the next free one", id, err)
		}
		if id, err = b.pickID(ctx); err != nil {
			return Template{}, err
		}
	}
	return Template{}, fmt.Errorf("no free VM id in %d tries: others take them at this moment; give vm_id one that is set aside", maxIDs)
}

// imageTaken says whether a VM could not be made because its image file has gone:
// a run for the same template from another state has made its VM of the very file
// and cleaned up after itself.
func (b *build) imageTaken(ctx context.Context, volume string, failed error) bool {
	if !pve.IsTaskFailed(failed) && !missing(failed) {
		return false
	}
	_, there, err := b.c.imageSize(ctx, b.spec.Node, volume)
	if err != nil || there {
		return false
	}
	b.report(ctx, "image", "the image file %s was removed by others before the VM was made of it; bringing it again", volume)
	return true
}

// importSource is what the disk is imported from: the volume id, or the path of
// a file among the ISO images.
func (b *build) importSource(ctx context.Context, volume string) (string, error) {
	if !b.transfer.iso() {
		return volume, nil
	}
	return b.c.imagePath(ctx, b.spec.Node, volume)
}

// pickID answers the wished id, the lowest free one of the wished range, or the
// next free one of the cluster.
func (b *build) pickID(ctx context.Context) (int, error) {
	if b.spec.LastVMID != 0 {
		return b.pickFromRange(ctx)
	}
	if b.spec.VMID != 0 {
		return b.spec.VMID, nil
	}
	var next string
	if err := b.c.get(ctx, "/cluster/nextid", nil, &next); err != nil {
		return 0, fmt.Errorf("asking for a free VM id: %w", err)
	}
	id, err := strconv.Atoi(next)
	if err != nil {
		return 0, fmt.Errorf("asking for a free VM id: the answer %q is no number", next)
	}
	return id, nil
}

// pickFromRange asks for each id by itself: the list of VMs leaves out what the
// account may not see.
func (b *build) pickFromRange(ctx context.Context) (int, error) {
	for id := b.spec.VMID; id <= b.spec.LastVMID; id++ {
		var free string
		err := b.c.get(ctx, "/cluster/nextid", params{"vmid": id}, &free)
		if err == nil {
			return id, nil
		}
		if !saying(err, "already exists") {
			return 0, fmt.Errorf("asking whether the VM id %d is free: %w", id, err)
		}
	}
	return 0, fmt.Errorf("all ids from %d to %d are taken: give vm_id_range more room", b.spec.VMID, b.spec.LastVMID)
}

// preflight checks the privileges for all steps before the first.
func (b *build) preflight(ctx context.Context, id int) error {
	vm := fmt.Sprintf("/vms/%d", id)
	importing := "/storage/" + b.transfer.storage.Name
	needs := []need{
		{importing, []string{"Datastore.AllocateTemplate"}, "bring the image to the storage"},
		{"/storage/" + b.spec.Storage, []string{"Datastore.AllocateSpace"}, "make the template's disks"},
	}
	if drive := b.spec.CloudInitStorage; drive != "" && drive != b.spec.Storage {
		needs = append(needs, need{"/storage/" + drive, []string{"Datastore.AllocateSpace"}, "make the cloud-init drive"})
	}
	making, err := b.missingInPool(ctx, []string{
		"VM.Allocate", "VM.Audit", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Options",
	})
	if err != nil {
		return err
	}
	if len(making) > 0 {
		needs = append(needs, need{vm, making, "make the template"})
	}
	for _, device := range b.spec.Networks {
		bridge := "/sdn/zones/localnetwork/" + device.Bridge
		if device.VLAN != 0 {
			bridge += "/" + strconv.Itoa(device.VLAN)
		}
		needs = append(needs, need{vm, []string{"VM.Config.Network"}, "give the template a network device"},
			need{bridge, []string{"SDN.Use"}, "attach it to the bridge"})
	}
	if err := b.c.preflight(ctx, needs); err != nil {
		return err
	}
	if b.spec.KeepImage {
		return nil
	}
	lacking, err := b.c.lacks(ctx, importing, "Datastore.Allocate")
	if b.keep = len(lacking) > 0; b.keep {
		b.report(ctx, PhaseImageStays, "the image file %s will stay: %s may not delete it there (Datastore.Allocate on %s). "+
			"Where no other template is made of it, remove it: pvesm free %s", b.transfer.volume(b.spec), b.c.Identity(), importing, b.transfer.volume(b.spec))
	}
	return err
}

// missingInPool answers those of the privileges that the template's pool does
// not give, so that they are needed on the VM itself.
func (b *build) missingInPool(ctx context.Context, privileges []string) ([]string, error) {
	if b.spec.Pool == "" {
		return privileges, nil
	}
	held, ok, err := b.c.privileges(ctx, "", "/pool/"+b.spec.Pool)
	if err != nil || !ok {
		return privileges, err
	}
	return slices.DeleteFunc(privileges, func(p string) bool { return held[p] }), nil
}

// finish takes a VM with its disk to a finished template, from wherever it
// stands.
func (b *build) finish(ctx context.Context, t Template) (Template, error) {
	where := fmt.Sprintf("template %d on node %s", t.VMID, t.Node)
	if t.volumes["scsi0"] == "" {
		return t, fmt.Errorf("%s has no disk scsi0, it was changed by others; remove it (qm destroy %d) and apply again", where, t.VMID)
	}
	if !t.converted {
		if err := b.resize(ctx, &t); err != nil {
			return t, fmt.Errorf("resizing the disk of %s: %w", where, err)
		}
		if err := b.convert(ctx, &t); err != nil {
			return t, fmt.Errorf("converting %s: %w", where, err)
		}
	}
	if err := b.c.checkBase(ctx, t); err != nil {
		return t, err
	}
	if !b.spec.KeepImage && !b.keep && t.mark.Image != "" {
		b.report(ctx, "clean-up", "deleting the image file %s", t.mark.Image)
		if err := b.c.dropVolume(ctx, b.spec.Node, t.mark.Image, b.reporter); err != nil {
			return t, err
		}
	}
	if t.mark.finished() {
		return t, nil
	}
	t.mark.State = stateMade
	if err := b.renew(ctx, &t); err != nil {
		return t, err
	}
	b.report(ctx, "ready", "%s is ready", where)
	return t, nil
}

// resize grows the boot disk to the wished size. Templates cannot be resized,
// so it comes before the conversion; Talos grows its partition at boot.
func (b *build) resize(ctx context.Context, t *Template) error {
	want := int64(b.spec.DiskGiB) << 30
	if want == 0 || t.diskBytes >= want {
		if want != 0 && t.diskBytes > want {
			return fmt.Errorf("the image's disk is larger (%d GiB) than the wished %d GiB, and disks do not shrink", t.DiskGiB, b.spec.DiskGiB)
		}
		return nil
	}
	b.report(ctx, "resize", "growing the disk to %d GiB", b.spec.DiskGiB)
	var upid string
	if err := b.c.put(ctx, vmPath(t.Node, t.VMID, "resize"), params{"disk": "scsi0", "size": fmt.Sprintf("%dG", b.spec.DiskGiB)}, &upid); err != nil {
		return err
	}
	if err := b.c.wait(ctx, upid); err != nil {
		return err
	}
	fresh, err := b.c.readVM(ctx, t.Node, t.VMID)
	if err == nil {
		*t = fresh
	}
	return err
}

// convert turns the VM into a template by the call of its own: the option
// template=1 at creation sets the flag, but leaves the disks as they are.
func (b *build) convert(ctx context.Context, t *Template) error {
	if err := b.renew(ctx, t); err != nil {
		return err
	}
	b.report(ctx, "convert", "converting VM %d into a template", t.VMID)
	var upid string
	err := b.c.post(ctx, vmPath(t.Node, t.VMID, "template"), nil, &upid)
	if err == nil {
		err = b.c.wait(ctx, upid)
	}
	if err != nil && !saying(err, "you can't convert a template to a template") {
		return err
	}
	fresh, err := b.c.readVM(ctx, t.Node, t.VMID)
	if err == nil {
		*t = fresh
	}
	return err
}

// basedStorages are the types of storage whose disks become base volumes with
// the conversion. Thick lvm has no such thing and makes full clones only; of
// other types, plugins included, it is not known for certain.
var basedStorages = []string{"dir", "nfs", "cifs", "cephfs", "glusterfs", "lvmthin", "zfspool", "zfs", "rbd"}

// checkBase proves that the disks became base volumes, which linked clones need.
func (c *Client) checkBase(ctx context.Context, t Template) error {
	if !t.converted {
		return fmt.Errorf("VM %d on node %s is not a template after its conversion", t.VMID, t.Node)
	}
	for device, volume := range t.volumes {
		storage, name, _ := strings.Cut(volume, ":")
		if strings.Contains(name, fmt.Sprintf("base-%d-", t.VMID)) {
			continue
		}
		list, err := c.storages(ctx, t.Node)
		if err != nil {
			return err
		}
		for _, entry := range list {
			if entry.Name == storage && slices.Contains(basedStorages, entry.Type) {
				return fmt.Errorf("the disk %s of template %d on node %s (%s) is no base volume: the template was not converted as a whole; "+
					"remove it (qm destroy %d) and apply again", device, t.VMID, t.Node, volume, t.VMID)
			}
		}
	}
	return nil
}
