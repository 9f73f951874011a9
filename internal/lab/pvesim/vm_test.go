// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

type config map[string]any

func (l *lab) config(id int) config {
	l.t.Helper()
	c := config{}
	l.ok("GET", fmt.Sprintf("/nodes/pve1/qemu/%d/config", id), nil, &c)
	return c
}

func TestANewMachineGetsWhatProxmoxAdds(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "name", "x", "tags", "b,A;b", "memory", "1024", "cores", "2",
		"scsi0", "local-lvm:8,iothread=1,discard=on", "ide2", "none,media=cdrom", "net0", "virtio,bridge=vmbr0,firewall=1"))
	c := l.config(100)
	for key, want := range map[string]string{
		"scsi0": `^local-lvm:vm-100-disk-0,discard=on,iothread=1,size=8G$`, "net0": `^virtio=BC:24:11:[0-9A-F:]{8},bridge=vmbr0,firewall=1$`,
		"boot": `^order=scsi0;ide2;net0$`, "tags": `^a;b$`, "memory": `^1024$`, "smbios1": `^uuid=[0-9a-f-]{36}$`, "vmgenid": `^[0-9a-f-]{36}$`,
		"meta": `^creation-qemu=.*,ctime=\d+$`, "digest": `^[0-9a-f]{40}$`, "ide2": `^none,media=cdrom$`,
	} {
		if got, ok := c[key].(string); !ok || !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s is %v (%T), want a string like %s", key, c[key], c[key], want)
		}
	}
	if c["cores"] != 2.0 {
		t.Errorf("cores is %v (%T), want the number 2", c["cores"], c["cores"])
	}
}

func TestAFailedCreateLeavesNothing(t *testing.T) {
	l := start(t, pvesim.Options{})
	exit := l.task("POST", "/nodes/pve1/qemu", form("vmid", "100", "scsi0", "local-lvm:8", "scsi1", "local-lvm:0,import-from=local:import/no.qcow2"))
	if exit != "unable to create VM 100 - failed to stat '/var/lib/vz/import/no.qcow2'" {
		t.Errorf("exit %q", exit)
	}
	if s := l.Summary(); len(s.VMs) != 0 || len(s.Files) != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

func TestTwoCreatesMayGetTheSameNextID(t *testing.T) {
	l := start(t, pvesim.Options{})
	var a, b string
	l.ok("GET", "/cluster/nextid", nil, &a)
	l.ok("GET", "/cluster/nextid", nil, &b)
	if a != "100" || a != b {
		t.Fatalf("ids %s and %s: nothing is reserved", a, b)
	}
	l.ok("POST", "/nodes/pve1/qemu", form("vmid", a), nil)
	if r := l.send("POST", "/nodes/pve1/qemu", form("vmid", b)); r.reason != "unable to create VM 100 - VM 100 already exists on node 'pve1'" {
		t.Errorf("the second: %d %s", r.status, r.reason)
	}
}

func TestATemplatesDisksBecomeBaseVolumes(t *testing.T) {
	dirs := []pvesim.Storage{
		{ID: "local", Type: "dir", Content: []string{"images", "import"}}, {ID: "thin", Type: "lvmthin", Content: []string{"images"}},
		{ID: "thick", Type: "lvm", Content: []string{"images"}}, {ID: "tank", Type: "zfspool", Content: []string{"images"}},
	}
	for storage, want := range map[string]struct{ base, clone, delete string }{
		"local": {"local:100/base-100-disk-0.raw", "local:100/base-100-disk-0.raw/101/vm-101-disk-0.raw", "base volume 'local:100/base-100-disk-0.raw' is still in use by linked cloned"},
		"tank":  {"tank:base-100-disk-0", "tank:base-100-disk-0/vm-101-disk-0", "base volume 'tank:base-100-disk-0' is still in use by linked cloned"},
		"thin":  {"thin:base-100-disk-0", "thin:vm-101-disk-0", "OK"},
		"thick": {"thick:vm-100-disk-0", "", ""},
	} {
		t.Run(storage, func(t *testing.T) {
			l := start(t, pvesim.Options{Storages: dirs})
			l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "scsi0", storage+":8"))
			l.done("POST", "/nodes/pve1/qemu/100/template", nil)
			c := l.config(100)
			if c["template"] != 1.0 || c["scsi0"] != want.base+",size=8G" {
				t.Errorf("template %v, scsi0 %v", c["template"], c["scsi0"])
			}
			if exit := l.task("POST", "/nodes/pve1/qemu/100/status/start", nil); exit != "you can't start a vm if it's a template" {
				t.Errorf("starting it: %q", exit)
			}
			if want.clone == "" {
				r := l.send("POST", "/nodes/pve1/qemu/100/clone", form("newid", "101"))
				if r.reason != "Linked clone feature is not supported for 'thick:vm-100-disk-0' (scsi0)" {
					t.Errorf("a linked clone: %d %s", r.status, r.reason)
				}
				l.done("POST", "/nodes/pve1/qemu/100/clone", form("newid", "101", "full", "1"))
				return
			}
			l.done("POST", "/nodes/pve1/qemu/100/clone", form("newid", "101"))
			if got := l.config(101)["scsi0"]; got != want.clone+",size=8G" {
				t.Errorf("the clone's disk is %v, want %s", got, want.clone)
			}
			if exit := l.task("DELETE", "/nodes/pve1/qemu/100", nil); exit != want.delete {
				t.Errorf("deleting the template: %q, want %q", exit, want.delete)
			}
			if want.delete == "OK" {
				return
			}
			l.done("DELETE", "/nodes/pve1/qemu/101", nil)
			l.done("DELETE", "/nodes/pve1/qemu/100", nil)
			if s := l.Summary(); len(s.VMs)+len(s.Files) != 0 {
				t.Errorf("left behind: %+v", s)
			}
		})
	}
}

func TestACloneIsAMachineOfItsOwn(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "name", "t", "tags", "talos", "scsi0", "local-lvm:8", "net0", "virtio,bridge=vmbr0", "protection", "1"))
	l.done("POST", "/nodes/pve1/qemu/100/template", nil)
	l.ok("POST", "/pools", form("poolid", "p"), nil)
	l.done("POST", "/nodes/pve1/qemu/100/clone", form("newid", "101", "full", "1", "pool", "p", "description", "d"))
	a, b := l.config(100), l.config(101)
	for _, k := range []string{"smbios1", "vmgenid", "net0", "scsi0", "digest"} {
		if a[k] == b[k] {
			t.Errorf("%s is the same: %v", k, a[k])
		}
	}
	if b["tags"] != "talos" || b["template"] != nil || b["protection"] != nil || b["description"] != "d" || b["name"] != "Copy-of-t" {
		t.Errorf("the clone's configuration: %v", b)
	}
	var pool struct{ Members []struct{ VMID int } }
	l.ok("GET", "/pools/p", nil, &pool)
	if len(pool.Members) != 1 || pool.Members[0].VMID != 101 {
		t.Errorf("pool %+v", pool)
	}
}

func TestACloneForAnotherNodeNeedsSharedStorage(t *testing.T) {
	l := start(t, pvesim.Options{
		Nodes:    []pvesim.Node{{Name: "pve1"}, {Name: "pve2"}},
		Storages: []pvesim.Storage{{ID: "nas", Type: "nfs", Content: []string{"images", "iso"}}},
	})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "scsi0", "nas:8"))
	l.done("POST", "/nodes/pve1/qemu/100/template", nil)
	l.done("POST", "/nodes/pve1/qemu/100/clone", form("newid", "101", "target", "pve2"))
	if m, _ := l.vm(101); m.Node != "pve2" {
		t.Errorf("the clone is on %s", m.Node)
	}
	if r := l.send("GET", "/nodes/pve1/qemu/101/config", nil); r.reason != "Configuration file 'nodes/pve1/qemu-server/101.conf' does not exist" {
		t.Errorf("asking the wrong node: %s", r.reason)
	}
	l.done("POST", "/nodes/pve2/qemu/101/status/start", nil)
}

func TestChangesOfARunningMachineWaitForAPowerCycle(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "cores", "1", "ide0", "none,media=cdrom"))
	l.done("POST", "/nodes/pve1/qemu/100/status/start", nil)
	l.ok("PUT", "/nodes/pve1/qemu/100/config", form("cores", "4", "name", "now"), nil)
	var current config
	l.ok("GET", "/nodes/pve1/qemu/100/config", form("current", "1"), &current)
	if current["cores"] != 1.0 || current["name"] != "now" || l.config(100)["cores"] != 4.0 {
		t.Errorf("current %v, configured %v", current, l.config(100))
	}
	var pending []map[string]any
	l.ok("GET", "/nodes/pve1/qemu/100/pending", nil, &pending)
	found := false
	for _, row := range pending {
		found = found || row["key"] == "cores" && row["value"] == 1.0 && row["pending"] == 4.0
	}
	if !found {
		t.Errorf("pending %v", pending)
	}
	l.done("POST", "/nodes/pve1/qemu/100/status/stop", nil)
	l.ok("GET", "/nodes/pve1/qemu/100/config", form("current", "1"), &current)
	if current["cores"] != 4.0 {
		t.Errorf("after the power cycle: %v", current)
	}
}

func TestDrivesComeAndGo(t *testing.T) {
	l := start(t, pvesim.Options{Storages: append(pvesim.DefaultStorages(), pvesim.Storage{ID: "dd", Type: "dir", Content: []string{"images"}})})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "scsi0", "dd:8,format=qcow2"))
	if got := l.config(100)["scsi0"]; got != "dd:100/vm-100-disk-0.qcow2,size=8G" {
		t.Errorf("scsi0 %v", got)
	}
	// A new CD drive goes to the end of the boot order.
	l.ok("PUT", "/nodes/pve1/qemu/100/config", form("ide2", "dd:cloudinit"), nil)
	c := l.config(100)
	if c["boot"] != "order=scsi0;ide2" || c["ide2"] != "dd:100/vm-100-cloudinit.qcow2,media=cdrom" {
		t.Errorf("boot %v, ide2 %v", c["boot"], c["ide2"])
	}
	// A disk that is taken out stays as unused, and out of the boot order.
	l.ok("PUT", "/nodes/pve1/qemu/100/config", form("delete", "scsi0,ide2"), nil)
	c = l.config(100)
	if c["unused0"] != "dd:100/vm-100-disk-0.qcow2" || c["scsi0"] != nil || c["boot"] != "order=" {
		t.Errorf("after the removal: %v", c)
	}
	l.done("DELETE", "/nodes/pve1/qemu/100", nil)
	if s := l.Summary(); len(s.Files) != 0 {
		t.Errorf("left behind: %v", s.Files)
	}
}

func TestResizing(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "scsi0", "local-lvm:8"))
	l.done("PUT", "/nodes/pve1/qemu/100/resize", form("disk", "scsi0", "size", "+512M"))
	if got := l.config(100)["scsi0"]; got != "local-lvm:vm-100-disk-0,size=8704M" {
		t.Errorf("scsi0 %v", got)
	}
	if exit := l.task("PUT", "/nodes/pve1/qemu/100/resize", form("disk", "scsi0", "size", "4G")); exit != "shrinking disks is not supported" {
		t.Errorf("exit %q", exit)
	}
}

// TestTheResourceListLagsBehind moves a clock by hand.
func TestTheResourceListLagsBehind(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	l := start(t, pvesim.Options{Clock: clock, Timing: pvesim.Timing{ResourceLag: 10 * time.Second}})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "name", "x", "tags", "talos"))
	row := func() map[string]any {
		var rows []map[string]any
		l.ok("GET", "/cluster/resources", form("type", "vm"), &rows)
		return rows[0]
	}
	if r := row(); r["status"] != "unknown" || r["name"] != nil || r["tags"] != nil || r["vmid"] != 100.0 {
		t.Errorf("at once: %v", r)
	}
	clock.Step(10 * time.Second)
	if r := row(); r["status"] != "stopped" || r["name"] != "x" || r["tags"] != "talos" || r["template"] != 0.0 {
		t.Errorf("later: %v", r)
	}
	l.done("POST", "/nodes/pve1/qemu/100/template", nil)
	if r := row(); r["template"] != 0.0 || r["name"] != "x" {
		t.Errorf("a change is not seen at once: %v", r)
	}
	clock.Step(10 * time.Second)
	if r := row(); r["template"] != 1.0 {
		t.Errorf("later: %v", r)
	}
}

// TestTasksTakeTimeAndCanBeStopped moves a clock by hand.
func TestTasksTakeTimeAndCanBeStopped(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	l := start(t, pvesim.Options{Clock: clock, Timing: pvesim.Timing{Create: 4 * time.Second}})
	var upid string
	status := func() (st taskStatus) {
		l.ok("GET", "/nodes/pve1/tasks/"+upid+"/status", nil, &st)
		return st
	}
	l.ok("POST", "/nodes/pve1/qemu", form("vmid", "100"), &upid)
	if f := strings.Split(upid, ":"); len(f) != 9 || f[5] != "qmcreate" || f[6] != "100" || f[7] != "root@pam!test" {
		t.Fatalf("UPID %s", upid)
	}
	if st := status(); st.Status != "running" || st.ExitStatus != "" || st.User != "root@pam" || st.TokenID != "test" {
		t.Errorf("status %+v", st)
	}
	if c := l.config(100); c["lock"] != "create" {
		t.Errorf("configuration %v", c)
	}
	l.until("the task sleeps", clock.HasWaiters)
	clock.Step(4 * time.Second)
	if exit := l.wait(upid); exit != "OK" {
		t.Errorf("exit %q", exit)
	}
	var log []struct {
		N int
		T string
	}
	l.ok("GET", "/nodes/pve1/tasks/"+upid+"/log", nil, &log)
	if len(log) == 0 || log[len(log)-1].T != "TASK OK" {
		t.Errorf("log %v", log)
	}

	l.ok("POST", "/nodes/pve1/qemu", form("vmid", "101"), &upid)
	l.ok("DELETE", "/nodes/pve1/tasks/"+upid, nil, nil)
	if exit := l.wait(upid); exit != "interrupted by signal" {
		t.Errorf("a stopped task: %q", exit)
	}

	// Others do not see it.
	capi := l.account("capi@pve", "/vms", "PVEVMAdmin")
	if r := capi.send("GET", "/nodes/pve1/tasks/"+upid+"/status", nil); r.reason != "Permission check failed (/nodes/pve1, Sys.Audit)" {
		t.Errorf("another's task: %d %s", r.status, r.reason)
	}
}

func TestConfigurationsChangeTheirDigest(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100"))
	digest := l.config(100)["digest"].(string)
	l.ok("PUT", "/nodes/pve1/qemu/100/config", form("description", "a\nb", "digest", digest), nil)
	if r := l.send("PUT", "/nodes/pve1/qemu/100/config", form("description", "c", "digest", digest)); r.reason != "checksum mismatch (file change by other user?)" {
		t.Errorf("%d %s", r.status, r.reason)
	}
	if r := l.send("PUT", "/nodes/pve1/qemu/100/config", form("description", "d")); string(r.data) != "null" {
		t.Errorf("the synchronous update answers %s", r.data)
	}
	var upid string
	if err := json.Unmarshal(l.send("POST", "/nodes/pve1/qemu/100/config", form("description", "d")).data, &upid); err != nil || !strings.Contains(upid, ":qmconfig:100:") {
		t.Errorf("the other answers %q (%v)", upid, err)
	}
}
