// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
)

// A template and an account get another address in the configuration, are
// forgotten by a state and taken over by the next one: nothing is made, changed or
// destroyed on Proxmox VE.
func TestTemplateAndAccountChangeTheirAddresses(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	const template, service = "capi_proxmox_template.golden", accountAddress + "_ops"
	first := lab.template("v1.13.7", `tags = ["talos"]`) + account()
	renamed := strings.NewReplacer(`"capi_proxmox_template" "talos"`, `"capi_proxmox_template" "golden"`, `"capi_service_account" "capi"`, `"capi_service_account" "capi_ops"`).Replace(first)
	moved := fmt.Sprintf("moved {\n  from = capi_proxmox_template.talos\n  to = %s\n}\nmoved {\n  from = %s\n  to = %s\n}\n", template, accountAddress, service)
	forgotten, taken := "", ""
	for address, id := range map[string]string{template: "pve1/100", service: "capi@pve!capi-token"} {
		forgotten += "removed {\n  from = " + address + "\n  lifecycle {\n    destroy = false\n  }\n}\n"
		taken += fmt.Sprintf("import {\n  to = %s\n  id = %q\n}\n", address, id)
	}
	unchanged := resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
		plancheck.ExpectResourceAction(template, plancheck.ResourceActionNoop), plancheck.ExpectResourceAction(service, plancheck.ResourceActionNoop),
	}}
	var uuid string
	same := func(*terraform.State) error {
		s := lab.sim.Summary()
		if len(s.VMs) != 1 || s.VMs[0].UUID != uuid || !slices.Equal(s.Tokens, []string{"capi@pve!capi-token", "root@pam!terraform"}) || lab.strike(0, nil) != 0 {
			return fmt.Errorf("something was written; there is %+v", s)
		}
		return nil
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			{Config: lab.provider() + first},
			{ // whose refresh makes the marks final
				Config: lab.provider() + first,
				Check: func(*terraform.State) error {
					uuid = lab.sim.Summary().VMs[0].UUID
					lab.strike(0, nil)
					return nil
				},
			},
			{Config: lab.provider() + moved + renamed, ConfigPlanChecks: unchanged, Check: same},
			{Config: lab.provider() + forgotten, Check: same},
			{Config: lab.provider() + taken + renamed, ConfigPlanChecks: unchanged, Check: same},
		},
	})
}
