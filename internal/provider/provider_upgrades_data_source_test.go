// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
)

func TestProviderUpgradesDataSource(t *testing.T) {
	cliPath(t)
	repository := t.TempDir()
	const metadata = "apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3\nkind: Metadata\nreleaseSeries:\n" +
		"- {major: 1, minor: 14, contract: v1beta2}\n- {major: 1, minor: 13, contract: v1beta2}\n- {major: 1, minor: 10, contract: v1beta1}\n"
	for _, version := range []string{"v1.10.2", "v1.10.9", "v1.13.4", "v1.14.2"} {
		folder := filepath.Join(repository, "cluster-api", version)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "metadata.yaml"), []byte(metadata), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := func(repository, core, rest string) string {
		return fmt.Sprintf(`
data "capi_provider_upgrades" "all" {
  repository = "file://%s"
  providers = {
    core = { "cluster-api" = { version = %q } }
    %s
  }
}
`, repository, core, rest)
	}
	all := "data.capi_provider_upgrades.all"
	resource.UnitTest(t, resource.TestCase{ProtoV6ProviderFactories: testProviders(), Steps: []resource.TestStep{
		{Config: data(t.TempDir(), "v1.14.2", ""), ExpectError: regexp.MustCompile(`Unable to list the releases of all providers`)},
		{Config: data(repository, "1.14.2", ""), ExpectError: regexp.MustCompile(`does not begin with v`)},
		{Config: data(repository, "v1.10.2", `ipam = { "in-cluster" = { version = "v1.1.0" } }`), Check: resource.ComposeAggregateTestCheckFunc(
			resource.TestCheckResourceAttr(all, "upgrades.%", "1"),
			resource.TestCheckResourceAttr(all, "upgrades.cluster-api.version", "v1.10.2"),
			resource.TestCheckResourceAttr(all, "upgrades.cluster-api.contract", "v1beta1"),
			resource.TestCheckResourceAttr(all, "upgrades.cluster-api.patch", "v1.10.9"),
			resource.TestCheckResourceAttr(all, "upgrades.cluster-api.latest", "v1.14.2"),
			resource.TestCheckResourceAttr(all, "upgrades.cluster-api.newer.#", "3"),
			resource.TestCheckResourceAttr(all, "upgrades.cluster-api.newer.1.version", "v1.13.4"),
			resource.TestCheckResourceAttr(all, "upgrades.cluster-api.newer.1.contract", "v1beta2"),
		)},
		{Config: data(repository, "v1.14.2", ""), Check: resource.ComposeAggregateTestCheckFunc(
			resource.TestCheckResourceAttr(all, "upgrades.cluster-api.newer.#", "0"),
			resource.TestCheckNoResourceAttr(all, "upgrades.cluster-api.latest"),
		)},
	}})
}
