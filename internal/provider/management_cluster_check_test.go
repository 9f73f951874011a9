// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/config"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
)

// copyExample copies the main example for a test's provider, with changes to its
// manifest.
func copyExample(t *testing.T, changes ...string) string {
	t.Helper()
	const source = "../../examples/talos-proxmox"
	entries, err := os.ReadDir(source)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(source, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		switch entry.Name() {
		case "main.tf":
			// The test framework brings the provider itself.
			text = text[strings.Index(text, "\n}\n")+3:]
		case "kmgt.yaml":
			for i := 0; i < len(changes); i += 2 {
				if !strings.Contains(text, changes[i]) {
					t.Fatalf("the example's manifest has no %q", changes[i])
				}
				text = strings.Replace(text, changes[i], changes[i+1], 1)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, entry.Name()), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestTheFirstPlanTellsMistakesInTheManifest plans the main example before
// anything of it exists, with mistakes planted all over its manifest.
func TestTheFirstPlanTellsMistakesInTheManifest(t *testing.T) {
	cliPath(t)
	variables := config.Variables{
		"proxmox_endpoint": config.StringVariable("https://127.0.0.1:1"), "proxmox_token_id": config.StringVariable("root@pam!tf"), "proxmox_token_secret": config.StringVariable("s"),
		"vip": config.StringVariable("10.0.0.150"), "addresses": config.StringVariable("10.0.0.160-10.0.0.180"), "gateway": config.StringVariable("10.0.0.1"), "dns_server": config.StringVariable("10.0.0.1"),
	}
	// The example has a provider block, so the framework wants them at each step.
	factories := map[string]func() (tfprotov6.ProviderServer, error){"capi": providerserver.NewProtocol6WithError(New("test")())}
	step := func(fails string, changes ...string) resource.TestStep {
		s := resource.TestStep{ProtoV6ProviderFactories: factories, ConfigDirectory: config.StaticDirectory(copyExample(t, changes...)), ConfigVariables: variables, PlanOnly: true, ExpectNonEmptyPlan: fails == ""}
		if fails != "" {
			s.ExpectError = regexp.MustCompile("(?s)" + strings.ReplaceAll(fails, " ", `[\s│╷]+`))
		}
		return s
	}
	resource.UnitTest(t, resource.TestCase{
		Steps: []resource.TestStep{
			step(""),
			step(`Unable to use the manifest.*line 8, Cluster kmgt/kmgt, spec\.clusterNetwork\.pods.*overlaps the network of the machines`+
				`.*line 11, Cluster kmgt/kmgt, spec\.infrastructureRef: refers to ProxmoxCluster "other"`+
				`.*line 29, TalosControlPlane kmgt/kmgtcp, spec\.replicas: a control plane of 2 machines`+
				`.*line 43, .*the virtual address is 10\.0\.0\.151`+
				`.*line 66, ProxmoxMachineTemplate kmgt/kmgtcp, spec\.template\.spec\.memoryMiB: 8190 MiB`,
				"[10.244.0.0/16]", "[10.0.0.0/22]", "kind: ProxmoxCluster, name: kmgt", "kind: ProxmoxCluster, name: other", "replicas: 1", "replicas: 2",
				`vip: {ip: "${VIP}"}`, "vip: {ip: 10.0.0.151}", "memoryMiB: 8192", "memoryMiB: 8190"),
			step(`Unable to use the manifest.*[Ll]ine 65.*the placeholder \$\{CORES\} has no value in substitutions`, "numCores: 4", "numCores: ${CORES}"),
			step(`Unable to use the manifest.*[Dd]ocument 2, line 1[0-9]`, "kind: ProxmoxCluster\nmetadata: {name: kmgt, namespace: kmgt}", "kind: ProxmoxCluster\nmetadata: [name: kmgt"),
		},
	})
}
