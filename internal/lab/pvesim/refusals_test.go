// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

const (
	failed    = "Parameter verification failed."
	undefined = "property is not defined in schema and the schema does not allow additional properties"
	missing   = "property is missing and it is not optional"
)

// refusalRow is one call that is refused, and how.
type refusalRow struct {
	name         string
	method, path string
	params       url.Values
	who          string // "" is root's token
	status       int
	reason       string
	errors       map[string]string
}

// one is the answer about one parameter.
func one(name, text string) map[string]string { return map[string]string{name: text} }

var refusalRows = []refusalRow{
	// Schema
	{"an unknown parameter", "POST", "/nodes/pve1/qemu", form("vmid", "200", "diskz", "1"), "", 400, failed, one("diskz", undefined)},
	{"an unknown query parameter", "GET", "/version", form("x", "1"), "", 400, failed, one("x", undefined)},
	{"a missing parameter", "POST", "/nodes/pve1/qemu/9000/clone", form("name", "x"), "", 400, failed, one("newid", missing)},
	{"a number that is none", "POST", "/nodes/pve1/qemu", form("vmid", "200", "cores", "many"), "", 400, failed, one("cores", "type check ('integer') failed - got 'many'")},
	{"a number below the minimum", "POST", "/nodes/pve1/qemu", form("vmid", "200", "cores", "0"), "", 400, failed, one("cores", "value must have a minimum value of 1")},
	{"a boolean that is none", "POST", "/nodes/pve1/qemu", form("vmid", "200", "onboot", "maybe"), "", 400, failed, one("onboot", "type check ('boolean') failed - got 'maybe'")},
	{"a value outside the enumeration", "GET", "/cluster/resources", form("type", "lxc"), "", 400, failed, one("type", "value 'lxc' does not have a value in the enumeration 'vm, storage, node, sdn'")},
	{"a VM id below 100", "POST", "/nodes/pve1/qemu", form("vmid", "99"), "", 400, failed, one("vmid", "invalid format - value does not look like a valid VM ID\n")},
	{"a bad name", "POST", "/nodes/pve1/qemu", form("vmid", "200", "name", "under_score"), "", 400, failed, one("name", "invalid format - value does not look like a valid DNS name\n")},
	{"a bad tag", "POST", "/nodes/pve1/qemu", form("vmid", "200", "tags", "a;b!"), "", 400, failed, one("tags", "invalid format - invalid characters in tag\n")},
	{"an unknown key of a disk", "POST", "/nodes/pve1/qemu", form("vmid", "200", "scsi0", "local-lvm:8,fast=1"), "", 400, failed,
		one("scsi0", "invalid format - format error\nscsi0.fast: "+undefined+"\n")},
	{"a network device without a model", "POST", "/nodes/pve1/qemu", form("vmid", "200", "net0", "bridge=vmbr0"), "", 400, failed,
		one("net0", "invalid format - format error\nnet0.model: "+missing+"\n")},
	{"a disk beyond the last controller", "POST", "/nodes/pve1/qemu", form("vmid", "200", "scsi31", "local-lvm:8"), "", 400, failed, one("scsi31", undefined)},
	{"a path parameter given again with another value", "POST", "/nodes/pve1/qemu/9000/template", form("vmid", "9001"), "", 400, failed,
		one("vmid", "duplicate parameter (already defined in URI) with conflicting values!")},

	// Paths
	{"a path that does not exist", "GET", "/nodes/pve1/nope", nil, "", 501, "Method 'GET /nodes/pve1/nope' not implemented", nil},
	{"a method that does not exist", "DELETE", "/version", nil, "", 501, "Method 'DELETE /version' not implemented", nil},
	{"an unknown node", "GET", "/nodes/pve9/status", nil, "", 500, "hostname lookup 'pve9' failed - failed to get address info for: pve9: Name or service not known", nil},
	{"a node that is off", "GET", "/nodes/pve2/status", nil, "", 595, "No route to host", nil},

	// Machines
	{"a machine that does not exist", "GET", "/nodes/pve1/qemu/300/config", nil, "", 500, "Configuration file 'nodes/pve1/qemu-server/300.conf' does not exist", nil},
	{"an id that is taken", "POST", "/nodes/pve1/qemu", form("vmid", "9000"), "", 500, "unable to create VM 9000 - VM 9000 already exists on node 'pve1'", nil},
	{"asking for an id that is taken", "GET", "/cluster/nextid", form("vmid", "9000"), "", 400, failed, one("vmid", "VM 9000 already exists")},
	{"an import with a size", "POST", "/nodes/pve1/qemu", form("vmid", "200", "scsi0", "local-lvm:8,import-from=local:import/talos.qcow2"), "", 400, failed,
		one("scsi0", "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")},
	{"an import of an ISO image", "POST", "/nodes/pve1/qemu", form("vmid", "200", "scsi0", "local-lvm:0,import-from=local:iso/x.img"), "", 400, failed,
		one("scsi0", "local:iso/x.img has wrong type 'iso' - needs to be 'images' or 'import'")},
	{"an import of a path by a token of root", "POST", "/nodes/pve1/qemu", form("vmid", "200", "scsi0", "local-lvm:0,import-from=/tmp/x.img"), "", 500,
		"Only root can pass arbitrary filesystem paths.", nil},
	{"a disk on a storage for files", "POST", "/nodes/pve1/qemu", form("vmid", "200", "scsi0", "local:8"), "", 400, failed,
		one("storage", "storage 'local' does not support vm images")},
	{"a disk on a storage that does not exist", "POST", "/nodes/pve1/qemu", form("vmid", "200", "scsi0", "nope:8"), "", 500, "storage 'nope' does not exist", nil},
	{"an option for root alone", "POST", "/nodes/pve1/qemu", form("vmid", "200", "args", "-version"), "", 500, "only root can set 'args' config", nil},
	{"a pool that does not exist", "POST", "/nodes/pve1/qemu", form("vmid", "200", "pool", "nope"), "", 500, "pool 'nope' does not exist", nil},
	{"a template of a template", "POST", "/nodes/pve1/qemu/9000/template", nil, "", 500, "you can't convert a template to a template", nil},
	{"a linked clone on another storage", "POST", "/nodes/pve1/qemu/9000/clone", form("newid", "200", "storage", "local-lvm"), "", 500, "parameter 'storage' not allowed for linked clones", nil},
	{"a linked clone in another format", "POST", "/nodes/pve1/qemu/9000/clone", form("newid", "200", "format", "raw"), "", 500, "parameter 'format' not allowed for linked clones", nil},
	{"a clone for another node from local storage", "POST", "/nodes/pve1/qemu/9000/clone", form("newid", "200", "full", "1", "target", "pve2"), "", 500,
		"can't clone VM to node 'pve2' (VM uses local storage)", nil},
	{"a clone with an id that is taken", "POST", "/nodes/pve1/qemu/9000/clone", form("newid", "9000"), "", 500, "unable to create VM 9000: config file already exists", nil},
	{"no options", "PUT", "/nodes/pve1/qemu/9000/config", nil, "", 500, "no options specified", nil},
	{"a wrong digest", "PUT", "/nodes/pve1/qemu/9000/config", form("name", "x", "digest", strings.Repeat("0", 40)), "", 500, "checksum mismatch (file change by other user?)", nil},
	{"a boot order of what is not there", "PUT", "/nodes/pve1/qemu/9000/config", form("boot", "order=scsi5"), "", 500, "invalid bootorder: device 'scsi5' does not exist'", nil},
	{"a resize of a disk that is not there", "PUT", "/nodes/pve1/qemu/9000/resize", form("disk", "scsi7", "size", "20G"), "", 500, "disk 'scsi7' does not exist", nil},
	{"the agent of a machine without one", "GET", "/nodes/pve1/qemu/101/agent/get-osinfo", nil, "", 500, "No QEMU guest agent configured", nil},
	{"the agent of a machine that is off", "GET", "/nodes/pve1/qemu/9000/agent/get-osinfo", nil, "", 500, "VM 9000 is not running", nil},
	{"the agent of a machine without a guest", "GET", "/nodes/pve1/qemu/102/agent/get-osinfo", nil, "", 500, "QEMU guest agent is not running", nil},
	{"deleting a protected machine", "DELETE", "/nodes/pve1/qemu/103", nil, "", 500, "can't remove VM 103 - protection mode enabled", nil},
	{"deleting a running machine", "DELETE", "/nodes/pve1/qemu/102", nil, "", 500, "VM 102 is running - destroy failed", nil},

	// Storages
	{"a download to a storage of disks", "POST", "/nodes/pve1/storage/local-lvm/download-url", form("url", "http://x/y.qcow2", "content", "import", "filename", "y.qcow2"), "", 500,
		"can't upload to storage type 'lvmthin', not a file based storage!", nil},
	{"a download of content that the storage does not hold", "POST", "/nodes/pve1/storage/isos/download-url", form("url", "http://x/y.qcow2", "content", "import", "filename", "y.qcow2"), "", 500,
		"storage 'isos' is not configured for content-type 'import'", nil},
	{"a download with a wrong ending", "POST", "/nodes/pve1/storage/local/download-url", form("url", "http://x/y.xz", "content", "import", "filename", "y.raw.xz"), "", 400, failed, one("filename", "wrong file extension")},
	{"a download that unpacks xz", "POST", "/nodes/pve1/storage/local/download-url", form("url", "http://x/y", "content", "iso", "filename", "y.img", "compression", "xz"), "", 400, failed,
		one("compression", "value 'xz' does not have a value in the enumeration 'gz, lzo, zst, bz2'")},
	{"a checksum without its algorithm", "POST", "/nodes/pve1/storage/local/download-url", form("url", "http://x/y", "content", "iso", "filename", "y.img", "checksum", "00"), "", 400, failed,
		one("checksum-algorithm", "missing property required by 'checksum'")},
	{"a download from what is no URL", "POST", "/nodes/pve1/storage/local/download-url", form("url", "ftp://x/y", "content", "iso", "filename", "y.img"), "", 400, failed, one("url", "value does not match the regex pattern")},
	{"a storage that does not exist", "GET", "/nodes/pve1/storage/nope/content", nil, "", 500, "storage 'nope' does not exist", nil},
	{"a disabled storage", "GET", "/nodes/pve1/storage/off/content", nil, "", 500, "storage 'off' is disabled", nil},

	// Users, roles, tokens
	{"a user that exists", "POST", "/access/users", form("userid", "capi@pve"), "", 500, "create user failed: user 'capi@pve' already exists", nil},
	{"a user without a realm", "POST", "/access/users", form("userid", "capi"), "", 400, failed, one("userid", "invalid format - value 'capi' does not look like a valid user name\n")},
	{"a password in an unknown realm", "POST", "/access/users", form("userid", "x@nope", "password", "12345678"), "", 500, "create user failed: auth domain 'nope' does not exist", nil},
	{"a user that does not exist", "GET", "/access/users/x@pve", nil, "", 500, "no such user ('x@pve')", nil},
	{"an update of a user that does not exist", "PUT", "/access/users/x@pve", form("comment", "c"), "", 500, "update user failed: no such user ('x@pve')", nil},
	{"a token that exists", "POST", "/access/users/capi@pve/token/t1", nil, "", 400, failed, one("tokenid", "Token already exists.")},
	{"a token of a user that does not exist", "POST", "/access/users/x@pve/token/t1", nil, "", 500, "no such user ('x@pve')", nil},
	{"a token that does not exist", "GET", "/access/users/capi@pve/token/t2", nil, "", 500, "no such token 't2' for user 'capi@pve'", nil},
	{"an access rule for nobody", "PUT", "/access/acl", form("path", "/", "roles", "PVEAuditor"), "", 400, failed, map[string]string{
		"users": "either 'users', 'groups' or 'tokens' is required.", "groups": "either 'users', 'groups' or 'tokens' is required.", "tokens": "either 'users', 'groups' or 'tokens' is required."}},
	{"an access rule on a bad path", "PUT", "/access/acl", form("path", "/nope", "roles", "PVEAuditor", "users", "capi@pve"), "", 400, failed, one("path", "invalid ACL path '/nope'")},
	{"an access rule with an unknown role", "PUT", "/access/acl", form("path", "/", "roles", "nope", "users", "capi@pve"), "", 500, "ACL update failed: role 'nope' does not exist", nil},
	{"an access rule for an unknown user", "PUT", "/access/acl", form("path", "/", "roles", "PVEAuditor", "users", "x@pve"), "", 500, "ACL update failed: user 'x@pve' does not exist", nil},
	{"an access rule for an unknown token", "PUT", "/access/acl", form("path", "/", "roles", "PVEAuditor", "tokens", "capi@pve!no"), "", 500, "ACL update failed: no such token 'no' for user 'capi@pve'", nil},
	{"a role with a reserved name", "POST", "/access/roles", form("roleid", "PVECapi"), "", 400, failed, one("roleid", "cannot use role ID starting with the (case-insensitive) 'PVE' namespace")},
	{"a role that exists", "POST", "/access/roles", form("roleid", "Capi"), "", 500, "create role failed: role 'Capi' already exists", nil},
	{"a privilege that is gone", "POST", "/access/roles", form("roleid", "X", "privs", "VM.Monitor"), "", 400, failed, one("privs", "invalid format - invalid privilege 'VM.Monitor'\n")},
	{"a change of a built-in role", "PUT", "/access/roles/PVEAuditor", form("privs", "Sys.Audit"), "", 500, "auto-generated role 'PVEAuditor' cannot be modified", nil},

	// Tasks
	{"an unknown task", "GET", "/nodes/pve1/tasks/UPID:pve1:00000001:00000001:00000001:x::root@pam:/status", nil, "", 400, failed, one("upid", "no such task")},
	{"a task that is none", "GET", "/nodes/pve1/tasks/nonsense/status", nil, "", 400, failed, one("upid", "unable to parse worker upid")},

	// Privileges
	{"the cluster's state without Sys.Audit", "GET", "/cluster/status", nil, "poor", 403, "Permission check failed (/, Sys.Audit)", nil},
	{"a machine's configuration without VM.Audit", "GET", "/nodes/pve1/qemu/9000/config", nil, "poor", 403, "Permission check failed (/vms/9000, VM.Audit)", nil},
	{"privileges before parameters", "POST", "/nodes/pve1/qemu/9000/status/start", form("nonsense", "1"), "poor", 403, "Permission check failed (/vms/9000, VM.PowerMgmt)", nil},
	{"a new machine without VM.Allocate", "POST", "/nodes/pve1/qemu", form("vmid", "200"), "poor", 403, "Permission check failed", nil},
	{"a clone without VM.Allocate", "POST", "/nodes/pve1/qemu/9000/clone", form("newid", "200"), "cloner", 403, "Permission check failed", nil},
	{"a download without Datastore.AllocateTemplate", "POST", "/nodes/pve1/storage/local/download-url", nil, "poor", 403, "Permission check failed (/storage/local, Datastore.AllocateTemplate)", nil},
	{"a download with the article's roles", "POST", "/nodes/pve1/storage/local/download-url", nil, "article", 403, "Permission check failed", nil},
	{"the agent without its privilege", "GET", "/nodes/pve1/qemu/9000/agent/get-osinfo", nil, "poor", 403, "Permission check failed (/vms/9000, VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted)", nil},
	{"a network device without SDN.Use", "POST", "/nodes/pve1/qemu", form("vmid", "200", "net0", "virtio,bridge=vmbr0,tag=5"), "nosdn", 403, "Permission check failed (/sdn/zones/localnetwork/vmbr0/5, SDN.Use)", nil},
	{"a new user without Realm.AllocateUser", "POST", "/access/users", form("userid", "y@pve"), "poor", 403, "Permission check failed (/access/realm/pve, Realm.AllocateUser)", nil},
	{"a new role without Sys.Modify", "POST", "/access/roles", form("roleid", "Y"), "poor", 403, "Permission check failed (/access, Sys.Modify)", nil},
	{"an access rule without Permissions.Modify", "PUT", "/access/acl", form("path", "/vms/9000", "roles", "PVEAuditor", "users", "capi@pve"), "poor", 403,
		"Permission check failed (/vms/9000, Permissions.Modify|VM.Allocate)", nil},
	{"another user's permissions without Sys.Audit", "GET", "/access/permissions", form("userid", "root@pam"), "poor", 403, "Permission check failed (/access, Sys.Audit)", nil},
	{"a login with a wrong password", "POST", "/access/ticket", form("username", "root@pam", "password", "wrong"), "", 401, "authentication failure", nil},

	// Logins
	{"no credentials", "GET", "/version", nil, "nobody", 401, "No ticket", nil},
	{"a wrong secret", "GET", "/version", nil, "root@pam!test=wrong", 401, "Authentication failed!", nil},
	{"an unknown token", "GET", "/version", nil, "root@pam!nope=x", 401, "Authentication failed!", nil},
	{"credentials before paths", "GET", "/nope", nil, "nobody", 401, "No ticket", nil},
}

func TestRefusals(t *testing.T) {
	l := start(t, pvesim.Options{
		Nodes: []pvesim.Node{{Name: "pve1"}, {Name: "pve2", Offline: true}},
		Storages: append(pvesim.DefaultStorages(), pvesim.Storage{ID: "isos", Type: "dir", Content: []string{"iso"}},
			pvesim.Storage{ID: "off", Type: "dir", Content: []string{"iso"}, Disabled: true}),
	})
	_, image := talosFactory(t)
	l.template(image)
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "101"))
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "102", "agent", "enabled=1"))
	l.done("POST", "/nodes/pve1/qemu/102/status/start", nil)
	l.done("POST", "/nodes/pve1/qemu", form("vmid", "103", "protection", "1"))
	l.ok("POST", "/access/roles", form("roleid", "Capi", "privs", "VM.Audit"), nil)
	callers := map[string]*lab{
		"":        l,
		"nobody":  l.as(""),
		"poor":    l.account("capi@pve", "/mapping", "PVEMappingUser"),
		"cloner":  l.account("cloner@pve", "/vms/9000", "PVETemplateUser"),
		"nosdn":   l.account("nosdn@pve", "/", "PVEVMAdmin"),
		"article": l.account("article@pve", "/", "PVEVMAdmin,PVEDatastoreAdmin,PVEAuditor,PVESDNAdmin"),
	}
	for _, row := range refusalRows {
		t.Run(row.name, func(t *testing.T) {
			who := callers[row.who]
			if who == nil {
				who = l.as(row.who)
			}
			who = &lab{Simulator: who.Simulator, http: who.http, token: who.token, t: t}
			got := who.send(row.method, row.path, row.params)
			if got.status != row.status || got.reason != row.reason {
				t.Fatalf("%d %q, want %d %q (%v)", got.status, got.reason, row.status, row.reason, got.errors)
			}
			if len(got.errors) != len(row.errors) {
				t.Errorf("errors %q, want %q", got.errors, row.errors)
			}
			for k, want := range row.errors {
				if got.errors[k] != want {
					t.Errorf("errors[%s] = %q, want %q", k, got.errors[k], want)
				}
			}
			if row.status < 500 && row.status != 401 && !strings.HasPrefix(got.message, row.reason) {
				t.Errorf("message %q does not begin with the reason phrase", got.message)
			}
		})
	}
}
