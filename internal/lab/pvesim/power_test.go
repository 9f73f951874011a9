// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"os"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

func (l *lab) status(id string) (out struct {
	Status string
	Uptime int
	PID    int
}) {
	l.t.Helper()
	l.ok("GET", "/nodes/pve1/qemu/"+id+"/status/current", nil, &out)
	return out
}

// booted is a lab with machine 100 cloned from a template.
func booted(t *testing.T, opts pvesim.Options) (*lab, *guests) {
	t.Helper()
	b := &guests{}
	opts.Booter = b
	l := start(t, opts)
	_, image := talosFactory(t)
	l.template(image)
	l.done("POST", "/nodes/pve1/qemu/9000/clone", form("newid", "100", "full", "1", "name", "n"))
	return l, b
}

func TestPower(t *testing.T) {
	l, b := booted(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu/100/status/start", nil)
	if st := l.status("100"); st.Status != "running" || st.PID == 0 {
		t.Errorf("status %+v", st)
	}
	g := b.all()[0]
	if g.vm.ID != 100 || g.vm.Name != "n" || g.vm.Node != "pve1" || g.vm.MemoryMiB != 2048 || g.vm.Cores != 1 || len(g.vm.UUID) != 36 || g.vm.Disk == "" {
		t.Errorf("hardware %+v", g.vm)
	}
	if exit := l.task("POST", "/nodes/pve1/qemu/100/status/start", nil); exit != "VM 100 already running" {
		t.Errorf("a second start: %q", exit)
	}
	l.done("POST", "/nodes/pve1/qemu/100/status/shutdown", nil)
	if st := l.status("100"); st.Status != "stopped" || !g.dead() {
		t.Errorf("after the shutdown: %+v, guest dead: %v", st, g.dead())
	}
	l.done("POST", "/nodes/pve1/qemu/100/status/start", nil)
	l.done("POST", "/nodes/pve1/qemu/100/status/reset", nil)
	all := b.all()
	if len(all) != 3 || !all[1].dead() || all[2].vm.Disk != g.vm.Disk {
		t.Fatalf("%d guests; the disk stays the same over restarts", len(all))
	}
	// A guest may power itself off.
	close(all[2].done)
	l.until("the machine is off", func() bool { return l.status("100").Status == "stopped" })
	if exit := l.task("POST", "/nodes/pve1/qemu/100/status/reset", nil); exit != "VM 100 not running" {
		t.Errorf("a reset of a machine that is off: %q", exit)
	}
}

func TestOnlyDisksWithAnImageOfTheFactoryBoot(t *testing.T) {
	l, b := booted(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "200", "scsi0", "local-lvm:8"))
	l.done("POST", "/nodes/pve1/qemu/200/status/start", nil)
	if st := l.status("200"); st.Status != "running" || len(b.all()) != 0 {
		t.Errorf("status %+v, %d guests", st, len(b.all()))
	}
}

func TestAMachineOnAMissingBridgeDoesNotStart(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "net0", "virtio,bridge=vmbr7"))
	if exit := l.task("POST", "/nodes/pve1/qemu/100/status/start", nil); exit != "bridge 'vmbr7' does not exist" {
		t.Errorf("exit %q", exit)
	}
}

// TestAGuestThatDoesNotListenIsShutDownByForceOnly moves a clock by hand.
func TestAGuestThatDoesNotListenIsShutDownByForceOnly(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	l := start(t, pvesim.Options{Clock: clock})
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100"))
	l.done("POST", "/nodes/pve1/qemu/100/status/start", nil)
	shutdown := func(force string) string {
		var upid string
		l.ok("POST", "/nodes/pve1/qemu/100/status/shutdown", form("timeout", "30", "forceStop", force), &upid)
		l.until("the shutdown waits", clock.HasWaiters)
		clock.Step(30 * time.Second)
		return l.wait(upid)
	}
	if exit := shutdown("0"); exit != "VM quit/powerdown failed - got timeout" || l.status("100").Status != "running" {
		t.Errorf("exit %q", exit)
	}
	if exit := shutdown("1"); exit != "OK" || l.status("100").Status != "stopped" {
		t.Errorf("by force: %q", exit)
	}
}

func TestTheAgentAnswersForTheGuest(t *testing.T) {
	l, b := booted(t, pvesim.Options{})
	l.done("POST", "/nodes/pve1/qemu/100/status/start", nil)
	var name struct {
		Result struct {
			Host string `json:"host-name"`
		}
	}
	l.ok("GET", "/nodes/pve1/qemu/100/agent/get-host-name", nil, &name)
	var ifaces struct {
		Result []struct {
			Name      string
			Addresses []struct {
				Address string `json:"ip-address"`
				Prefix  int
			} `json:"ip-addresses"`
		}
	}
	l.ok("GET", "/nodes/pve1/qemu/100/agent/network-get-interfaces", nil, &ifaces)
	if name.Result.Host != "node-1" || ifaces.Result[1].Addresses[0].Address != "127.0.9.160" || ifaces.Result[1].Addresses[0].Prefix != 24 {
		t.Errorf("host name %q, interfaces %+v", name.Result.Host, ifaces.Result)
	}
	b.all()[0].agent = false
	if r := l.send("GET", "/nodes/pve1/qemu/100/agent/get-osinfo", nil); r.reason != "QEMU guest agent is not running" {
		t.Errorf("%d %s", r.status, r.reason)
	}
}

func TestAClusterComesBackFromItsFolder(t *testing.T) {
	opts := pvesim.Options{Dir: t.TempDir()}
	l, b := booted(t, opts)
	l.account("capi@pve", "/", "PVEAuditor")
	l.done("POST", "/nodes/pve1/qemu/100/status/start", nil)
	ca, before := string(l.CA()), l.Summary()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if !b.all()[0].dead() {
		t.Error("the guest outlives the cluster")
	}
	opts.Booter = b
	opts.Address = strings.TrimPrefix(l.URL(), "https://")
	s, err := pvesim.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	again := &lab{Simulator: s, t: t, http: httpClient(t, s), token: l.token}
	again.until("machine 100 runs again", func() bool { return len(b.all()) == 2 })
	if got := b.all()[1].vm; got.Disk != b.all()[0].vm.Disk || got.UUID != b.all()[0].vm.UUID {
		t.Errorf("another machine came back: %+v", got)
	}
	if after := again.Summary(); string(s.CA()) != ca || len(after.VMs) != len(before.VMs) || strings.Join(after.Files, " ") != strings.Join(before.Files, " ") ||
		strings.Join(after.Tokens, " ") != strings.Join(before.Tokens, " ") {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
}

// TestAClusterThatDiedInTheMiddleComesBackClean ends the cluster while a machine
// is being cloned.
func TestAClusterThatDiedInTheMiddleComesBackClean(t *testing.T) {
	opts := pvesim.Options{Dir: t.TempDir(), Timing: pvesim.Timing{Clone: time.Hour}}
	l := start(t, opts)
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "scsi0", "local-lvm:8"))
	var upid string
	l.ok("POST", "/nodes/pve1/qemu/100/clone", form("newid", "101", "full", "1"), &upid)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := pvesim.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	again := &lab{Simulator: s, t: t, http: httpClient(t, s), token: l.token}
	if _, ok := again.vm(101); ok {
		t.Error("half a clone came back")
	}
	if exit := again.wait(upid); exit != "interrupted by signal" {
		t.Errorf("its task ended with %q", exit)
	}
}

// TestMachinesRunAgainAfterACrash starts a cluster from a copy of the folder of
// one that still runs, which is what a killed one leaves.
func TestMachinesRunAgainAfterACrash(t *testing.T) {
	dir, crashed := t.TempDir(), t.TempDir()
	l, _ := booted(t, pvesim.Options{Dir: dir})
	l.done("POST", "/nodes/pve1/qemu/9000/clone", form("newid", "101", "full", "1"))
	for _, call := range []string{"100/status/start", "101/status/start", "101/status/stop"} {
		l.done("POST", "/nodes/pve1/qemu/"+call, nil)
	}
	if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	again := &guests{}
	s, err := pvesim.Start(t.Context(), pvesim.Options{Dir: crashed, Booter: again})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	l.until("machine 100 runs again", func() bool { return len(again.all()) == 1 })
	for _, m := range s.Summary().VMs {
		if m.Running != (m.ID == 100) {
			t.Errorf("machine %d runs: %v", m.ID, m.Running)
		}
	}
}
