// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// login are the members of the provider block that log in as a token.
func (lab *proxmoxLab) login(id, secret string) object {
	return object{"endpoint": lab.sim.URL(), "token_id": id, "token_secret": secret, "ca_pem": string(lab.sim.CA())}
}

func (lab *proxmoxLab) rootLogin(change object) object {
	return changed(object{"endpoint": lab.sim.URL(), "username": "root@pam", "password": pvesim.RootPassword, "ca_pem": string(lab.sim.CA())}, change)
}

// foretold plans to create a resource by the plugin protocol, with a provider that
// is configured, and answers warnings and errors.
func foretold(t *testing.T, login object, name string, config object) (warnings, errors string) {
	t.Helper()
	v := newProtocolValidator(t)
	configured, err := v.server.ConfigureProvider(t.Context(), &tfprotov6.ConfigureProviderRequest{
		Config: dynamic(t, v.schema.Provider.ValueType(), object{"proxmox": login}),
	})
	if err != nil {
		t.Fatal(err)
	}
	kind := v.schema.ResourceSchemas[name].ValueType()
	nothing, err := tfprotov6.NewDynamicValue(kind, tftypes.NewValue(kind, nil))
	if err != nil {
		t.Fatal(err)
	}
	wanted := dynamic(t, kind, config)
	plan, err := v.server.PlanResourceChange(t.Context(), &tfprotov6.PlanResourceChangeRequest{
		TypeName: name, Config: wanted, ProposedNewState: wanted, PriorState: &nothing,
	})
	if err != nil {
		t.Fatal(err)
	}
	diags := append(configured.Diagnostics, plan.Diagnostics...)
	return diagnosticText(diags, tfprotov6.DiagnosticSeverityWarning), diagnosticText(diags, tfprotov6.DiagnosticSeverityError)
}

// Where Proxmox VE answers while it is planned, the plan tells what the apply
// would fail at; it is no error, since something in the apply may put it right.
func TestPlansForeseeWhatWillFail(t *testing.T) {
	isoOnly := func(o *pvesim.Options) {
		o.Storages = []pvesim.Storage{{ID: "local", Type: "dir", Content: []string{"iso"}}, {ID: "local-lvm", Type: "lvmthin", Content: []string{"images"}}}
	}
	template := func(lab *proxmoxLab, change object) object {
		return changed(object{
			"node_name": "pve1", "storage": "local-lvm",
			"talos": object{"version": "v1.13.7", "extensions": []any{"siderolabs/qemu-guest-agent"}, "factory_url": lab.factory.URL()},
		}, change)
	}
	anAccount := func(change object) object {
		return changed(object{"user_id": "capi@pve", "token_name": "capi-token"}, change)
	}
	root := func(lab *proxmoxLab) object { return lab.login("root@pam!terraform", lab.secret) }
	powerless := func(lab *proxmoxLab) object {
		lab.raw(http.MethodPost, "/access/users", map[string]any{"userid": "ops@pve"})
		lab.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "PVEAuditor", "users": "ops@pve"})
		secret, err := lab.sim.CreateToken("ops@pve", "terraform", false)
		if err != nil {
			t.Fatal(err)
		}
		return lab.login("ops@pve!terraform", secret)
	}
	const cannot, account = "The template cannot be made as things are", "The service account cannot be made as things are"
	for _, tt := range []struct {
		name     string
		release  string
		storages func(*pvesim.Options)
		login    func(*proxmoxLab) object
		resource string
		change   object
		want     []string // none: the plan has nothing to tell
	}{
		{"a template that can be made", "9.2", nil, root, proxmoxTemplateType, nil, nil},
		{"a token on 8.1", "8.1", isoOnly, root, proxmoxTemplateType, nil, []string{cannot, "not even one of root@pam", "log in as root@pam with a password"}},
		{"root with the password on 8.1", "8.1", isoOnly, func(lab *proxmoxLab) object { return lab.rootLogin(nil) }, proxmoxTemplateType, nil, nil},
		{"no content import on 8.4", "8.4", isoOnly, root, proxmoxTemplateType, nil, []string{cannot, "pvesm set local --content"}},
		{"no content import on 9.2", "9.2", isoOnly, root, proxmoxTemplateType, nil, []string{cannot, "pvesm set local --content"}},
		{"no content import on 9.2, with the password", "9.2", isoOnly, func(lab *proxmoxLab) object { return lab.rootLogin(nil) }, proxmoxTemplateType, nil, nil},
		{"an import storage that holds none", "9.2", nil, root, proxmoxTemplateType, object{"import_storage": "local-lvm"}, []string{cannot, `content "import"`}},
		{"a storage that is not there", "9.2", nil, root, proxmoxTemplateType, object{"storage": "nope"}, []string{cannot, `no storage "nope"`}},
		{"a node that is not there", "9.2", nil, root, proxmoxTemplateType, object{"node_name": nil, "node_names": []any{"pve1", "pve7"}}, []string{cannot, "On node pve7"}},
		{"no privileges for a template", "9.2", nil, powerless, proxmoxTemplateType, nil, []string{cannot, "Datastore.AllocateSpace", "pveum acl modify /storage/local-lvm --tokens 'ops@pve!terraform'"}},
		{"a login that is refused", "9.2", nil, func(lab *proxmoxLab) object { return lab.login("root@pam!terraform", newUUID()) }, proxmoxTemplateType, nil,
			[]string{cannot, "does not accept the login"}},
		{"nobody who answers", "9.2", nil, func(lab *proxmoxLab) object { return changed(root(lab), object{"endpoint": "https://127.0.0.1:1"}) }, proxmoxTemplateType, nil, nil},
		{"a template of which not all is known", "9.2", isoOnly, root, proxmoxTemplateType, object{"tags": unknown{}}, nil},
		{"tags that another template has", "9.2", nil, func(lab *proxmoxLab) object {
			lab.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": 9000, "name": "older", "tags": "b;a"})
			lab.raw(http.MethodPost, "/nodes/pve1/qemu/9000/template", nil)
			lab.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": 9001, "name": "a-machine", "tags": "b;a"})
			return root(lab)
		}, proxmoxTemplateType, object{"tags": []any{"a", "b"}}, []string{"The tags do not tell the template from others", "VM 9000 (older) on node pve1. The templateSelector"}},
		{"tags that another template has among others", "9.2", nil, func(lab *proxmoxLab) object {
			lab.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": 9000, "name": "older", "tags": "b;a;c"})
			lab.raw(http.MethodPost, "/nodes/pve1/qemu/9000/template", nil)
			return root(lab)
		}, proxmoxTemplateType, object{"tags": []any{"a", "b"}}, nil},
		{"an account that can be made", "8.1", nil, root, serviceAccountType, nil, nil},
		{"a realm that is not there", "9.2", nil, root, serviceAccountType, object{"user_id": "capi@nope"}, []string{account, `the realm "nope" does not exist`}},
		{"a pool that is not there", "9.2", nil, root, serviceAccountType, object{"confine_to": object{"pool": "nope"}}, []string{account, `pool "nope" does not exist`}},
		{"a privilege of an older release", "9.2", nil, root, serviceAccountType, object{"permissions": "custom", "grants": []any{object{"path": "/", "privileges": []any{"VM.Monitor"}}}},
			[]string{account, "No privilege VM.Monitor exists in Proxmox VE 9.2"}},
		{"no privileges for an account", "8.4", nil, powerless, serviceAccountType, nil, []string{account, "User.Modify", "nothing was made"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			lab := newProxmoxLab(t, func(o *pvesim.Options) {
				o.Release = tt.release
				if tt.storages != nil {
					tt.storages(o)
				}
			})
			config := anAccount(tt.change)
			if tt.resource == proxmoxTemplateType {
				config = template(lab, tt.change)
			}
			login := tt.login(lab)
			lab.strike(0, nil)
			warnings, errors := foretold(t, login, tt.resource, config)
			if errors != "" || len(tt.want) == 0 && warnings != "" {
				t.Errorf("the plan has the errors %q and the warnings %q", errors, warnings)
			}
			for _, want := range tt.want {
				if !strings.Contains(strings.ReplaceAll(warnings, `\"`, `"`), want) {
					t.Errorf("the warnings have no %q: %s", want, warnings)
				}
			}
			if writes := lab.strike(0, nil); writes > 1 || writes == 1 && login["password"] == nil {
				t.Errorf("the plan has written %d times", writes)
			}
		})
	}
}

// A one-time password is good once, and the apply needs it.
func TestAPlanDoesNotUseUpAOneTimePassword(t *testing.T) {
	lab := newProxmoxLab(t)
	for name, config := range map[string]object{
		proxmoxTemplateType: {"node_name": "pve1", "storage": "nope", "talos": object{"version": "v1.13.7", "factory_url": lab.factory.URL()}},
		serviceAccountType:  {"user_id": "capi@nope", "token_name": "capi-token"},
	} {
		lab.strike(0, nil)
		warnings, errors := foretold(t, lab.rootLogin(object{"otp": "123456"}), name, config)
		if writes := lab.strike(0, nil); writes > 0 || warnings+errors != "" {
			t.Errorf("the plan of %s has logged in %d times, and says %q %q", name, writes, warnings, errors)
		}
	}
}
