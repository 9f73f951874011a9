// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/luthermonson/go-proxmox"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// TestReleasesDiffer asks every release the same questions.
func TestReleasesDiffer(t *testing.T) {
	for release, want := range map[string]struct {
		importQcow2, importOva string
		message                bool
		agentPrivilege         string
		unknownToken           string
		regenerate             int
		bz2                    bool
	}{
		"8.1": {"content", "content", false, "VM.Monitor", "no such token 'no' for user 'root@pam'", 400, false},
		"8.2": {"content", "content", false, "VM.Monitor", "no such token 'no' for user 'root@pam'", 400, false},
		"8.3": {"ending", "ok", false, "VM.Monitor", "no such token 'no' for user 'root@pam'", 400, true},
		"8.4": {"ok", "ok", true, "VM.Monitor", "no such token 'no' for user 'root@pam'", 400, true},
		"9.0": {"ok", "ok", true, "VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted", "no such token 'no' for user 'root@pam'", 400, true},
		"9.1": {"ok", "ok", true, "VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted", "no such token 'no' for user 'root@pam'", 400, true},
		"9.2": {"ok", "ok", true, "VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted", "Authentication failed!", 200, true},
	} {
		t.Run(release, func(t *testing.T) {
			l := start(t, pvesim.Options{Release: release, Storages: []pvesim.Storage{
				{ID: "local", Type: "dir", Content: []string{"iso"}}, {ID: "local-lvm", Type: "lvmthin", Content: []string{"images"}}}})
			var v struct{ Release, Version string }
			l.ok("GET", "/version", nil, &v)
			if v.Release != release || !strings.HasPrefix(v.Version, release+".") {
				t.Errorf("version %+v", v)
			}
			imports := func(ending string) string {
				r := l.send("PUT", "/storage/local", form("content", "iso,import"))
				if r.errors["content"] != "" {
					return "content"
				}
				r = l.send("POST", download, form("url", "http://127.0.0.1:1/x", "content", "import", "filename", "x"+ending))
				if r.errors["filename"] != "" {
					return "ending"
				}
				return "ok"
			}
			if got := imports(".qcow2"); got != want.importQcow2 {
				t.Errorf("importing qcow2: %s, want %s", got, want.importQcow2)
			}
			if got := imports(".ova"); got != want.importOva {
				t.Errorf("importing ova: %s, want %s", got, want.importOva)
			}
			r := l.send("GET", "/nodes/pve1/qemu/100/config", nil)
			if (r.message != "") != want.message || !strings.Contains(r.reason, "does not exist") {
				t.Errorf("message %q, reason %q", r.message, r.reason)
			}
			capi := l.account("capi@pve")
			if r := capi.send("GET", "/nodes/pve1/qemu/100/agent/get-osinfo", nil); r.reason != "Permission check failed (/vms/100, "+want.agentPrivilege+")" {
				t.Errorf("the agent: %s", r.reason)
			}
			if r := l.as("root@pam!no=x").send("GET", "/version", nil); r.status != 401 || r.reason != want.unknownToken {
				t.Errorf("an unknown token: %d %s", r.status, r.reason)
			}
			if r := l.send("PUT", "/access/users/capi@pve/token/t1", form("regenerate", "1")); r.status != want.regenerate {
				t.Errorf("regenerating: %d %v", r.status, r.errors)
			}
			r = l.send("POST", download, form("url", "http://127.0.0.1:1/x", "content", "iso", "filename", "x.img", "compression", "bz2"))
			if (r.errors["compression"] == "") != want.bz2 {
				t.Errorf("bz2: %v", r.errors)
			}
		})
	}
}

// TestAnUnauthorizedAnswerIsHeldBack moves a clock by hand.
func TestAnUnauthorizedAnswerIsHeldBack(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	l := start(t, pvesim.Options{Clock: clock, Timing: pvesim.Timing{Unauthorized: 3 * time.Second}})
	answer := make(chan reply, 1)
	nobody := l.as("")
	go func() { answer <- nobody.send("GET", "/version", nil) }()
	l.until("the answer is held back", clock.HasWaiters)
	select {
	case r := <-answer:
		t.Fatalf("it came at once: %d", r.status)
	default:
	}
	clock.Step(3 * time.Second)
	if r := <-answer; r.status != http.StatusUnauthorized {
		t.Errorf("status %d", r.status)
	}
}

func TestOptionsThatCannotBeSimulated(t *testing.T) {
	for name, opts := range map[string]pvesim.Options{
		"an unknown release":         {Release: "7.4"},
		"an unknown type of storage": {Storages: []pvesim.Storage{{ID: "x1", Type: "iscsi"}}},
		"an address that is none":    {Address: "256.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := pvesim.Start(t.Context(), opts); err == nil {
				_ = s.Close()
				t.Error("it started")
			}
		})
	}
}

// TestARootLoginImportsAPathOnOlderReleases builds a template the way that is
// left before 8.4: a compressed image that the node unpacks as an ISO image.
func TestARootLoginImportsAPathOnOlderReleases(t *testing.T) {
	_, image := talosFactory(t)
	for _, compression := range []string{"gz", "zst", "xz"} {
		t.Run(compression, func(t *testing.T) {
			b := &guests{}
			l := start(t, pvesim.Options{Release: "8.3", Booter: b})
			c := proxmox.NewClient(l.APIURL(), proxmox.WithHTTPClient(l.http), proxmox.WithEagerAuth(),
				proxmox.WithCredentials(&proxmox.Credentials{Username: "root@pam", Password: pvesim.RootPassword}))
			node := c.NodeRef("pve1")
			// xz passes for zst, which has no name of its own in the table.
			upid, err := node.StorageDownloadURL(t.Context(), &proxmox.StorageDownloadURLOptions{
				URL: strings.Replace(image, "qcow2", "raw."+compression, 1), Content: "iso", Filename: "talos.img", Storage: "local",
				Compression: strings.Replace(compression, "xz", "zst", 1),
			})
			if err != nil {
				t.Fatal(err)
			}
			if exit := l.wait(upid); exit != "OK" {
				t.Fatal(exit)
			}
			task, err := node.NewVirtualMachine(t.Context(), 100,
				proxmox.VirtualMachineOption{Name: "scsi0", Value: "local-lvm:0,import-from=/var/lib/vz/template/iso/talos.img"})
			if err != nil {
				t.Fatal(err)
			}
			waitTask(t, task)
			l.done("POST", "/nodes/pve1/qemu/100/status/start", nil)
			if all := b.all(); len(all) != 1 || !strings.HasSuffix(all[0].vm.TemplateImage, "/v1.13.7/nocloud-amd64") {
				t.Errorf("%d guests", len(all))
			}
		})
	}
}
