// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/compare"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

const accountAddress = "capi_service_account.capi"

// account is the resource with further arguments.
func account(arguments ...string) string {
	return fmt.Sprintf(`
resource "capi_service_account" "capi" {
  user_id    = "capi@pve"
  token_name = "capi-token"
  %s
}
`, strings.Join(arguments, "\n  "))
}

// attributes of the account in a Terraform state.
func accountAttributes(s *terraform.State) map[string]string {
	return s.RootModule().Resources[accountAddress].Primary.Attributes
}

// works checks that Proxmox VE accepts the credentials in state.
func (lab *proxmoxLab) works(s *terraform.State) error { return lab.accepts(accountAttributes(s)) }

func accountAction(kind plancheck.ResourceActionType, more ...plancheck.PlanCheck) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: append(more, plancheck.ExpectResourceAction(accountAddress, kind))}
}

// On the oldest release that is supported, with a login by password that checks a
// fingerprint; on the last one before the privileges were renamed; and on the one
// that can renew a token's secret in place.
func TestServiceAccountThroughItsLife(t *testing.T) {
	cliPath(t)
	for _, release := range []string{"8.1", "8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			lab := newProxmoxLab(t, func(o *pvesim.Options) { o.Release = release })
			provider := lab.provider()
			if release == "8.1" {
				provider = lab.block(`username = "root@pam"`, `password = "`+pvesim.RootPassword+`"`, `fingerprint_sha256 = "`+lab.fingerprint()+`"`)
			}
			accountLife(t, lab, provider, release == "9.2")
		})
	}
}

// accountLife takes an account through all that can happen to it. renewable says
// that the release can renew a token's secret in place.
func accountLife(t *testing.T, lab *proxmoxLab, provider string, renewable bool) {
	for _, pool := range []string{"capi", "templates"} {
		lab.raw(http.MethodPost, "/pools", map[string]any{"poolid": pool})
	}
	secret := tfjsonpath.New("credentials").AtMapKey("secret")
	version := tfjsonpath.New("credentials_version")
	tokenID, retiring := tfjsonpath.New("token_id"), tfjsonpath.New("retiring_tokens")
	sameSecret := statecheck.CompareValue(compare.ValuesSame())
	newSecret := statecheck.CompareValue(compare.ValuesDiffer())
	newVersion := statecheck.CompareValue(compare.ValuesDiffer())
	var before map[string]string // the attributes before a rotation
	remember := func(s *terraform.State) error {
		before = accountAttributes(s)
		return lab.works(s)
	}
	inPlace := func(checks ...statecheck.StateCheck) []statecheck.StateCheck {
		return append(checks, sameSecret.AddStateValue(accountAddress, secret))
	}
	remade := func(checks ...statecheck.StateCheck) []statecheck.StateCheck {
		return append(checks, newSecret.AddStateValue(accountAddress, secret), newVersion.AddStateValue(accountAddress, version))
	}
	steps := []resource.TestStep{
		{ // made, and the credentials work
			Config: provider + account(`comment = " for tests "`), // blanks at the ends, which Proxmox VE does not keep
			ConfigStateChecks: remade(
				statecheck.ExpectKnownValue(accountAddress, tfjsonpath.New("credentials").AtMapKey("token"), knownvalue.StringExact("capi@pve!capi-token")),
				statecheck.ExpectKnownValue(accountAddress, tfjsonpath.New("credentials").AtMapKey("url"), knownvalue.StringExact(lab.sim.URL())),
				statecheck.ExpectKnownValue(accountAddress, tfjsonpath.New("credentials").AtMapKey("insecure"), knownvalue.Bool(false)),
				statecheck.ExpectSensitiveValue(accountAddress, tfjsonpath.New("credentials")),
				sameSecret.AddStateValue(accountAddress, secret),
			),
			Check: lab.works,
		},
		{ // changed in place: the secret stays
			Config:            provider + account(`permissions = "article"`, `privilege_separation = false`, `expires_at = "2099-01-01T01:00:00+01:00"`),
			ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
			ConfigStateChecks: inPlace(statecheck.ExpectKnownValue(accountAddress, tfjsonpath.New("expires_at"), knownvalue.StringExact("2099-01-01T01:00:00+01:00"))),
			Check:             lab.works,
		},
		{
			Config:            provider + account(`permissions = "custom"`, customGrants),
			ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
			ConfigStateChecks: inPlace(),
			Check:             lab.works,
		},
		{ // an import of custom permissions plans nothing
			ResourceName: accountAddress, ImportState: true, ImportStateId: "capi@pve!capi-token", ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"credentials.secret", "credentials_version"},
		},
		{
			ResourceName: accountAddress, ImportState: true, ImportStateKind: resource.ImportBlockWithID, ImportStateId: "capi@pve!capi-token",
			Config: provider + account(`permissions = "custom"`, customGrants),
		},
		{
			Config:            provider + account(confineTo),
			ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
			ConfigStateChecks: inPlace(),
		},
		{
			ResourceName: accountAddress, ImportState: true, ImportStateId: "capi@pve!capi-token", ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"credentials.secret", "credentials_version"},
		},
		{
			Config:            provider + account(`rotate_when_changed = { quarter = "1" }`),
			ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
			ConfigStateChecks: inPlace(statecheck.ExpectKnownValue(accountAddress, retiring, knownvalue.ListSizeExact(0))),
		},
		{ // damaged by others and repaired: the secret stays
			PreConfig: func() {
				lab.raw(http.MethodPut, "/access/users/capi@pve", map[string]any{"enable": 0})
				lab.raw(http.MethodPut, "/access/roles/CAPI-capi-pve", map[string]any{"privs": "VM.Audit,VM.Migrate"})
				lab.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "CAPI-capi-pve", "tokens": "capi@pve!capi-token", "delete": 1})
				lab.raw(http.MethodPut, "/access/users/capi@pve/token/capi-token", map[string]any{"expire": 4070908800, "comment": "", "privsep": 0})
			},
			Config:            provider + account(`rotate_when_changed = { quarter = "1" }`),
			ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
			ConfigStateChecks: inPlace(),
			Check:             remember,
		},
		{ // rotated: the new token stands beside the old one
			Config: provider + account(`rotate_when_changed = { quarter = "2" }`),
			ConfigPlanChecks: accountAction(plancheck.ResourceActionUpdate,
				plancheck.ExpectUnknownValue(accountAddress, tfjsonpath.New("credentials")), plancheck.ExpectUnknownValue(accountAddress, version)),
			ConfigStateChecks: remade(
				statecheck.ExpectKnownValue(accountAddress, tokenID, knownvalue.StringExact("capi@pve!capi-token.2")),
				statecheck.ExpectKnownValue(accountAddress, tfjsonpath.New("credentials").AtMapKey("token"), knownvalue.StringExact("capi@pve!capi-token.2")),
				statecheck.ExpectKnownValue(accountAddress, retiring, knownvalue.ListSizeExact(1)),
			),
			Check: func(s *terraform.State) error { return errors.Join(lab.works(s), lab.accepts(before)) },
		},
		{ // the id of the first token still names the account for an import
			ResourceName: accountAddress, ImportState: true, ImportStateId: "capi@pve!capi-token", ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"credentials.secret", "credentials_version", "rotate_when_changed"},
		},
		{ // the overlap is over: the next refresh removes the old token, and plans nothing
			PreConfig: func() {
				lab.raw(http.MethodPut, "/access/users/capi@pve/token/capi-token", map[string]any{"expire": 1})
			},
			Config:            provider + account(`rotate_when_changed = { quarter = "2" }`),
			ConfigPlanChecks:  accountAction(plancheck.ResourceActionNoop),
			ConfigStateChecks: []statecheck.StateCheck{statecheck.ExpectKnownValue(accountAddress, tokenID, knownvalue.StringExact("capi@pve!capi-token.2"))},
			Check: func(*terraform.State) error {
				if tokens := lab.sim.Summary().Tokens; !slices.Equal(tokens, []string{"capi@pve!capi-token.2", "root@pam!terraform"}) {
					return fmt.Errorf("the tokens are %v", tokens)
				}
				return nil
			},
		},
		{ // another name is a rotation as well; without overlap the old token goes at once
			Config:            provider + strings.Replace(account(`rotation_overlap = "0s"`), "capi-token", "main", 1),
			ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate, plancheck.ExpectKnownValue(accountAddress, tfjsonpath.New("id"), knownvalue.StringExact("capi@pve!main"))),
			ConfigStateChecks: remade(statecheck.ExpectKnownValue(accountAddress, tokenID, knownvalue.StringExact("capi@pve!main"))),
			Check:             lab.works,
		},
		{ // the token is gone: a new one, in place, with a new version
			PreConfig: func() { lab.raw(http.MethodDelete, "/access/users/capi@pve/token/main", nil) },
			Config:    provider + strings.Replace(account(), "capi-token", "main", 1),
			ConfigPlanChecks: accountAction(plancheck.ResourceActionUpdate,
				plancheck.ExpectUnknownValue(accountAddress, tfjsonpath.New("credentials")), plancheck.ExpectUnknownValue(accountAddress, version)),
			ConfigStateChecks: remade(),
			Check:             lab.works,
		},
	}
	main := provider + strings.Replace(account(), "capi-token", "main", 1)
	if renewable {
		steps = append(steps, resource.TestStep{ // the token was made anew by others: its secret in state is refused
			PreConfig:         func() { lab.raw(http.MethodPut, "/access/users/capi@pve/token/main", map[string]any{"regenerate": 1}) },
			Config:            main,
			ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
			ConfigStateChecks: remade(),
			Check:             lab.works,
		})
	} else {
		steps = append(steps,
			resource.TestStep{ // and here it is another token of the same name, which is somebody else's
				PreConfig: func() {
					lab.raw(http.MethodDelete, "/access/users/capi@pve/token/main", nil)
					if _, err := lab.sim.CreateToken("capi@pve", "main", true); err != nil {
						t.Error(err)
					}
				},
				Config:      main,
				ExpectError: words("capi@pve!main is there already, and Proxmox VE never tells its secret again"),
			},
			resource.TestStep{ // out of the way, it is made again
				PreConfig:         func() { lab.raw(http.MethodDelete, "/access/users/capi@pve/token/main", nil) },
				Config:            main,
				ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: remade(),
				Check:             lab.works,
			})
	}
	steps = append(steps,
		resource.TestStep{ // the user is gone: made again as a whole
			PreConfig:         func() { lab.raw(http.MethodDelete, "/access/users/capi@pve", nil) },
			Config:            provider + account(),
			ConfigPlanChecks:  accountAction(plancheck.ResourceActionCreate),
			ConfigStateChecks: remade(),
			Check:             lab.works,
		},
		resource.TestStep{ // another user, whose name needs quotes in most places, is another account
			Config:           provider + strings.ReplaceAll(account(), "capi@pve", "o'neil+$(x)&@pve"),
			ConfigPlanChecks: accountAction(plancheck.ResourceActionReplace),
			Check:            func(s *terraform.State) error { return errors.Join(lab.users("o'neil+$(x)&@pve"), lab.works(s)) },
		},
		resource.TestStep{
			ResourceName: accountAddress, ImportState: true, ImportStateId: "o'neil+$(x)&@pve!capi-token", ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"credentials.secret", "credentials_version"},
		},
	)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps:                    steps,
	})
}

// What an account is confined to, and permissions of one's own choice.
const (
	confineTo = `confine_to = {
    pool           = "capi"
    template_pool  = "templates"
    disk_storages  = ["local-lvm"]
    image_storages = ["local"]
    bridges        = ["vmbr0"]
  }`
	customGrants = `grants = [
    { path = "/", role = "PVEAuditor", propagate = false },
    { path = "/vms", role = "PVEVMUser" },
    { path = "/storage/local", privileges = ["Datastore.Audit", "Datastore.AllocateSpace"] },
  ]`
)

// accepts checks that Proxmox VE accepts the credentials of an earlier state.
func (lab *proxmoxLab) accepts(attributes map[string]string) error {
	client, err := proxmox.New(proxmox.Config{
		Endpoint: attributes["credentials.url"], TokenID: attributes["credentials.token"], TokenSecret: attributes["credentials.secret"],
		CAPEM: attributes["credentials.ca"], PollInterval: proxmoxPoll,
	})
	if err != nil {
		return err
	}
	_, err = client.Version(lab.t.Context())
	return err
}

// users checks which users there are.
func (lab *proxmoxLab) users(want ...string) error {
	if users := lab.sim.Summary().Users; !slices.Equal(users, want) {
		return fmt.Errorf("the users are %v, want %v", users, want)
	}
	return nil
}

func TestServiceAccountAdoptsNothing(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	lab.raw(http.MethodPost, "/access/users", map[string]any{"userid": "capi@pve", "enable": 1})
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps: []resource.TestStep{{
			Config:      lab.provider() + account(),
			ExpectError: regexp.MustCompile(`(?s)Unable to create the service account.*was\s+not\s+made\s+by\s+this\s+provider`),
		}},
	})
	if users := lab.sim.Summary().Users; !slices.Equal(users, []string{"capi@pve"}) {
		t.Errorf("the users are %v", users)
	}
}

func TestServiceAccountWhoseProviderIsKilledIsFinished(t *testing.T) {
	killedAtEachWrite(t,
		func(lab *proxmoxLab) string { return lab.provider() + account() },
		func(t *testing.T, lab *proxmoxLab) {
			s := lab.sim.Summary()
			if !slices.Equal(s.Users, []string{"capi@pve"}) || len(s.Tokens) != 2 || len(s.Roles) != 1 {
				t.Errorf("there is %+v, want one account", s)
			}
		})
}

// The first refresh finds the resource's own mark and makes it final: then no
// other workspace takes the account over.
func TestServiceAccountIsKeptOnceItIsInAState(t *testing.T) {
	lab := newProxmoxLab(t)
	first := newWorkspace(t, lab.provider()+account())
	first.must("apply", "-auto-approve", "-input=false")
	first.must("plan", "-input=false")
	second := newWorkspace(t, lab.provider()+account())
	out, err := second.run("apply", "-auto-approve", "-input=false")
	if err == nil || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(out, "│", " ")), " "), "belongs to another resource of this provider") {
		t.Errorf("the second workspace: %v\n%s", err, out)
	}
	if out, err := first.run("plan", "-detailed-exitcode", "-input=false"); err != nil {
		t.Errorf("the plan of the first: %v\n%s", err, out)
	}
	// A token of somebody else's keeps the user, which is told.
	lab.raw(http.MethodPost, "/access/users/capi@pve/token/other", nil)
	if out := flat(first.must("destroy", "-auto-approve", "-input=false", "-no-color")); !strings.Contains(out, "The user capi@pve was kept") || !strings.Contains(out, "other tokens: other.") {
		t.Errorf("the destroy says:\n%s", out)
	}
	if tokens := lab.sim.Summary().Tokens; !slices.Equal(tokens, []string{"capi@pve!other", "root@pam!terraform"}) {
		t.Errorf("the tokens are %v", tokens)
	}
}

func TestServiceAccountSecretsStayOutOfPlansAndLogs(t *testing.T) {
	lab := newProxmoxLab(t)
	w := newWorkspace(t, lab.provider()+account())
	t.Setenv("TF_LOG_PROVIDER", "TRACE")
	said := w.must("apply", "-auto-approve", "-input=false")
	state, err := os.ReadFile(filepath.Join(w.dir, "terraform.tfstate"))
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Resources []struct {
			Instances []struct {
				Attributes struct {
					Credentials struct{ Secret string }
				}
				Private []byte
			}
		}
	}
	if err := json.Unmarshal(state, &parsed); err != nil {
		t.Fatal(err)
	}
	instance := parsed.Resources[0].Instances[0]
	secret := instance.Attributes.Credentials.Secret
	if len(secret) != 36 {
		t.Fatalf("the secret in state is %q", secret)
	}
	lab.raw(http.MethodDelete, "/access/users/capi@pve/token/capi-token", nil)
	said += w.must("plan", "-input=false") + w.must("apply", "-auto-approve", "-input=false")
	for name, text := range map[string]string{"the output and the provider's log": said, "the private state": string(instance.Private)} {
		for what, value := range map[string]string{"the token's secret": secret, "the administrator's secret": lab.secret} {
			if strings.Contains(text, value) {
				t.Errorf("%s hold %s", name, what)
			}
		}
	}
	if !strings.Contains(said, "making sure of token") {
		t.Error("the provider's log is not in the output, so nothing was checked")
	}
}

// An account that somebody else has made can be imported. It gets what it lacks;
// its secret stays unknown, and its token as it is.
func TestServiceAccountOfSomebodyElseIsImported(t *testing.T) {
	lab := newProxmoxLab(t)
	lab.raw(http.MethodPost, "/access/users", map[string]any{"userid": "capi@pve", "enable": 1})
	secret, err := lab.sim.CreateToken("capi@pve", "capi-token", true)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorkspace(t, lab.provider()+account(`comment = "now ours"`)+`
import {
  to = capi_service_account.capi
  id = "capi@pve!capi-token"
}
`)
	if out := w.must("apply", "-auto-approve", "-input=false", "-no-color"); !strings.Contains(out, "1 imported, 0 added, 1 changed, 0 destroyed") {
		t.Errorf("the apply says:\n%s", out)
	}
	if out, err := w.run("plan", "-detailed-exitcode", "-input=false"); err != nil {
		t.Errorf("the plan after it is not empty: %v\n%s", err, out)
	}
	client, err := proxmox.New(proxmox.Config{
		Endpoint: lab.sim.URL(), TokenID: "capi@pve!capi-token", TokenSecret: secret, CAPEM: string(lab.sim.CA()), PollInterval: proxmoxPoll,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Version(t.Context()); err != nil {
		t.Errorf("the token does not work any more: %v", err)
	}
	w.must("destroy", "-auto-approve", "-input=false")
	if err := lab.empty(); err != nil {
		t.Error(err)
	}
}
