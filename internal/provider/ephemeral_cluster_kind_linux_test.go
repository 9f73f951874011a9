// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/kind"
)

// TestEphemeralClusterByKind needs a container engine and a node image that it
// has: see make testacc-kind.
func TestEphemeralClusterByKind(t *testing.T) {
	image := os.Getenv("KIND_TEST_NODE_IMAGE")
	if image == "" {
		t.Skip("no node image is named in KIND_TEST_NODE_IMAGE: kind is not tried with a real engine")
	}
	cliPath(t)
	lab := newPodsLab(t)
	lab.Runtime = kind.Runtime{State: lab.State}
	name := fmt.Sprintf("capi-acc-%d", os.Getpid())
	lab.deleted(t, name)
	repository := t.TempDir()
	if err := lab.WithOlder(repository, map[string]string{"cluster-api": "v1.13.4", "ipam-in-cluster": "v1.0.3"}); err != nil {
		t.Fatal(err)
	}
	configuration := func(providers string) string {
		return fmt.Sprintf(`
provider "capi" { state_dir = %q }
resource "capi_ephemeral_cluster" "bootstrap" {
  name         = %q
  runtime      = "kind"
  kind         = { node_image = %q }
  images       = ["oci-layout:%s"]
  repository   = "file://%s"
  cert_manager = { version = "v1.21.0" }
  providers    = { %s }
}
output "status" { value = capi_ephemeral_cluster.bootstrap.status }
`, lab.State, name, image, lab.ImageLayout, repository, providers)
	}
	w := newWorkspace(t, configuration(`core = { "cluster-api" = { version = "v1.13.4" } }, ipam = { "in-cluster" = { version = "v1.0.3" } }`))
	lab.applyKilled(t, w, name, "apps/v1", "Deployment", "capi-system", "capi-controller-manager")
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)
	w.configure(configuration(`core = { "cluster-api" = { version = "v1.14.2" } }, ipam = { "in-cluster" = { version = "v1.1.0" } }, bootstrap = { kubeadm = { version = "v1.14.2" } }`))
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)
	if status := w.must("output", "-raw", "status"); strings.TrimSpace(status) != string(bootstrap.Running) {
		t.Errorf("its status is %q", status)
	}
	w.must("destroy", "-auto-approve", "-input=false")
	if status, err := lab.Status(t.Context(), name); err != nil || status != bootstrap.NotHere {
		t.Errorf("after the destroy the cluster is %s, %v", status, err)
	}
}
