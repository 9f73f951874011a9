// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// protocolValidator validates configurations as a plan does, over the plugin protocol.
type protocolValidator struct {
	server tfprotov6.ProviderServer
	schema *tfprotov6.GetProviderSchemaResponse
}

func newProtocolValidator(t *testing.T) *protocolValidator {
	t.Helper()
	server, err := testProviders()["capi"]()
	if err != nil {
		t.Fatal(err)
	}
	schema, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return &protocolValidator{server: server, schema: schema}
}

func dynamic(t *testing.T, kind tftypes.Type, config object) *tfprotov6.DynamicValue {
	t.Helper()
	raw, err := tfprotov6.NewDynamicValue(kind, value(t, kind, config))
	if err != nil {
		t.Fatal(err)
	}
	return &raw
}

// said joins the errors of a validation.
func said(diagnostics []*tfprotov6.Diagnostic) string {
	var out []string
	for _, d := range diagnostics {
		if d.Severity == tfprotov6.DiagnosticSeverityError {
			out = append(out, fmt.Sprintf("%s at %s: %s", d.Summary, d.Attribute, d.Detail))
		}
	}
	return strings.Join(out, "\n")
}

func (v *protocolValidator) provider(t *testing.T, config object) string {
	t.Helper()
	resp, err := v.server.ValidateProviderConfig(t.Context(), &tfprotov6.ValidateProviderConfigRequest{
		Config: dynamic(t, v.schema.Provider.ValueType(), config),
	})
	if err != nil {
		t.Fatal(err)
	}
	return said(resp.Diagnostics)
}

func (v *protocolValidator) resource(t *testing.T, name string, config object) string {
	t.Helper()
	resp, err := v.server.ValidateResourceConfig(t.Context(), &tfprotov6.ValidateResourceConfigRequest{
		TypeName: name, Config: dynamic(t, v.schema.ResourceSchemas[name].ValueType(), config),
	})
	if err != nil {
		t.Fatal(err)
	}
	return said(resp.Diagnostics)
}

// a certificate that is one, for what only has to be read.
const somePEM = `-----BEGIN CERTIFICATE-----
MIIBITCByAIJAL7VQt5Q2Gt9MAoGCCqGSM49BAMCMBkxFzAVBgNVBAMMDm5vdCBh
-----END CERTIFICATE-----`

func TestTheProxmoxBlockIsCheckedAtPlan(t *testing.T) {
	v := newProtocolValidator(t)
	fingerprint := strings.TrimSuffix(strings.Repeat("AB:", 32), ":")
	for _, test := range []struct {
		name  string
		block object
		want  string // empty: no error
	}{
		{"a token is right", object{"endpoint": "https://pve:8006", "token_id": "root@pam!tf", "token_secret": "s"}, ""},
		{"unknown values are left", object{"endpoint": unknown{}, "token_id": unknown{}, "ca_pem": unknown{}, "username": unknown{}, "fingerprint_sha256": unknown{}, "timeouts": unknown{}}, ""},
		{"a bare name is an endpoint", object{"endpoint": "pve"}, ""},
		{"a pasted address bar is an endpoint", object{"endpoint": "https://pve.example:8006/#v1:0:=node%2Fpve1:4::::::"}, ""},
		{"a user with a code is right", object{"username": "root@pam", "password": "p", "otp": "123456"}, ""},
		{"a user with a recovery key is right", object{"username": "root@pam", "password": "p", "otp": "recovery:ab12-cd34"}, ""},
		{"a fingerprint beside a password", object{"username": "root@pam", "password": "p", "fingerprint_sha256": fingerprint}, ""},
		{"a fingerprint without colons", object{"fingerprint_sha256": strings.ToLower(strings.ReplaceAll(fingerprint, ":", ""))}, ""},
		{"a fingerprint as openssl prints it", object{"fingerprint_sha256": "sha256 Fingerprint=" + fingerprint}, ""},
		{"timeouts are durations", object{"timeouts": object{"connect": "5s", "retry": "1m30s"}}, ""},

		{"http is refused", object{"endpoint": "http://pve:8006"}, "write https://pve:8006"},
		{"an empty endpoint", object{"endpoint": " "}, "is empty"},
		{"a path that the API is not at", object{"endpoint": "https://example.com/pve"}, "has the path /pve"},
		{"a port out of range", object{"endpoint": "pve:80066"}, "a port that does not exist"},
		{"another scheme", object{"endpoint": "ssh://pve"}, "not of the form"},
		{"a login in the endpoint", object{"endpoint": "https://root:hidden@pve"}, "holds a login"},
		{"two endpoints", object{"endpoint": "https://pve1:8006,https://pve2:8006"}, "no address"},
		{"a token without name", object{"token_id": "root@pam"}, `no "!"`},
		{"a token without realm", object{"token_id": "root!tf"}, "name@realm"},
		{"a token with its secret", object{"token_id": "root@pam!t=hidden"}, "more than the token's id"},
		{"a token as a header", object{"token_id": "PVEAPIToken=root@pam!t=hidden"}, "more than the token's id"},
		{"a token of one letter", object{"token_id": "root@pam!t"}, "not a token name"},
		{"a whole token as secret", object{"token_id": "root@pam!tf", "token_secret": "root@pam!t=hidden"}, `what follows "="`},
		{"a secret with a line end", object{"token_secret": "hidden\n"}, "white space"},
		{"an empty secret", object{"token_secret": ""}, "empty"},
		{"a user without realm", object{"username": "root"}, "name@realm"},
		{"a token as user", object{"username": "root@pam!tf"}, "name@realm"},
		{"an empty password", object{"password": ""}, "at least 1"},
		{"a code that is none", object{"username": "root@pam", "otp": "12 34 56"}, "one-time password"},
		{"a code with a token", object{"token_id": "root@pam!tf", "otp": "123456"}, "Remove otp"},
		{"two logins", object{"token_id": "root@pam!tf", "username": "root@pam"}, "Remove one of the two"},
		{"a token with a password", object{"token_id": "root@pam!tf", "password": "hidden"}, "no password"},
		{"a user with a token's secret", object{"username": "root@pam", "token_secret": "hidden"}, "no token_secret"},
		{"an authority that is no PEM", object{"ca_pem": "pve-root-ca.pem"}, `file("pve-root-ca.pem")`},
		{"an authority that is no certificate", object{"ca_pem": somePEM}, "no certificate"},
		{"a fingerprint of SHA-1", object{"fingerprint_sha256": strings.Repeat("AB:", 19) + "AB"}, "no SHA-256 fingerprint"},
		{"a fingerprint with other letters", object{"fingerprint_sha256": "XY" + fingerprint[2:]}, "no SHA-256 fingerprint"},
		{"a fingerprint that does not count", object{"fingerprint_sha256": fingerprint, "insecure": true}, "would count for nothing"},
		{"a timeout without unit", object{"timeouts": object{"connect": "5"}}, "is not a duration"},
		{"a timeout below zero", object{"timeouts": object{"retry": "-5s"}}, "is not a duration"},
		{"no time at all", object{"timeouts": object{"response": "0s"}}, "is not a duration"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := v.provider(t, object{"proxmox": test.block})
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("the plan says %q, want %q", got, test.want)
			}
			if strings.Contains(got, "hidden") {
				t.Errorf("the plan tells a secret: %s", got)
			}
		})
	}
}

func TestServiceAccountsAreCheckedAtPlan(t *testing.T) {
	v := newProtocolValidator(t)
	confine := func(name string, value any) object { return object{"confine_to": object{name: value}} }
	grant := func(members object) object { return object{"permissions": "custom", "grants": []any{members}} }
	for _, test := range []struct {
		name   string
		change object
		want   string // empty: no error
	}{
		{"the least is right", object{}, ""},
		{"all of it is right", object{"comment": "c", "expires_at": "2099-01-01T00:00:00+02:00", "rotate_when_changed": object{"a": "b"}, "rotation_overlap": "0s", "confine_to": object{
			"pool": "a/b", "template_pool": "t", "template_ids": []any{9000}, "disk_storages": []any{"local-lvm"}, "image_storages": []any{"local"}, "bridges": []any{"vmbr0", "vmbr0/100", "zone/net"},
		}}, ""},
		{"custom permissions are right", grant(object{"path": "/vms/100", "privileges": []any{"VM.Audit"}, "propagate": false}), ""},
		{"unknown values are left", object{"user_id": unknown{}, "token_name": unknown{}, "permissions": unknown{}, "confine_to": unknown{}, "grants": unknown{}, "expires_at": unknown{}}, ""},
		{"an unknown template", confine("template_ids", []any{unknown{}}), ""},
		{"an unknown role", grant(object{"path": "/", "role": unknown{}}), ""},

		{"a user without realm", object{"user_id": "capi"}, "name@realm"},
		{"a user with a blank", object{"user_id": "ca pi@pve"}, "name@realm"},
		{"a user that is two in a list", object{"user_id": "capi,root@pam"}, "without blanks and without"},
		{"a user that ends a path", object{"user_id": "ca#pi@pve"}, "without blanks and without"},
		{"a user whose name needs quotes is right", object{"user_id": "o'neil+capi@pve"}, ""},
		{"a user that is too long", object{"user_id": strings.Repeat("c", 61) + "@pve"}, "at most 64 characters"},
		{"a token as user", object{"user_id": "capi@pve!t"}, "name@realm"},
		{"a token of one letter", object{"token_name": "t"}, "not a token name"},
		{"a token that begins with a digit", object{"token_name": "1st"}, "not a token name"},
		{"a token with its user", object{"token_name": "capi@pve!token"}, "not a token name"},
		{"an empty comment", object{"comment": ""}, "between 1 and 1500"},
		{"a comment of two lines", object{"comment": "a\nb"}, "must be one line"},
		{"a comment that is too long", object{"comment": strings.Repeat("c", 1501)}, "1500"},
		{"a day in place of a time", object{"expires_at": "2099-01-01"}, "is not a time"},
		{"a duration in place of a time", object{"expires_at": "24h"}, "is not a time"},
		{"permissions that do not exist", object{"permissions": "all"}, "least_privilege"},
		{"custom permissions that are not listed", object{"permissions": "custom"}, "list them in grants"},
		{"grants without custom permissions", object{"grants": []any{object{"path": "/", "role": "PVEAuditor"}}}, "permissions = \"custom\" alone"},
		{"no grant at all", object{"permissions": "custom", "grants": []any{}}, "at least 1"},
		{"a grant of nothing", grant(object{"path": "/"}), "either a role or privileges"},
		{"a grant of a role and privileges", grant(object{"path": "/", "role": "R", "privileges": []any{"VM.Audit"}}), "either a role or privileges"},
		{"a grant of no privilege", grant(object{"path": "/", "privileges": []any{}}), "at least 1"},
		{"a role as privilege", grant(object{"path": "/", "privileges": []any{"PVEAuditor"}}), "is not a privilege"},
		{"a privilege in small letters", grant(object{"path": "/", "privileges": []any{"vm.audit"}}), "is not a privilege"},
		{"a role with a blank", grant(object{"path": "/", "role": "PVE Auditor"}), "is not the name of a role"},
		{"a path without slash", grant(object{"path": "vms", "role": "R"}), "is not a path"},
		{"a path that does not exist", grant(object{"path": "/machines", "role": "R"}), "is not a path"},
		{"a machine that cannot be", grant(object{"path": "/vms/99", "role": "R"}), "is not a path"},
		{"a path that is too deep", grant(object{"path": "/storage/local/iso", "role": "R"}), "is not a path"},
		{"a path with a slash behind", grant(object{"path": "/vms/", "role": "R"}), "is not a path"},
		{"confined article", object{"permissions": "article", "confine_to": object{"pool": "p"}}, "least_privilege"},
		{"confined custom permissions", object{"permissions": "custom", "grants": []any{object{"path": "/", "role": "R"}}, "confine_to": object{"pool": "p"}}, "least_privilege"},
		{"a pool as a path", confine("pool", "/pool/capi"), "resource pool"},
		{"an empty pool", confine("pool", ""), "resource pool"},
		{"a pool that is too deep", confine("template_pool", "a/b/c/d"), "resource pool"},
		{"a template that cannot be", confine("template_ids", []any{99}), "between 100"},
		{"no templates", confine("template_ids", []any{}), "at least 1"},
		{"a storage as a path", confine("disk_storages", []any{"/storage/local"}), "name of a storage"},
		{"a volume in place of a storage", confine("image_storages", []any{"local:iso"}), "name of a storage"},
		{"no storages", confine("disk_storages", []any{}), "at least 1"},
		{"a bridge as a path", confine("bridges", []any{"/sdn/zones/localnetwork/vmbr0"}), "is not a bridge"},
		{"a VLAN that is too deep", confine("bridges", []any{"zone/net/100/1"}), "is not a bridge"},
		{"a bridge with a blank", confine("bridges", []any{"vmbr 0"}), "is not a bridge"},
		{"an overlap without unit", object{"rotation_overlap": "24"}, "is not a duration"},
		{"an overlap below zero", object{"rotation_overlap": "-1h"}, "is not a duration"},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := object{"user_id": "capi@pve", "token_name": "capi-token"}
			for name, value := range test.change {
				config[name] = value
			}
			got := v.resource(t, serviceAccountType, config)
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("the plan says %q, want %q", got, test.want)
			}
		})
	}
}
