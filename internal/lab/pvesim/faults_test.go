// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// cut makes a call whose connection is expected to be cut.
func (l *lab) cut(method, path string) bool {
	l.t.Helper()
	req := request(l.t, method, l.APIURL()+path)
	req.Header.Set("Authorization", "PVEAPIToken="+l.token)
	resp, err := l.http.Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return err != nil
}

func TestAFaultStrikesTheCallsThatItNames(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.Inject(
		pvesim.Fault{Method: "GET", Path: "/nodes/*/qemu", Nth: 2, Times: 2, Status: 500, Message: "got lock timeout\nmore"},
		pvesim.Fault{Path: "/cluster/nextid", Status: 595, Message: "No route to host"},
		pvesim.Fault{Path: "/cluster/nextid", Body: `{"data":"next"}`, Times: -1},
	)
	for i, want := range []int{200, 500, 500, 200} {
		r := l.send("GET", "/nodes/pve1/qemu", nil)
		if r.status != want || (want == 500 && (r.reason != "got lock timeout" || r.message != "got lock timeout\nmore\n")) {
			t.Errorf("call %d: %d %q %q, want %d", i+1, r.status, r.reason, r.message, want)
		}
	}
	if r := l.send("GET", "/nodes/pve1/storage", nil); r.status != 200 {
		t.Errorf("another call is struck: %d", r.status)
	}
	if r := l.send("GET", "/cluster/nextid", nil); r.status != 595 || r.reason != "No route to host" || r.message != "" {
		t.Errorf("the first rule: %+v", r)
	}
	for range 2 {
		if r := l.send("GET", "/cluster/nextid", nil); string(r.data) != `"next"` {
			t.Errorf("the second rule: %s", r.data)
		}
	}
	if struck := l.ClearFaults(); struck != 5 {
		t.Errorf("%d calls were struck, want 5", struck)
	}
	if r := l.send("GET", "/cluster/nextid", nil); string(r.data) != `"100"` {
		t.Errorf("after all: %s", r.data)
	}
}

func TestACutCallIsCarriedOutOrNot(t *testing.T) {
	l := start(t, pvesim.Options{})
	for _, tc := range []struct {
		cut  pvesim.Cut
		want int
	}{{pvesim.CutBefore, 200}, {pvesim.CutAfter, 500}} {
		l.send("POST", "/pools", form("poolid", "p1"))
		l.Inject(pvesim.Fault{Method: "DELETE", Path: "/pools/*", Cut: tc.cut})
		if !l.cut("DELETE", "/pools/p1") {
			t.Error("the call was answered")
		}
		if r := l.send("GET", "/pools/p1", nil); r.status != tc.want {
			t.Errorf("after cut %d the pool answers %d, want %d", tc.cut, r.status, tc.want)
		}
	}
}

func TestAFailingTaskDoesNothing(t *testing.T) {
	l := start(t, pvesim.Options{})
	l.Inject(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu", Task: "it breaks"}, pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/resize", Task: "it breaks too"})
	if exit := l.task("POST", "/nodes/pve1/qemu", form("vmid", "100", "scsi0", "local-lvm:1")); exit != "it breaks" {
		t.Errorf("making a VM: %q", exit)
	}
	if s := l.Summary(); len(s.VMs)+len(s.Files) > 0 {
		t.Errorf("it left %+v", s)
	}
	if exit := l.task("POST", "/nodes/pve1/qemu", form("vmid", "100", "scsi0", "local-lvm:1")); exit != "OK" {
		t.Errorf("making it again: %q", exit)
	}
	if exit := l.task("PUT", "/nodes/pve1/qemu/100/resize", form("disk", "scsi0", "size", "2G")); exit != "it breaks too" {
		t.Errorf("growing its disk: %q", exit)
	}
	var config map[string]any
	l.ok("GET", "/nodes/pve1/qemu/100/config", nil, &config)
	if config["scsi0"] != "local-lvm:vm-100-disk-0,size=1G" {
		t.Errorf("the disk is %v", config["scsi0"])
	}
}

func TestADelayedCallWaitsOnTheClock(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	l := start(t, pvesim.Options{Clock: clock})
	l.Inject(pvesim.Fault{Path: "/version", Delay: time.Minute})
	answer := make(chan reply, 1)
	go func() { answer <- l.send("GET", "/version", nil) }()
	l.until("the call is held back", clock.HasWaiters)
	select {
	case r := <-answer:
		t.Fatalf("it came at once: %d", r.status)
	default:
	}
	clock.Step(time.Minute)
	if r := <-answer; r.status != 200 {
		t.Errorf("status %d", r.status)
	}
}

// Sys.AccessNetwork came with 8.2.
func TestBefore82DownloadsNeedToModifyTheSystem(t *testing.T) {
	for release, want := range map[string]int{"8.1": 403, "8.2": 200, "9.2": 200} {
		l := start(t, pvesim.Options{Release: release})
		l.ok("POST", "/access/roles", form("roleid", "Fetcher", "privs", "Sys.AccessNetwork,Datastore.AllocateTemplate"), nil)
		capi := l.account("capi@pve")
		l.ok("PUT", "/access/acl", form("path", "/", "roles", "Fetcher", "users", "capi@pve"), nil)
		if r := capi.send("POST", download, form("url", "http://127.0.0.1:1/x", "content", "iso", "filename", "x.img")); r.status != want {
			t.Errorf("%s: %d %s", release, r.status, r.reason)
		}
	}
}
