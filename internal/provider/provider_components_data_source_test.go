// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

func TestProviderComponentsDataSource(t *testing.T) {
	cliPath(t)
	set, err := artifacts.Ensure(t.Context(), func(_ context.Context, _, message string) { t.Log(message) })
	if err != nil {
		t.Fatal(err)
	}
	data := func(repository, rest string) string {
		return fmt.Sprintf(`
data "capi_provider_components" "all" {
  repository         = "file://%s"
  kubernetes_version = "v1.36.2"
  cert_manager       = { version = "v1.21.0" }
  providers = {
    core = { "cluster-api" = { version = "v1.14.2" } }
    ipam = { "in-cluster" = { version = "v1.1.0" } }
    infrastructure = { proxmox = { version = "v0.9.0", credentials = { url = "https://pve.example:8006", token = "a@pve!b", secret = "never-asked-for" } } }
    %s
  }
}
`, repository, rest)
	}
	all := "data.capi_provider_components.all"
	resource.UnitTest(t, resource.TestCase{ProtoV6ProviderFactories: testProviders(), Steps: []resource.TestStep{
		{Config: data(set.Repository, `bootstrap = { k3s = { version = "v0.3.0" } }`), ExpectError: regexp.MustCompile(`bootstrap-k3s v0.3.0`)},
		{Config: data(t.TempDir(), ""), ExpectError: regexp.MustCompile(`Unable to read the providers' releases`)},
		{Config: data(set.Repository, ""), Check: resource.ComposeAggregateTestCheckFunc(
			resource.TestCheckResourceAttr(all, "releases.#", "4"),
			resource.TestCheckResourceAttr(all, "releases.0.label", "cert-manager"),
			resource.TestCheckResourceAttr(all, "releases.2.label", "infrastructure-proxmox"),
			resource.TestCheckResourceAttr(all, "releases.2.contract", "v1beta2"),
			resource.TestCheckResourceAttr(all, "files.%", "7"),
			resource.TestMatchResourceAttr(all, "files.cluster-api/v1.14.2/metadata.yaml", regexp.MustCompile(`^file:///.*/cluster-api/v1.14.2/metadata.yaml$`)),
			resource.TestCheckTypeSetElemAttr(all, "images.*", "registry.k8s.io/kube-apiserver:v1.36.2"),
			resource.TestCheckResourceAttr(all, "images.#", "10"),
		)},
	}})
}
