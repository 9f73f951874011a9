// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/contract"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
)

// clusterLab is an API server that takes the part of the bootstrap cluster, beside
// one whose kubeconfig the management cluster has.
type clusterLab struct {
	t          *testing.T
	client     *kube.Client
	kubeconfig string // a file
	manifest   string // a file
}

func newClusterLab(t *testing.T) *clusterLab {
	t.Helper()
	running, made := plane.Start(t), plane.Start(t)
	c := running.Client(t)
	running.InstallKinds(t, c, "cluster-api", "infrastructure-proxmox", "bootstrap-talos", "control-plane-talos")
	dir := t.TempDir()
	lab := &clusterLab{t: t, client: c, kubeconfig: filepath.Join(dir, "kubeconfig"), manifest: filepath.Join(dir, "kmgt.yaml")}
	if err := os.WriteFile(lab.kubeconfig, running.Kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"kmgt", "article"} {
		contract.Run(t, c, client.ObjectKey{Namespace: namespace, Name: "kmgt"}, made.Kubeconfig)
	}
	lab.write("kmgt")
	return lab
}

// write writes the example's manifest for a namespace, with changes.
func (l *clusterLab) write(namespace string, changes ...string) {
	l.t.Helper()
	content, err := os.ReadFile("../../examples/talos-proxmox/kmgt.yaml")
	if err != nil {
		l.t.Fatal(err)
	}
	text := strings.NewReplacer(changes...).Replace(strings.ReplaceAll(string(content), "namespace: kmgt", "namespace: "+namespace))
	if err := os.WriteFile(l.manifest, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *clusterLab) config(namespace string, attributes ...string) string {
	return fmt.Sprintf(`
resource "capi_management_cluster" %q {
  bootstrap = { kubeconfig_path = %q }
  name      = "kmgt"
  namespace = %q
  manifest  = file(%q)
  substitutions = {
    TEMPLATE_ID = 9000, NODE = "pve1", BRIDGE = "vmbr0", VIP = "10.0.0.150", ADDRESSES = "10.0.0.160-10.0.0.180", PREFIX = 24, GATEWAY = "10.0.0.1", DNS_SERVER = "10.0.0.1"
  }
  %s
}
`, namespace, l.kubeconfig, namespace, l.manifest, strings.Join(attributes, "\n  "))
}

func (l *clusterLab) plane(namespace string) *unstructured.Unstructured {
	l.t.Helper()
	found, err := l.client.Object(l.t.Context(), "controlplane.cluster.x-k8s.io/v1alpha3", "TalosControlPlane", namespace, "kmgtcp")
	if err != nil {
		l.t.Fatal(err)
	}
	return found
}

func (l *clusterLab) templates(namespace string) []string {
	l.t.Helper()
	objects, err := l.client.Objects(l.t.Context(), "infrastructure.cluster.x-k8s.io/v1alpha2", "ProxmoxMachineTemplate", namespace)
	if err != nil {
		l.t.Fatal(err)
	}
	var names []string
	for _, o := range objects {
		names = append(names, o.GetName())
	}
	return names
}

const testSecret = `secrets_wo = "apiVersion: v1\nkind: Secret\nmetadata: {name: proxmox-credentials, namespace: kmgt}\nstringData: {secret: %s}\n"`

func TestManagementClusterResource(t *testing.T) {
	cliPath(t)
	lab := newClusterLab(t)
	const address = "capi_management_cluster.kmgt"
	state := func(attribute string, check knownvalue.Check) statecheck.StateCheck {
		return statecheck.ExpectKnownValue(address, tfjsonpath.New(attribute), check)
	}
	updates := resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, plancheck.ResourceActionUpdate)}}
	first, second := fmt.Sprintf(testSecret, "one"), fmt.Sprintf(testSecret, "two")
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps: []resource.TestStep{
			{
				Config: lab.config("kmgt", first),
				ConfigStateChecks: []statecheck.StateCheck{
					state("home", knownvalue.StringExact("bootstrap")), state("phase", knownvalue.StringExact("ready")), state("drift", knownvalue.Null()),
					state("machines", knownvalue.ListSizeExact(1)), state("secrets_hash", knownvalue.StringRegexp(regexp.MustCompile(`^[0-9a-f]{64}$`))),
				},
			},
			{ // the mark that the creation is finished is written by a refresh
				RefreshState: true,
			},
			{ // Secrets that changed plan an update, though their version does not
				Config: lab.config("kmgt", second), ConfigPlanChecks: updates,
			},
			{ // what somebody changed is shown, and set back
				PreConfig: func() {
					contract.Edit(t.Context(), t, lab.client, lab.plane("kmgt"), `{"spec": {"controlPlaneConfig": {"controlplane": {"talosVersion": "v1.12"}}}}`)
				},
				RefreshState: true, ExpectNonEmptyPlan: true,
			},
			{
				Config: lab.config("kmgt", second), ConfigPlanChecks: updates,
				ConfigStateChecks: []statecheck.StateCheck{state("drift", knownvalue.Null())},
				Check: func(*terraform.State) error {
					version, _, _ := unstructured.NestedString(lab.plane("kmgt").Object, "spec", "controlPlaneConfig", "controlplane", "talosVersion")
					if version != "v1.13" {
						return fmt.Errorf("the apply leaves Talos %s", version)
					}
					return nil
				},
			},
			{ // another template rolls the machine
				PreConfig: func() { lab.write("kmgt", "memoryMiB: 8192", "memoryMiB: 4096") },
				Config:    lab.config("kmgt", second), ConfigPlanChecks: updates,
				ConfigStateChecks: []statecheck.StateCheck{state("machines", knownvalue.ListSizeExact(1))},
				Check: func(*terraform.State) error {
					if names := lab.templates("kmgt"); len(names) != 1 || names[0] == "kmgtcp" {
						return fmt.Errorf("the templates are %v", names)
					}
					return nil
				},
			},
			{ // a mistake is told at plan, and nothing is changed
				PreConfig:   func() { lab.write("kmgt", "memoryMiB: 8192", "memoryMiB: 4095") },
				Config:      lab.config("kmgt", second),
				ExpectError: regexp.MustCompile(`4095 MiB is not a multiple of 8`),
			},
			{
				PreConfig: func() { lab.write("kmgt", "memoryMiB: 8192", "memoryMiB: 4096") },
				Config:    lab.config("kmgt", second), PlanOnly: true,
			},
		},
		CheckDestroy: func(*terraform.State) error {
			if _, err := (cluster.Home{Client: lab.client, Namespace: "kmgt", Name: "kmgt"}).Cluster(t.Context()); !kube.IsAbsent(err) {
				return fmt.Errorf("after the destroy the Cluster is there, or it is not known: %w", err)
			}
			return nil
		},
	})
	t.Run("import", func(t *testing.T) { testImportedCluster(t, lab) })
}

// testImportedCluster makes the cluster as the article does, with kubectl, and
// imports it: nothing is rolled, and the plan is empty from then on.
func testImportedCluster(t *testing.T, lab *clusterLab) {
	lab.t = t
	lab.write("article")
	content, err := os.ReadFile(lab.manifest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := cluster.Load(string(content), map[string]string{
		"TEMPLATE_ID": "9000", "NODE": "pve1", "BRIDGE": "vmbr0", "VIP": "10.0.0.150", "ADDRESSES": "10.0.0.160-10.0.0.180", "PREFIX": "24", "GATEWAY": "10.0.0.1", "DNS_SERVER": "10.0.0.1",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.client.EnsureNamespace(t.Context(), "article"); err != nil {
		t.Fatal(err)
	}
	for _, o := range manifest.Objects {
		if err := lab.client.Create(t.Context(), o.DeepCopy(), client.FieldOwner("kubectl-create")); err != nil {
			t.Fatal(err)
		}
	}
	home := cluster.Home{Client: lab.client, Namespace: "article", Name: "kmgt"}
	if err := home.WaitRolledOut(t.Context(), cluster.ApplyOptions{Manifest: manifest}); err != nil {
		t.Fatal(err)
	}
	machines, err := home.Machines(t.Context())
	if err != nil || len(machines) != 1 {
		t.Fatalf("machines %v, %v", machines, err)
	}
	generation := lab.plane("article").GetGeneration()
	imported := fmt.Sprintf("import {\n  to = capi_management_cluster.article\n  id = %q\n}\n", lab.kubeconfig+"#article/kmgt") + lab.config("article")
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps: []resource.TestStep{{
			Config: imported, // the framework wants an empty plan after it
			Check: func(*terraform.State) error {
				after, err := home.Machines(t.Context())
				if err != nil {
					return err
				}
				if len(after) != 1 || after[0].Name != machines[0].Name {
					return fmt.Errorf("machine %s became %v", machines[0].Name, after)
				}
				if names := lab.templates("article"); len(names) != 1 || names[0] != "kmgtcp" {
					return fmt.Errorf("the templates are %v", names)
				}
				if got := lab.plane("article").GetGeneration(); got != generation {
					return fmt.Errorf("the control plane's generation %d became %d", generation, got)
				}
				return nil
			},
		}},
	})
}
