// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/luthermonson/go-proxmox"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// answerRow is a call and a part of its answer. In want, an object stands for one
// that has at least these fields, and an array for one that has at least these
// elements.
type answerRow struct {
	method, path string
	params       url.Values
	want         string
}

// answerRows are made one after the other.
var answerRows = []answerRow{
	{"GET", "/access/domains", nil, `[{"realm":"pam","type":"pam"},{"realm":"pve"}]`},
	{"GET", "/nodes", nil, `[{"node":"pve1","id":"node/pve1","type":"node","status":"online","maxcpu":16,"maxmem":68719476736}]`},
	{"GET", "/nodes/pve1/version", nil, `{"release":"9.2"}`},
	{"GET", "/nodes/pve1/network", nil, `[{"iface":"vmbr0","type":"bridge","active":1}]`},
	{"GET", "/cluster/status", nil, `[{"type":"cluster","quorate":1,"nodes":2},{"type":"node","name":"pve1","online":1,"local":1},{"name":"pve2","online":0}]`},

	{"POST", "/access/groups", form("groupid", "team", "comment", "c"), `null`},
	{"POST", "/access/users", form("userid", "ann@pve", "groups", "team", "email", "a@example.invalid", "expire", "2000000000"), `null`},
	{"GET", "/access/users/ann@pve", nil, `{"enable":1,"expire":2000000000,"groups":["team"],"email":"a@example.invalid"}`},
	{"PUT", "/access/users/ann@pve", form("email", ""), `null`},
	{"POST", "/access/users/ann@pve/token/t1", form("comment", "x"), `{"full-tokenid":"ann@pve!t1","info":{"privsep":"1","comment":"x"}}`},
	{"GET", "/access/users/ann@pve/token", nil, `[{"tokenid":"t1","privsep":1,"expire":0,"comment":"x"}]`},
	{"GET", "/access/users", form("full", "1"), `[{"userid":"ann@pve","groups":"team","realm-type":"pve","tokens":[{"tokenid":"t1"}]},{"userid":"root@pam"}]`},
	{"PUT", "/access/users/ann@pve/token/t1", form("delete", "comment"), `{"privsep":1}`},
	{"GET", "/access/groups", nil, `[{"groupid":"team","comment":"c","users":"ann@pve"}]`},
	{"GET", "/access/groups/team", nil, `{"members":["ann@pve"]}`},
	{"DELETE", "/access/groups/team", nil, `null`},
	{"GET", "/access/users/ann@pve", nil, `{"groups":[]}`},
	{"GET", "/access/roles", nil, `[{"roleid":"PVETemplateUser","privs":"VM.Audit,VM.Clone","special":1}]`},
	{"POST", "/access/roles", form("roleid", "R", "privs", "VM.Clone VM.Audit"), `null`},
	{"PUT", "/access/roles/R", form("privs", "Sys.Audit", "append", "1"), `null`},
	{"GET", "/access/roles/R", nil, `{"VM.Clone":1,"VM.Audit":1,"Sys.Audit":1}`},
	{"DELETE", "/access/roles/R", nil, `null`},

	{"POST", "/storage", form("storage", "more", "type", "dir", "path", "/srv", "content", "images,iso"), `{"storage":"more","type":"dir"}`},
	{"GET", "/storage/more", nil, `{"storage":"more","content":"images,iso"}`},
	{"PUT", "/storage/more", form("content", "images", "nodes", "pve1"), `{"storage":"more"}`},
	{"GET", "/storage", form("type", "dir"), `[{"storage":"more","content":"images","nodes":"pve1"}]`},
	{"GET", "/nodes/pve1/storage", form("content", "images"), `[{"storage":"more","active":1,"enabled":1,"shared":0}]`},
	{"GET", "/nodes/pve1/storage/more", nil, `[{"subdir":"content"}]`},
	{"GET", "/nodes/pve1/storage/more/status", nil, `{"type":"dir","content":"images","used":0}`},

	{"GET", "/nodes/pve1/qemu/100", nil, `[{"subdir":"config"}]`},
	{"GET", "/nodes/pve1/qemu/100/feature", form("feature", "snapshot"), `{"hasFeature":1,"nodes":["pve1"]}`},
	{"GET", "/nodes/pve1/qemu/100/feature", form("feature", "clone"), `{"hasFeature":0,"nodes":[]}`},
	{"GET", "/nodes/pve1/qemu", nil, `[{"vmid":100,"name":"VM 100","status":"stopped","cpus":1,"maxdisk":8589934592}]`},
	{"GET", "/nodes/pve1/lxc", nil, `[]`},
	{"GET", "/nodes/pve1/storage/local-lvm/content", nil, `[{"volid":"local-lvm:vm-100-disk-0","format":"raw","size":8589934592,"content":"images","vmid":100}]`},
	{"GET", "/nodes/pve1/storage/local-lvm/content/local-lvm:vm-100-disk-0", nil, `{"path":"/dev/local-lvm/vm-100-disk-0","format":"raw","size":8589934592}`},

	{"POST", "/pools", form("poolid", "p", "comment", "c"), `null`},
	{"PUT", "/pools/p", form("vms", "100"), `null`},
	{"GET", "/pools", nil, `[{"poolid":"p","comment":"c"}]`},
	{"GET", "/pools", form("poolid", "p"), `[{"poolid":"p","members":[{"id":"qemu/100","type":"qemu","vmid":100,"node":"pve1"}]}]`},
	{"GET", "/cluster/resources", nil, `[{"id":"/pool/p","type":"pool"},{"id":"qemu/100","type":"qemu","vmid":100,"pool":"p","template":0},
		{"id":"node/pve1","type":"node"},{"id":"storage/pve1/local","type":"storage","plugintype":"dir","shared":0},{"type":"sdn","sdn":"localnetwork"}]`},
	{"PUT", "/pools/p", form("vms", "100", "delete", "1"), `null`},
	{"DELETE", "/pools/p", nil, `null`},
	{"DELETE", "/storage/more", nil, `null`},
	{"GET", "/cluster/tasks", nil, `[{"node":"pve1","type":"qmcreate","id":"100","user":"root@pam","tokenid":"test","status":"OK"}]`},
	{"GET", "/nodes/pve1/tasks", form("typefilter", "qmcreate", "vmid", "100", "source", "all"), `[{"type":"qmcreate","status":"OK"}]`},
	{"GET", "/nodes/pve1/tasks", form("errors", "1"), `[]`},
	{"GET", "/nodes/pve1/tasks", form("source", "active"), `[]`},
}

func TestAnswersHaveProxmoxsShapeAndTypes(t *testing.T) {
	l := start(t, pvesim.Options{Nodes: []pvesim.Node{{Name: "pve1"}, {Name: "pve2"}}})
	l.SetNodeOffline("pve2", true)
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "100", "scsi0", "local-lvm:8"))
	for _, row := range answerRows {
		t.Run(row.method+" "+row.path, func(t *testing.T) {
			here := &lab{Simulator: l.Simulator, t: t, http: l.http, token: l.token}
			r := here.send(row.method, row.path, row.params)
			if r.status != 200 {
				t.Fatalf("%d %s %v", r.status, r.reason, r.errors)
			}
			var got, want any
			if err := json.Unmarshal(r.data, &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(row.want), &want); err != nil {
				t.Fatal(err)
			}
			if text := lacks(got, want); text != "" {
				t.Errorf("%s\nin %s", text, r.data)
			}
		})
	}
}

// lacks says what of want is not in got, "" for nothing. An empty array is an
// empty array.
func lacks(got, want any) string {
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%v is no object", got)
		}
		for k, v := range want {
			if text := lacks(object[k], v); text != "" {
				return k + ": " + text
			}
		}
		return ""
	case []any:
		list, ok := got.([]any)
		if !ok || len(want) == 0 && len(list) != 0 {
			return fmt.Sprintf("%v is no such list", got)
		}
		for _, v := range want {
			found := false
			for _, e := range list {
				found = found || lacks(e, v) == ""
			}
			if !found {
				return fmt.Sprintf("no element is like %v", v)
			}
		}
		return ""
	}
	if got != want {
		return fmt.Sprintf("%v (%T), want %v", got, got, want)
	}
	return ""
}

// TestTheClientsTypesDecode reads what the table above does not through the
// types of the library that the provider uses.
func TestTheClientsTypesDecode(t *testing.T) {
	l, _ := booted(t, pvesim.Options{})
	c, ctx := l.client(), t.Context()
	nodes, err := c.Nodes(ctx)
	if err != nil || len(nodes) != 1 || nodes[0].MaxMem == 0 {
		t.Errorf("nodes %+v: %v", nodes, err)
	}
	node, err := c.Node(ctx, "pve1")
	if err != nil || node.CPUInfo.CPUs != 16 || node.RootFS.Total == 0 {
		t.Fatalf("node %+v: %v", node, err)
	}
	storages, err := node.Storages(ctx)
	if err != nil || len(storages) != 2 || storages[0].Total == 0 {
		t.Errorf("storages %+v: %v", storages, err)
	}
	users, err := c.Users(ctx)
	if err != nil || len(users) != 1 || !bool(users[0].Enable) {
		t.Errorf("users %+v: %v", users, err)
	}
	acls, err := c.ACL(ctx)
	if err != nil || len(acls) != 0 {
		t.Errorf("ACL %+v: %v", acls, err)
	}
	privs, err := c.Permissions(ctx, &proxmox.PermissionsOptions{Path: "/vms/100"})
	if err != nil || !bool(privs["/vms/100"]["VM.Allocate"]) {
		t.Errorf("permissions %+v: %v", privs, err)
	}
	vm, err := node.VirtualMachine(ctx, 100)
	if err != nil || vm.MaxDisk == 0 || vm.VirtualMachineConfig.Digest == "" {
		t.Fatalf("machine %+v: %v", vm, err)
	}
	task, err := vm.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	waitTask(t, task)
	if task, err = vm.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	waitTask(t, task)
	if task, err = vm.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	waitTask(t, task)
	if _, err := vm.AgentExec(ctx, []string{"cloud-init", "status"}, ""); err == nil || !strings.Contains(err.Error(), "The command guest-exec has not been found") {
		t.Errorf("a program in Talos: %v", err)
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := cluster.Tasks(ctx)
	if err != nil || len(tasks) == 0 || tasks[0].StartTime.IsZero() {
		t.Errorf("tasks %+v: %v", tasks, err)
	}
}
