// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"encoding/json"
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
func (lab *proxmoxLab) works(s *terraform.State) error {
	a := accountAttributes(s)
	client, err := proxmox.New(proxmox.Config{
		Endpoint: a["credentials.url"], TokenID: a["credentials.token"], TokenSecret: a["credentials.secret"], CAPEM: a["credentials.ca"], PollInterval: proxmoxPoll,
	})
	if err != nil {
		return err
	}
	_, err = client.Version(lab.t.Context())
	return err
}

func accountAction(kind plancheck.ResourceActionType, more ...plancheck.PlanCheck) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: append(more, plancheck.ExpectResourceAction(accountAddress, kind))}
}

func TestServiceAccountThroughItsLife(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	secret := tfjsonpath.New("credentials").AtMapKey("secret")
	version := tfjsonpath.New("credentials_version")
	sameSecret := statecheck.CompareValue(compare.ValuesSame())
	newSecret := statecheck.CompareValue(compare.ValuesDiffer())
	newVersion := statecheck.CompareValue(compare.ValuesDiffer())
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			{ // made, and the credentials work
				Config: lab.provider() + account(`comment = "for tests"`),
				ConfigStateChecks: []statecheck.StateCheck{
					statecheck.ExpectKnownValue(accountAddress, tfjsonpath.New("credentials").AtMapKey("token"), knownvalue.StringExact("capi@pve!capi-token")),
					statecheck.ExpectKnownValue(accountAddress, tfjsonpath.New("credentials").AtMapKey("url"), knownvalue.StringExact(lab.sim.URL())),
					statecheck.ExpectKnownValue(accountAddress, tfjsonpath.New("credentials").AtMapKey("insecure"), knownvalue.Bool(false)),
					statecheck.ExpectSensitiveValue(accountAddress, tfjsonpath.New("credentials")),
					sameSecret.AddStateValue(accountAddress, secret),
					newSecret.AddStateValue(accountAddress, secret),
					newVersion.AddStateValue(accountAddress, version),
				},
				Check: lab.works,
			},
			{ // changed in place: the secret stays
				Config:            lab.provider() + account(`permissions = "article"`, `privilege_separation = false`),
				ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: []statecheck.StateCheck{sameSecret.AddStateValue(accountAddress, secret)},
				Check:             lab.works,
			},
			{
				Config:            lab.provider() + account(),
				ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: []statecheck.StateCheck{sameSecret.AddStateValue(accountAddress, secret)},
			},
			{ // damaged by others and repaired: the secret stays
				PreConfig: func() {
					lab.raw(http.MethodPut, "/access/users/capi@pve", map[string]any{"enable": 0})
					lab.raw(http.MethodPut, "/access/acl", map[string]any{"path": "/", "roles": "CAPI-capi-pve", "tokens": "capi@pve!capi-token", "delete": 1})
				},
				Config:            lab.provider() + account(),
				ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: []statecheck.StateCheck{sameSecret.AddStateValue(accountAddress, secret)},
				Check:             lab.works,
			},
			{ // imported: the secret is null, and nothing is planned
				ResourceName: accountAddress, ImportState: true, ImportStateId: "capi@pve!capi-token", ImportStateVerify: true,
				ImportStateVerifyIgnore: []string{"credentials.secret", "credentials_version"},
			},
			{ // the token is gone: a new one, in place, with a new version
				PreConfig: func() { lab.raw(http.MethodDelete, "/access/users/capi@pve/token/capi-token", nil) },
				Config:    lab.provider() + account(),
				ConfigPlanChecks: accountAction(plancheck.ResourceActionUpdate,
					plancheck.ExpectUnknownValue(accountAddress, tfjsonpath.New("credentials")), plancheck.ExpectUnknownValue(accountAddress, version)),
				ConfigStateChecks: []statecheck.StateCheck{newSecret.AddStateValue(accountAddress, secret), newVersion.AddStateValue(accountAddress, version)},
				Check:             lab.works,
			},
			{ // the token was made anew by others: its secret in state is refused
				PreConfig: func() {
					lab.raw(http.MethodPut, "/access/users/capi@pve/token/capi-token", map[string]any{"regenerate": 1})
				},
				Config:            lab.provider() + account(),
				ConfigPlanChecks:  accountAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: []statecheck.StateCheck{newSecret.AddStateValue(accountAddress, secret), newVersion.AddStateValue(accountAddress, version)},
				Check:             lab.works,
			},
			{ // the user is gone: made again as a whole
				PreConfig:         func() { lab.raw(http.MethodDelete, "/access/users/capi@pve", nil) },
				Config:            lab.provider() + account(),
				ConfigPlanChecks:  accountAction(plancheck.ResourceActionCreate),
				ConfigStateChecks: []statecheck.StateCheck{newSecret.AddStateValue(accountAddress, secret), newVersion.AddStateValue(accountAddress, version)},
				Check:             lab.works,
			},
			{ // another name is another account
				Config:           lab.provider() + strings.ReplaceAll(account(), "capi@pve", "other@pve"),
				ConfigPlanChecks: accountAction(plancheck.ResourceActionReplace),
				Check: func(*terraform.State) error {
					if users := lab.sim.Summary().Users; !slices.Equal(users, []string{"other@pve"}) {
						return fmt.Errorf("the users are %v", users)
					}
					return nil
				},
			},
		},
	})
}

func TestServiceAccountImportPlansNothing(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps: []resource.TestStep{
			{Config: lab.provider() + account(`permissions = "article"`)},
			{
				ResourceName: accountAddress, ImportState: true, ImportStateKind: resource.ImportBlockWithID, ImportStateId: "capi@pve!capi-token",
				Config: lab.provider() + account(`permissions = "article"`),
			},
		},
	})
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

func TestServiceAccountErrorsSayWhatToDo(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	tests := []struct{ name, configuration, want string }{
		{"a user without realm", strings.Replace(account(), "capi@pve", "capi", 1), `name@realm`},
		{"a realm that is not there", strings.Replace(account(), "capi@pve", "capi@nope", 1), `realm\s+"nope"`},
		{"a token name of one letter", strings.Replace(account(), "capi-token", "t", 1), `is\s+not\s+a\s+token\s+name`},
		{"unknown permissions", account(`permissions = "all"`), `least_privilege`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resource.UnitTest(t, resource.TestCase{
				ProtoV6ProviderFactories: testProviders(),
				CheckDestroy:             func(*terraform.State) error { return lab.empty() },
				Steps:                    []resource.TestStep{{Config: lab.provider() + tt.configuration, ExpectError: regexp.MustCompile(`(?s)` + tt.want)}},
			})
		})
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
	first.must("destroy", "-auto-approve", "-input=false")
	if err := lab.empty(); err != nil {
		t.Error(err)
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
