// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// faultRow is a fault and what comes of it: success, where want is empty, or an
// error with each of the texts.
type faultRow struct {
	name   string
	faults []pvesim.Fault
	want   []string
}

const (
	createCall   = "/nodes/pve1/qemu"
	resizeCall   = "/nodes/pve1/qemu/*/resize"
	templateCall = "/nodes/pve1/qemu/*/template"
	configCall   = "/nodes/pve1/qemu/*/config"
	downloadCall = "/nodes/pve1/storage/local/download-url"
	contentCall  = "/nodes/pve1/storage/local/content"
	deleteCall   = "/nodes/pve1/storage/local/content/local:import/*"
	storageCall  = "/nodes/pve1/storage"
	statusCall   = "/nodes/pve1/tasks/*/status"
	tasksCall    = "/nodes/pve1/tasks"
	nextIDCall   = "/cluster/nextid"
)

// lockTimeout is what Proxmox VE answers while another task holds a lock.
const lockTimeout = "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"

func one(f pvesim.Fault) []pvesim.Fault { return []pvesim.Fault{f} }

// faultTable are the faults of a create. Each ends in success by retry, or in a
// diagnostic that says what is wrong.
func faultTable() []faultRow {
	const get, post, put, del = "GET", "POST", "PUT", "DELETE"
	rows := []faultRow{
		{"the login is refused", one(pvesim.Fault{Path: "/version", Status: 401, Message: "Authentication failed!"}),
			[]string{"does not accept the login of root@pam!terraform", "expired or disabled"}},
		{"the version is not JSON", one(pvesim.Fault{Path: "/version", Body: "<html>a proxy's own page</html>", Times: -1}), []string{"asking Proxmox VE at https://", "version"}},
		{"the version is not understood", one(pvesim.Fault{Path: "/version", Body: `{"data":{"version":"next"}}`}), []string{`the version "next" of Proxmox VE is not understood`}},
		{"nothing answers at all", one(pvesim.Fault{Cut: pvesim.CutBefore, Times: -1}), []string{"no answer from Proxmox VE"}},
		{"the node is unreachable for good", one(pvesim.Fault{Path: storageCall, Status: 595, Message: "No route to host", Times: -1}),
			[]string{"listing the storages of node pve1", "cannot reach the node that was asked for"}},
		{"the nodes do not trust each other", one(pvesim.Fault{Path: storageCall, Status: 596, Message: "tls_process_server_certificate: certificate verify failed", Times: -1}),
			[]string{"the nodes do not accept each other's certificates (pvecm updatecerts)"}},
		{"the name of the node has no address", one(pvesim.Fault{Path: storageCall, Status: 500, Message: "hostname lookup 'pve1' failed - failed to get address info for: pve1: Name or service not known"}),
			[]string{"listing the storages of node pve1", "hostname lookup 'pve1' failed"}},
		{"the free id is no number", one(pvesim.Fault{Path: nextIDCall, Body: `{"data":"next"}`}), []string{`the answer "next" is no number`}},
		{"the privileges are kept secret", one(pvesim.Fault{Path: "/access/permissions", Status: 403, Message: "Permission check failed", Times: -1}), nil},

		{"the node may not download", one(pvesim.Fault{Method: post, Path: downloadCall, Status: 403, Message: "Permission check failed"}), nil},
		{"the download is not implemented", one(pvesim.Fault{Method: post, Path: downloadCall, Status: 501, Message: "Method 'POST /nodes/pve1/storage/local/download-url' not implemented"}),
			[]string{"letting node pve1 download", "not implemented"}},
		{"the node's download fails", one(pvesim.Fault{Method: post, Path: downloadCall, Task: "download failed: wget: unable to connect"}), nil},
		{"the downloaded file is another one", one(pvesim.Fault{Method: post, Path: downloadCall, Task: "checksum mismatch: got 'a' != expect 'b', aborting"}), []string{"checksum mismatch"}},
		{"neither download nor upload work", []pvesim.Fault{
			{Method: post, Path: downloadCall, Task: "download failed: no space left on device"},
			{Method: post, Path: "/nodes/pve1/storage/local/upload", Task: "import failed: no space left on device"},
		}, []string{"/var/tmp of the node that answers must have room", "before that", "download failed: no space left on device"}},

		{"the VM cannot be made", one(pvesim.Fault{Method: post, Path: createCall, Task: "unable to create VM 100 - lvcreate 'pve/vm-100-disk-0' error: no space left"}),
			[]string{"creating VM 100 on node pve1", "no space left"}},
		{"the quorum is lost for good", one(pvesim.Fault{Method: post, Path: createCall, Status: 500, Message: "cluster not ready - no quorum?", Times: -1}), []string{"creating VM 100 on node pve1", "no quorum"}},
		{"a privilege is taken away meanwhile", one(pvesim.Fault{Method: post, Path: createCall, Status: 403, Message: "Permission check failed (/vms/100, VM.Config.CPU)"}),
			[]string{"lacks a privilege", "pveum acl modify /vms/100 --tokens 'root@pam!terraform'"}},
		{"a parameter is refused", one(pvesim.Fault{Method: post, Path: createCall, Status: 400, Message: "Parameter verification failed."}), []string{"creating VM 100", "Parameter verification failed"}},
		{"the disk cannot be grown", one(pvesim.Fault{Method: put, Path: resizeCall, Task: "command 'lvextend' failed: exit code 5"}), []string{"resizing the disk of template 100", "lvextend"}},
		{"the conversion fails", one(pvesim.Fault{Method: post, Path: templateCall, Task: "command 'lvrename' failed: exit code 5"}), []string{"converting template 100", "lvrename"}},
		{"the VM was started by somebody", one(pvesim.Fault{Method: post, Path: templateCall, Status: 500, Message: "you can't convert a VM to template if VM is running"}),
			[]string{"converting template 100", "if VM is running"}},
		{"the VM was given a snapshot", one(pvesim.Fault{Method: post, Path: templateCall, Status: 500, Message: "unable to create template, because VM contains snapshots"}),
			[]string{"converting template 100", "contains snapshots"}},
		{"the VM is changed at the same time", one(pvesim.Fault{Method: put, Path: configCall, Status: 500, Message: "checksum mismatch (file change by other user?)", Times: -1}), []string{"marking template 100", "file change by other user"}},
		{"the image file may not be deleted", one(pvesim.Fault{Method: del, Path: deleteCall, Status: 403, Message: "Permission check failed (/storage/local, Datastore.Allocate)", Times: -1}), nil},
		{"the image file cannot be deleted", one(pvesim.Fault{Method: del, Path: deleteCall, Task: "can't unlink 'local:import/x': Input/output error"}), []string{"deleting the image file local:import/", "Input/output error"}},
	}
	// What passes at the second try, at every call that is made.
	calls := []struct{ method, path, what string }{
		{get, "/version", "asking for the version"}, {get, storageCall, "listing the storages"}, {get, tasksCall, "listing the tasks"},
		{get, "/nodes/pve1/qemu", "listing the VMs"}, {get, nextIDCall, "asking for an id"}, {get, "/access/permissions", "asking for the privileges"},
		{get, contentCall, "listing the files"}, {get, statusCall, "looking at a task"}, {get, configCall, "reading the VM"},
		{post, downloadCall, "starting the download"}, {post, createCall, "making the VM"}, {put, resizeCall, "growing the disk"}, {post, templateCall, "converting"},
		{put, configCall, "marking"}, {del, deleteCall, "deleting the file"},
	}
	passing := []struct {
		what  string
		fault pvesim.Fault
	}{
		{"is cut before it is carried out", pvesim.Fault{Cut: pvesim.CutBefore}},
		{"is carried out and its answer lost", pvesim.Fault{Cut: pvesim.CutAfter}},
		{"does not reach the node", pvesim.Fault{Status: 595, Message: "Connection refused"}},
		{"gets no answer of the node", pvesim.Fault{Status: 596, Message: "Connection timed out"}},
		{"meets a proxy that is restarting", pvesim.Fault{Status: 503, Message: "Service Unavailable", Times: 2}},
		{"meets a lock", pvesim.Fault{Status: 500, Message: lockTimeout, Times: 3}},
		{"meets a cluster without a quorum for a moment", pvesim.Fault{Status: 500, Message: "cluster not ready - no quorum?", Times: 2}},
		{"takes its time", pvesim.Fault{Delay: 20 * time.Millisecond, Times: -1}},
	}
	for _, call := range calls {
		for _, p := range passing {
			fault := p.fault
			fault.Method, fault.Path = call.method, call.path
			rows = append(rows, faultRow{call.what + " " + p.what, one(fault), nil})
		}
	}
	return rows
}

func TestEveryFaultEndsWellOrIsExplained(t *testing.T) {
	rows := faultTable()
	if len(rows) < 40 {
		t.Fatalf("only %d rows", len(rows))
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.sim.Inject(row.faults...)
			instance := uuid.NewString()
			made, err := r.client().EnsureTemplate(t.Context(), r.spec(), instance, nil, func(Template) {})
			if struck := r.sim.ClearFaults(); struck == 0 {
				t.Fatal("the fault struck nothing")
			}
			if len(row.want) > 0 {
				if err == nil {
					t.Fatal("no error")
				}
				for _, want := range row.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("the error has no %q: %v", want, err)
					}
				}
				if strings.Contains(err.Error(), r.secret) {
					t.Errorf("the error tells the secret: %v", err)
				}
				// The next run goes on from whatever is there.
				instance = uuid.NewString()
				made, err = r.client().EnsureTemplate(t.Context(), r.spec(), instance, nil, func(Template) {})
			}
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(row.name, "may not be deleted") {
				if left := r.imports(); len(left) != 1 {
					t.Errorf("image files: %v, want the one that may not be deleted", left)
				}
				return
			}
			r.exactlyOne(made, instance)
		})
	}
}

// Before 8.4 the text of an error is in the reason phrase alone.
func TestOlderReleasesAreUnderstoodByTheirReasonPhrases(t *testing.T) {
	for _, row := range []faultRow{
		{"a lock", one(pvesim.Fault{Method: "POST", Path: templateCall, Status: 500, Message: lockTimeout, Times: 2}), nil},
		{"an id that was taken", one(pvesim.Fault{Method: "POST", Path: createCall, Status: 500, Message: "unable to create VM 100 - VM 100 already exists on node 'pve1'"}), nil},
		{"a full storage", one(pvesim.Fault{Method: "POST", Path: createCall, Status: 500, Message: "storage 'local-lvm' is full"}), []string{"storage 'local-lvm' is full"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t, func(o *pvesim.Options) { o.Release = "8.3"; isoOnly(o) })
			r.sim.Inject(row.faults...)
			made, err := r.root().EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {})
			if r.sim.ClearFaults() == 0 {
				t.Fatal("the fault struck nothing")
			}
			if len(row.want) > 0 {
				if err == nil || !strings.Contains(err.Error(), row.want[0]) {
					t.Errorf("error is %v, want one with %q", err, row.want[0])
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r.exactlyOne(made, made.Instance)
		})
	}
}
