// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// providersConfiguration is a configuration of capi_providers with the method
// clusterctl, whose parts a test changes.
type providersConfiguration struct {
	kubeconfig, repository     string
	method, core, ipam, others string
	availability               string
}

func (p providersConfiguration) text() string {
	return fmt.Sprintf(`
resource "capi_providers" "target" {
  cluster      = { kubeconfig_path = %q }
  method       = %q
  cert_manager = { version = "v1.21.0" }
  repository   = "file://%s"
  providers = {
    core = { "cluster-api" = { version = %q } }
    ipam = { "in-cluster" = { version = %q } }
    %s
  }
  %s
}
`, p.kubeconfig, p.method, p.repository, p.core, p.ipam, p.others, p.availability)
}

func TestProvidersByClusterctlChangeInPlace(t *testing.T) {
	cliPath(t)
	lab := newPodsLab(t)
	lab.deleted(t, "changed")
	repository := t.TempDir()
	if err := lab.WithOlder(repository, map[string]string{"cluster-api": "v1.13.4", "ipam-in-cluster": "v1.0.3"}); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := lab.Ensure(t.Context(), bootstrap.Cluster{Name: "changed", KubernetesVersion: defaultKubernetesVersion, Images: []string{"oci-layout:" + lab.ImageLayout}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := kube.ConfigFromKubeconfig(kubeconfig, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := kube.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}

	older := providersConfiguration{kubeconfig: file, repository: repository, method: "clusterctl", core: "v1.13.4", ipam: "v1.0.3"}
	w := newWorkspace(t, older.text())
	lab.applyKilled(t, w, "changed", "apps/v1", "Deployment", "capi-system", "capi-controller-manager")
	w.must("apply", "-auto-approve", "-input=false")
	// A provider that dies when all is done has saved nothing of it.
	state := filepath.Join(w.dir, "terraform.tfstate")
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)
	if err := os.Rename(state, state+".kept"); err != nil {
		t.Fatal(err)
	}
	if out, err := w.run("apply", "-auto-approve", "-input=false", "-no-color"); err == nil || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(out, "│", "")), " "), "not by this resource") {
		t.Errorf("a second resource takes over what is in the first one's state: %v\n%s", err, out)
	}
	if err := os.Rename(state+".kept", state); err != nil {
		t.Fatal(err)
	}

	newer := older
	newer.core, newer.ipam = "v1.14.2", "v1.1.0"
	newer.others = `bootstrap = { kubeadm = { version = "v1.14.2" } }`
	newer.availability = `availability = { replicas = 2, spread = "kubernetes.io/hostname", disruption_budget = true, requests = { cpu = "11m" } }`
	w.configure(newer.text())
	plan := strings.Join(strings.Fields(w.must("plan", "-input=false", "-no-color")), " ")
	for _, want := range []string{
		"cluster-api: v1.13.4 -> v1.14.2, contract v1beta2", "ipam-in-cluster: v1.0.3 -> v1.1.0, contract v1beta1 -> v1beta2", "bootstrap-kubeadm: v1.14.2, new, contract v1beta2",
	} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan does not say %q:\n%s", want, plan)
		}
	}
	// The provider dies when one of the upgraded providers is in.
	lab.applyKilled(t, w, "changed", "policy/v1", "PodDisruptionBudget", "capi-system", "capi-controller-manager")
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)
	if versions := lab.installed(t, w); versions["cluster-api"] != "v1.14.2" || versions["ipam-in-cluster"] != "v1.1.0" || versions["bootstrap-kubeadm"] != "v1.14.2" {
		t.Errorf("installed are %v", versions)
	}
	for _, name := range []string{"capi-system/capi-controller-manager", "capi-ipam-in-cluster-system/capi-ipam-in-cluster-controller-manager"} {
		namespace, name, _ := strings.Cut(name, "/")
		d, err := c.Object(t.Context(), "apps/v1", "Deployment", namespace, name)
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(d.Object["spec"]); !strings.Contains(text, "replicas:2") || !strings.Contains(text, "cpu:11m") || !strings.Contains(text, "topologyKey:kubernetes.io/hostname") {
			t.Errorf("%s is not as available as asked: %s", name, text)
		}
	}

	for name, wrong := range map[string]struct {
		change func(p *providersConfiguration)
		says   string
	}{
		"an older version": {func(p *providersConfiguration) { p.ipam = "v1.0.3" }, "nothing is taken back to an older version"},
		"another method": {func(p *providersConfiguration) {
			p.method = "operator"
			p.availability += fmt.Sprintf("\n  operator = { version = \"0.28.0\", chart = %q }", lab.Charts["cluster-api-operator"])
		}, "Unable to change the method"},
	} {
		configuration := newer
		wrong.change(&configuration)
		w.configure(configuration.text())
		out, err := w.run("plan", "-input=false", "-no-color")
		if err == nil || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(out, "│", "")), " "), wrong.says) {
			t.Errorf("%s: the plan answers %v\n%s", name, err, out)
		}
	}

	fewer := newer
	fewer.others, fewer.availability = "", ""
	w.configure(fewer.text())
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)
	if versions := lab.installed(t, w); len(versions) != 2 {
		t.Errorf("installed are %v", versions)
	}
	if _, err := c.Object(t.Context(), "policy/v1", "PodDisruptionBudget", "capi-system", "capi-controller-manager"); !kube.IsAbsent(err) {
		t.Errorf("the disruption budget is still there: %v", err)
	}

	w.must("destroy", "-auto-approve", "-input=false")
	if left, err := capi.Inventory(t.Context(), config); err != nil || len(left) > 0 {
		t.Errorf("after the destroy there are %v, %v", left, err)
	}
}
