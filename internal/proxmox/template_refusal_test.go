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

// limited is a client of a user who may do everything a template needs, except
// for what without names.
func (r *rig) limited(without ...string) *Client {
	r.t.Helper()
	var privileges []string
	for _, p := range []string{
		"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit", "SDN.Use", "Sys.AccessNetwork", "VM.Allocate", "VM.Audit",
		"VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options",
	} {
		if !slices.Contains(without, p) {
			privileges = append(privileges, p)
		}
	}
	r.raw(http.MethodPost, "/access/users", map[string]any{"userid": "builder@pve", "enable": 1})
	r.raw(http.MethodPost, "/access/roles", map[string]any{"roleid": "Builder", "privs": strings.Join(privileges, ",")})
	r.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "Builder", "users": "builder@pve", "propagate": 1})
	secret, err := r.sim.CreateToken("builder@pve", "t1", false)
	if err != nil {
		r.t.Fatal(err)
	}
	r.faults.strike(0, false, nil)
	return r.client(func(c *Config) { c.TokenID, c.TokenSecret = "builder@pve!t1", secret })
}

func TestWithoutAccessToTheNetworkTheImageIsUploaded(t *testing.T) {
	r := newRig(t)
	made, err := r.limited("Sys.AccessNetwork").EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {})
	if err != nil {
		t.Fatal(err)
	}
	r.exactlyOne(made, made.Instance)
	if calls := strings.Join(r.faults.calls(), "\n"); !strings.Contains(calls, "/upload") || strings.Contains(calls, "download-url") {
		t.Errorf("calls are\n%s", calls)
	}
}

func TestAnAccountThatMayNotDeleteTheImageLeavesIt(t *testing.T) {
	r := newRig(t)
	made, err := r.limited("Datastore.Allocate").EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {})
	if err != nil || !made.Finished {
		t.Fatalf("%+v, %v", made, err)
	}
	if left := r.imports(); len(left) != 1 {
		t.Errorf("image files: %v, want the one that could not be deleted", left)
	}
}

func TestMissingPrivilegesAreNamedBeforeAnythingIsMade(t *testing.T) {
	for _, tt := range []struct{ privilege, path string }{
		{"VM.Allocate", "/vms/100"},
		{"VM.Config.HWType", "/vms/100"},
		{"VM.Config.Network", "/vms/100"},
		{"Datastore.AllocateSpace", "/storage/local-lvm"},
		{"Datastore.AllocateTemplate", "/storage/local"},
		{"SDN.Use", "/sdn/zones/localnetwork/vmbr0"},
	} {
		t.Run(tt.privilege, func(t *testing.T) {
			r := newRig(t)
			_, err := r.limited(tt.privilege).EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range []string{tt.privilege, "on " + tt.path, "pveum acl modify " + tt.path + " --tokens 'builder@pve!t1'"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error has no %q: %v", want, err)
				}
			}
			if calls := r.faults.calls(); len(calls) > 0 {
				t.Errorf("something was written: %v", calls)
			}
		})
	}
}

func TestWhatCannotWorkIsRefusedWithTheWayOut(t *testing.T) {
	tests := []struct {
		name    string
		options func(*pvesim.Options)
		spec    func(*TemplateSpec)
		client  func(*Config)
		want    string
	}{
		{"an old release without root's password", func(o *pvesim.Options) { o.Release = "8.3" }, nil, nil, "upgrade it to 8.4 or newer, or log in as root@pam with a password"},
		{"no import storage", func(o *pvesim.Options) {
			o.Storages = []pvesim.Storage{{ID: "local", Type: "dir", Content: []string{"iso"}}, {ID: "local-lvm", Type: "lvmthin", Content: []string{"images"}}}
		}, nil, nil, "pvesm set local --content"},
		{"an unknown storage", nil, func(s *TemplateSpec) { s.Storage = "nope" }, nil, `no storage "nope"`},
		{"a storage without images", nil, func(s *TemplateSpec) { s.Storage = "local" }, nil, "--content"},
		{"an import storage of the wrong type", nil, func(s *TemplateSpec) { s.ImportStorage = "local-lvm" }, nil, `content "import"`},
		{"a smaller disk", nil, func(s *TemplateSpec) { s.DiskGiB = 1 }, nil, "do not shrink"},
		{"a wrong secret", nil, nil, func(c *Config) { c.TokenSecret = uuid.NewString() }, "does not accept the login of root@pam!terraform"},
		{"an untrusted certificate", nil, nil, func(c *Config) { c.CAPEM = "" }, "/etc/pve/pve-root-ca.pem"},
		{"an unknown node", nil, func(s *TemplateSpec) { s.Node = "pve7" }, nil, "pve7"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(o *pvesim.Options) {
				if tt.options != nil {
					tt.options(o)
				}
			})
			spec := r.spec()
			if tt.spec != nil {
				tt.spec(&spec)
			}
			c := r.client(func(c *Config) {
				if tt.client != nil {
					tt.client(c)
				}
			})
			_, err := c.EnsureTemplate(t.Context(), spec, uuid.NewString(), nil, func(Template) {})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error is %v, want one with %q", err, tt.want)
			}
			if strings.Contains(err.Error(), r.secret) {
				t.Errorf("the error tells the secret: %v", err)
			}
		})
	}
}

func TestAWishedIDThatIsTakenIsRefused(t *testing.T) {
	r := newRig(t)
	r.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": 9000})
	spec := r.spec()
	spec.VMID = 9000
	_, err := r.client().EnsureTemplate(t.Context(), spec, uuid.NewString(), nil, func(Template) {})
	if err == nil || !strings.Contains(err.Error(), "the wished id 9000 is taken") {
		t.Errorf("error is %v", err)
	}
}

func TestAnIDThatSomebodyTakesMeanwhileIsReplacedByTheNext(t *testing.T) {
	r := newRig(t)
	taken := false
	r.faults.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/qemu") && !taken {
			taken = true
			r.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": 100})
		}
		return false
	}
	if made := r.make(r.spec()); made.VMID != 101 {
		t.Errorf("the template is %d, want 101", made.VMID)
	}
}

func TestALockThatIsHeldForAMomentIsWaitedFor(t *testing.T) {
	r := newRig(t)
	refused := 0
	r.faults.answer = func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, "/template") && refused < 3 {
			refused++
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io500(w, "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout")
			return true
		}
		return false
	}
	if made := r.make(r.spec()); !made.Finished || refused != 3 {
		t.Errorf("finished %v after %d refusals", made.Finished, refused)
	}
}

func io500(w http.ResponseWriter, message string) (int, error) {
	return fmt.Fprintf(w, `{"data":null,"message":%q}`, message+"\n")
}
