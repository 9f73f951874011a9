// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// words matches a text that the CLI has broken into lines.
func words(text string) *regexp.Regexp {
	return regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(text), " ", `\s+`))
}

// block is a provider block with members of its own beside the endpoint.
func (lab *proxmoxLab) block(members ...string) string {
	return fmt.Sprintf("provider \"capi\" {\n  proxmox = {\n    endpoint = %q\n    %s\n  }\n}\n", lab.sim.URL(), strings.Join(members, "\n    "))
}

// token are the members of a login by token.
func (lab *proxmoxLab) token(id, secret string) []string {
	return []string{fmt.Sprintf("token_id = %q", id), fmt.Sprintf("token_secret = %q", secret), fmt.Sprintf("ca_pem = %q", lab.sim.CA())}
}

// fingerprint is the one of the simulator's certificate.
func (lab *proxmoxLab) fingerprint() string {
	lab.t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(lab.sim.URL(), "https://"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // to see the certificate
	if err != nil {
		lab.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	sum := sha256.Sum256(conn.ConnectionState().PeerCertificates[0].Raw)
	return hex.EncodeToString(sum[:])
}

// One fault of each class, through the real CLI: what it says, and that the next
// apply makes one account of what was left.
func TestServiceAccountErrorsSayWhatToDo(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	lab.raw(http.MethodPost, "/access/users", map[string]any{"userid": "ops@pve"})
	lab.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "PVEUserAdmin", "users": "ops@pve"})
	ops, err := lab.sim.CreateToken("ops@pve", "terraform", false)
	if err != nil {
		t.Fatal(err)
	}
	good := lab.provider() + account()
	step := func(config, want string, faults ...pvesim.Fault) resource.TestStep {
		return resource.TestStep{
			PreConfig: func() {
				lab.sim.ClearFaults()
				lab.sim.Inject(faults...)
			},
			Config: config, ExpectError: words(want),
		}
	}
	always := func(method, path string, status int, text string) pvesim.Fault {
		return pvesim.Fault{Method: method, Path: path, Times: -1, Status: status, Message: text}
	}
	root := lab.token("root@pam!terraform", lab.secret)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.users("ops@pve") },
		Steps: []resource.TestStep{
			step(lab.block(lab.token("root@pam!terraform", "wrong")...)+account(), "does not accept the login of root@pam!terraform"),
			step(lab.block(lab.token("ops@pve!terraform", ops)...)+account(), "on /access: Sys.Modify, to create the role CAPI-capi-pve"),
			step(lab.block(root[:2]...)+account(), "as ca_pem, or the certificate's fingerprint as fingerprint_sha256"),
			step(lab.block(append(root[:2:2], `fingerprint_sha256 = "`+strings.Repeat("AB", 32)+`"`)...)+account(), "is not the expected one"),
			step(lab.provider("endpoint", "https://127.0.0.1:9")+account(), "no answer from Proxmox VE at https://127.0.0.1:9"),
			step(lab.provider()+strings.Replace(account(), "capi@pve", "capi@nope", 1), `the realm "nope" does not exist`),
			step(lab.provider()+account(`confine_to = { pool = "nope" }`), `pool "nope" does not exist`),
			step(lab.provider()+account(`permissions = "custom"`, `grants = [{ path = "/", privileges = ["VM.Monitor"] }]`), "No privilege VM.Monitor exists"),
			step(good, "The cluster has no quorum", always(http.MethodPost, "/access/users", 500, "cluster not ready - no quorum?")),
			step(good, "Something else holds the lock", always(http.MethodPost, "/access/roles", 500, "can't lock file '/x.lck' - got timeout")),
			step(good, "pvecm updatecerts", always(http.MethodPut, "/access/acl", 596, "Connection timed out")),
			step(good, "cannot reach the node that was asked for", always(http.MethodGet, "/access/acl", 595, "No route to host")),
			step(good, "To grant it: pveum role add", always(http.MethodPost, "/access/users/*/token/*", 403, "Permission check failed (/access/groups, User.Modify)")),
			step(good, "lets root@pam itself do this", always(http.MethodPost, "/access/users/*/token/*", 403, "Permission check failed (user != root@pam)")),
			step(good, "terraform untaint ADDRESS", always(http.MethodPut, "/access/acl", 500, "the disk is on fire")),
			{ // refused for the moment, answers lost: that is nobody's concern
				PreConfig: func() {
					lab.sim.ClearFaults()
					lab.sim.Inject(
						pvesim.Fault{Method: http.MethodPut, Path: "/access/acl", Status: 500, Message: "cfs-lock 'file-user_cfg' error: got lock request timeout"},
						pvesim.Fault{Method: http.MethodPost, Path: "/access/users/*/token/*", Cut: pvesim.CutAfter},
					)
				},
				Config: good, Check: lab.works,
			},
			{ // a refresh that nobody answers keeps the state and says so; here the plan is empty
				PreConfig: func() {
					lab.sim.Inject(pvesim.Fault{Path: "/access/users/*", Times: -1, Status: 595, Message: "No route to host"})
				},
				Config: good, PlanOnly: true,
			},
			{PreConfig: func() { lab.sim.ClearFaults() }, Config: good, PlanOnly: true},
		},
	})
}

func TestPermissionsAndTokenIDsAreRead(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	lab.raw(http.MethodPost, "/access/users", map[string]any{"userid": "ops@pve"})
	lab.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "PVEVMUser", "users": "ops@pve"})
	const address = "data.capi_proxmox_permissions.ops"
	text := knownvalue.StringExact
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps: []resource.TestStep{{
			Config: lab.provider() + `
data "capi_proxmox_permissions" "me" {}

data "capi_proxmox_permissions" "ops" {
  identity = "ops@pve"
  required = {
    "/storage/local" = ["Datastore.Audit", "VM.Audit"]
    "/vms"           = ["VM.PowerMgmt"]
  }
}

output "token" {
  value = provider::capi::proxmox_token_id_parse(data.capi_proxmox_permissions.me.identity)
}
`,
			ConfigStateChecks: []statecheck.StateCheck{
				statecheck.ExpectKnownValue(address, tfjsonpath.New("release"), text("9.2")),
				statecheck.ExpectKnownValue(address, tfjsonpath.New("missing"), knownvalue.MapExact(map[string]knownvalue.Check{
					"/storage/local": knownvalue.SetExact([]knownvalue.Check{text("Datastore.Audit")}),
				})),
				statecheck.ExpectKnownValue(address, tfjsonpath.New("permissions").AtMapKey("/vms"), knownvalue.SetPartial([]knownvalue.Check{text("VM.Console"), text("VM.PowerMgmt")})),
				statecheck.ExpectKnownValue(address, tfjsonpath.New("commands").AtSliceIndex(1), text("pveum acl modify /storage/local --users 'ops@pve' --roles Terraform-users-storage-local")),
				statecheck.ExpectKnownValue("data.capi_proxmox_permissions.me", tfjsonpath.New("commands"), knownvalue.ListSizeExact(0)),
				statecheck.ExpectKnownOutputValue("token", knownvalue.ObjectExact(map[string]knownvalue.Check{
					"user_id": text("root@pam"), "user_name": text("root"), "realm": text("pam"), "token_name": text("terraform"),
				})),
			},
		}, {
			Config:      lab.provider() + `output "token" { value = provider::capi::proxmox_token_id_parse("root@pam!terraform=hidden") }`,
			ExpectError: words("holds more than the token's id"),
		}, {
			Config:      lab.provider() + `data "capi_proxmox_permissions" "who" { identity = "nobody@pve" }`,
			ExpectError: words("no such user ('nobody@pve')"),
		}},
	})
}
