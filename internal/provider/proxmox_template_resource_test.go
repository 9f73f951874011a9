// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

const agentSchematic = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515"

func jsonBody(t *testing.T, body map[string]any) []byte {
	t.Helper()
	if body == nil {
		return nil
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// action expects one action for the template.
func action(kind plancheck.ResourceActionType) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction("capi_proxmox_template.talos", kind)}}
}

func TestTemplateIsReplacedCreateFirst(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	lifecycle := "lifecycle {\n    create_before_destroy = true\n  }"
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			{Config: lab.provider() + lab.template("v1.13.6", lifecycle)},
			{
				Config:           lab.provider() + lab.template("v1.13.7", lifecycle),
				ConfigPlanChecks: action(plancheck.ResourceActionCreateBeforeDestroy),
				Check: func(*terraform.State) error {
					if vms := lab.sim.Summary().VMs; len(vms) != 1 || vms[0].ID != 101 {
						return fmt.Errorf("the VMs are %+v, want 101 alone", vms)
					}
					return nil
				},
			},
		},
	})
}

func TestTemplateWithLinkedClonesStays(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t, func(o *pvesim.Options) {
		o.Storages = append(pvesim.DefaultStorages(), pvesim.Storage{ID: "zfs", Type: "zfspool", Content: []string{"images"}})
	})
	configuration := lab.provider() + strings.Replace(lab.template("v1.13.7"), "local-lvm", "zfs", 1)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			{Config: configuration},
			{
				PreConfig:   func() { lab.raw(http.MethodPost, "/nodes/pve1/qemu/100/clone", map[string]any{"newid": 300}) },
				Config:      configuration,
				Destroy:     true,
				ExpectError: regexp.MustCompile(`(?s)Unable to delete the template.*in use by linked\s+clones:\s+VM\s+300`),
			},
			{
				PreConfig: func() { lab.raw(http.MethodDelete, "/nodes/pve1/qemu/300", nil) },
				Config:    configuration,
			},
		},
	})
}

func TestTemplateRefreshWithoutAnAnswerKeepsTheState(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			{Config: lab.provider() + lab.template("v1.13.7")},
			{
				Config:             lab.provider("endpoint", "https://127.0.0.1:1") + lab.template("v1.13.7"),
				PlanOnly:           true,
				ExpectNonEmptyPlan: false,
			},
			{ // a wrong login is the user's to put right
				Config:      lab.provider("secret", newUUID()) + lab.template("v1.13.7"),
				PlanOnly:    true,
				ExpectError: regexp.MustCompile(`(?s)Unable to read the template.*does\s+not\s+accept\s+the\s+login`),
			},
			{Config: lab.provider() + lab.template("v1.13.7"), PlanOnly: true},
		},
	})
}

func TestTemplateErrorsSayWhatToDo(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	tests := []struct{ name, configuration, want string }{
		{"a version that the factory has not", lab.template("v1.13.99"), `(?i)talos\s+v1.13.99:\s+not\s+served`},
		{"an extension that the factory has not", strings.Replace(lab.template("v1.13.7"), "siderolabs/qemu", "siderolabs/qemo", 1), `(?i)extension\s+siderolabs/qemo-guest-agent`},
		{"no version", lab.template("1.13.7"), `is\s+not\s+a\s+Talos\s+version`},
		{"no extension name", strings.Replace(lab.template("v1.13.7"), "siderolabs/", "", 1), `owner/name`},
		{"upper case in a tag", lab.template("v1.13.7", `tags = ["Talos"]`), `is\s+not\s+a\s+tag`},
		{"no DNS name", lab.template("v1.13.7", `name = "my_template"`), `is\s+not\s+a\s+DNS\s+name`},
		{"an id below 100", lab.template("v1.13.7", `vm_id = 99`), `between\s+100`},
		{"an unknown storage", strings.Replace(lab.template("v1.13.7"), "local-lvm", "nope", 1), `(?i)no\s+storage\s+"nope"`},
		{"a disk that is too small", lab.template("v1.13.7", `disk_size = 1`), `disks\s+do\s+not\s+shrink`},
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

// A Create that fails half-way taints. Whatever is done then ends well.
func TestTemplateThatFailedHalfWay(t *testing.T) {
	tests := []struct {
		name string
		then func(*testing.T, *proxmoxLab, *workspace)
	}{
		{"apply takes the VM over", func(t *testing.T, lab *proxmoxLab, w *workspace) {
			before := lab.sim.Summary().VMs[0].UUID
			w.must("apply", "-auto-approve", "-input=false")
			if after := lab.sim.Summary().VMs; len(after) != 1 || after[0].UUID != before || !after[0].Template {
				t.Errorf("the VMs are %+v, want the one with UUID %s", after, before)
			}
		}},
		{"untaint and apply finish it in place", func(t *testing.T, lab *proxmoxLab, w *workspace) {
			w.must("untaint", "capi_proxmox_template.talos")
			if out := w.must("apply", "-auto-approve", "-input=false"); !strings.Contains(out, "0 added, 1 changed, 0 destroyed") {
				t.Errorf("the apply says:\n%s", out)
			}
			if vms := lab.sim.Summary().VMs; len(vms) != 1 || !vms[0].Template {
				t.Errorf("the VMs are %+v", vms)
			}
		}},
		{"another name finds it and says so", func(t *testing.T, lab *proxmoxLab, w *workspace) {
			w.configure(lab.provider() + lab.template("v1.13.7", "disk_size = 10", `name = "other"`))
			out := w.must("apply", "-auto-approve", "-input=false")
			if !strings.Contains(out, "An unfinished template was found") || !strings.Contains(out, "qm destroy 100") {
				t.Errorf("the apply says:\n%s", out)
			}
			lab.raw(http.MethodDelete, "/nodes/pve1/qemu/100", nil)
			for _, file := range lab.sim.Summary().Files {
				if strings.Contains(file, ":import/") {
					lab.raw(http.MethodDelete, "/nodes/pve1/storage/local/content/"+file, nil)
				}
			}
		}},
		{"destroy removes all of it", func(*testing.T, *proxmoxLab, *workspace) {}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lab := newProxmoxLab(t)
			w := newWorkspace(t, lab.provider()+lab.template("v1.13.7", "disk_size = 10"))
			lab.refuseCalls("/qemu/100/template")
			out, err := w.run("apply", "-auto-approve", "-input=false", "-no-color")
			text := strings.Join(strings.Fields(strings.ReplaceAll(out, "│", " ")), " ")
			if err == nil {
				t.Fatalf("the apply succeeds:\n%s", out)
			}
			for _, want := range []string{"Unable to create the template", "the disk is on fire", "VM 100 on node pve1, unfinished (phase convert)", "terraform untaint"} {
				if !strings.Contains(text, want) {
					t.Errorf("the error has no %q:\n%s", want, out)
				}
			}
			lab.allowCalls()
			tt.then(t, lab, w)
			w.must("destroy", "-auto-approve", "-input=false")
			if err := lab.empty(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Three templates in one apply ask for a free id at the same time.
func TestSeveralTemplatesAtOnce(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t, func(o *pvesim.Options) { o.Timing = pvesim.RealTiming().Scale(0.05) })
	many := strings.Replace(lab.template("v1.13.7", `name = "t${count.index}"`), "node_name", "count = 3\n  node_name", 1)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{{
			Config: lab.provider() + many,
			Check: func(*terraform.State) error {
				names := map[string]bool{}
				for _, vm := range lab.sim.Summary().VMs {
					names[vm.Name] = vm.Template
				}
				if len(names) != 3 || !names["t0"] || !names["t1"] || !names["t2"] {
					return fmt.Errorf("the VMs are %+v", lab.sim.Summary().VMs)
				}
				return nil
			},
		}},
	})
}

func TestTemplateWhoseProviderIsKilledIsFinished(t *testing.T) {
	killedAtEachWrite(t,
		func(lab *proxmoxLab) string { return lab.provider() + lab.template("v1.13.7", "disk_size = 10") },
		func(t *testing.T, lab *proxmoxLab) {
			s := lab.sim.Summary()
			if len(s.VMs) != 1 || !s.VMs[0].Template {
				t.Errorf("the VMs are %+v, want one template", s.VMs)
			}
			for _, file := range s.Files {
				if strings.Contains(file, ":import/") {
					t.Errorf("the image file %s is left", file)
				}
			}
		})
}

func TestPlansWorkWithNothingRunning(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	unknown := `
resource "terraform_data" "later" {
  input = "v1.13.7"
}
`
	tests := []struct{ name, configuration string }{
		{"a template", lab.provider("endpoint", "https://127.0.0.1:1") + lab.template("v1.13.7")},
		{"a template of an unknown version", lab.provider("endpoint", "https://127.0.0.1:1") + unknown +
			strings.Replace(lab.template("v1.13.7"), `"v1.13.7"`, "terraform_data.later.output", 1)},
		{"an account", lab.provider("endpoint", "https://127.0.0.1:1") + account()},
		{"an account at an unknown address", `
provider "capi" {
  proxmox = {
    endpoint     = terraform_data.later.output
    token_id     = "root@pam!terraform"
    token_secret = "unused"
  }
}
` + unknown + account()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resource.UnitTest(t, resource.TestCase{
				ProtoV6ProviderFactories: testProviders(),
				Steps:                    []resource.TestStep{{Config: tt.configuration, PlanOnly: true, ExpectNonEmptyPlan: true}},
			})
		})
	}
	if lab.strike(0, nil) != 0 {
		t.Error("a plan wrote to Proxmox VE")
	}
}

// A template and an account are made in an apply that learns the version and
// the address of Proxmox VE only while it runs.
func TestAnApplyLearnsItsInputsOnTheWay(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	late := fmt.Sprintf(`
resource "terraform_data" "version" {
  input = "v1.13.7"
}

resource "terraform_data" "address" {
  input = %q
}
`, lab.sim.URL())
	provider := strings.Replace(lab.provider(), fmt.Sprintf("%q", lab.sim.URL()), "terraform_data.address.output", 1)
	template := strings.Replace(lab.template("v1.13.7"), `"v1.13.7"`, "terraform_data.version.output", 1)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			{Config: late + provider + template + account(), Check: lab.works},
			{Config: late + provider + template + account(), PlanOnly: true},
		},
	})
}
