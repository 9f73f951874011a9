// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// planeRuntime is a runtime of one cluster, a control plane whose pods are
// pretended.
type planeRuntime struct {
	plane *plane.Plane
	mu    sync.Mutex
	state bootstrap.Status
	fail  error
}

func (r *planeRuntime) Ensure(context.Context, bootstrap.Cluster, progress.Reporter) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return nil, r.fail
	}
	r.state = bootstrap.Running
	return r.plane.Kubeconfig, nil
}

func (r *planeRuntime) Status(context.Context, string) (bootstrap.Status, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.fail
}

func (r *planeRuntime) Kubeconfig(_ context.Context, name string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.state {
	case bootstrap.NotHere:
		return nil, fmt.Errorf("%s: %w", name, kube.ErrAbsent)
	case bootstrap.Stopped:
		return nil, fmt.Errorf("%s is stopped", name)
	}
	return r.plane.Kubeconfig, nil
}

func (r *planeRuntime) Delete(context.Context, string) error {
	r.set(bootstrap.NotHere, nil)
	return nil
}

func (r *planeRuntime) set(state bootstrap.Status, fail error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.fail = state, fail
}

// ephemeralLab is a provider whose only runtime is a plane, with a repository of
// providers that need no webhooks.
type ephemeralLab struct {
	*planeRuntime
	client     *kube.Client
	repository string
}

func newEphemeralLab(t *testing.T) *ephemeralLab {
	t.Helper()
	p := plane.Start(t)
	p.PretendNode(t)
	c, err := kube.NewClient(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	lab := &ephemeralLab{planeRuntime: &planeRuntime{plane: p, state: bootstrap.NotHere}, client: c, repository: t.TempDir()}
	for _, file := range []string{
		"cluster-api/v1.14.2/core-components.yaml", "infrastructure-proxmox/v0.9.0/infrastructure-components.yaml", "ipam-in-cluster/v1.1.0/ipam-components.yaml",
	} {
		lab.copyWithoutWebhooks(t, file)
	}
	for _, object := range documents(t, filepath.Join(p.Artifacts.Repository, "cert-manager/v1.21.0/cert-manager.yaml")) {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		if _, err := c.ApplyObject(t.Context(), object, kube.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return lab
}

func documents(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := kube.ParseDocuments(text)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func (l *ephemeralLab) copyWithoutWebhooks(t *testing.T, file string) {
	t.Helper()
	var out bytes.Buffer
	for _, object := range documents(t, filepath.Join(l.plane.Artifacts.Repository, file)) {
		if object.GetName() == "clusters.cluster.x-k8s.io" {
			unstructured.RemoveNestedField(object.Object, "spec", "conversion")
		} else if !slices.Contains([]string{"Namespace", "Secret", "Deployment", "ServiceAccount"}, object.GetKind()) {
			continue
		}
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	target := filepath.Join(l.repository, file)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		t.Fatal(err)
	}
	metadata, err := os.ReadFile(filepath.Join(l.plane.Artifacts.Repository, filepath.Dir(file), "metadata.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{target: out.Bytes(), filepath.Join(filepath.Dir(target), "metadata.yaml"): metadata} {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func (l *ephemeralLab) providers() map[string]func() (tfprotov6.ProviderServer, error) {
	made := &capiProvider{version: "test", runtimes: func(string) bootstrap.Manager { return bootstrap.Manager{bootstrap.Local: l.planeRuntime} }}
	return map[string]func() (tfprotov6.ProviderServer, error){"capi": providerserver.NewProtocol6WithError(made)}
}

func (l *ephemeralLab) config(secret, repository string) string {
	return fmt.Sprintf(`
resource "capi_ephemeral_cluster" "bootstrap" {
  name         = "boot"
  repository   = "file://%s"
  cert_manager = { external = true }
  providers = {
    core           = { "cluster-api" = { version = "v1.14.2" } }
    infrastructure = { proxmox = { version = "v0.9.0", credentials = { url = "https://pve.example:8006", token = "capi@pve!t", secret = %q } } }
    ipam           = { "in-cluster" = { version = "v1.1.0" } }
  }
}
`, repository, secret)
}

func (l *ephemeralLab) secret(t *testing.T) string {
	t.Helper()
	found := &corev1.Secret{}
	if err := l.client.Get(t.Context(), client.ObjectKey{Namespace: "capmox-system", Name: "capmox-manager-credentials"}, found); err != nil {
		t.Fatal(err)
	}
	return string(found.Data["secret"])
}

func (l *ephemeralLab) cluster() *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": map[string]any{"namespace": "default", "name": "kmgt"},
		"spec": map[string]any{"paused": true},
	}}
	return object
}

const ephemeralAddress = "capi_ephemeral_cluster.bootstrap"

func ephemeralAction(kind plancheck.ResourceActionType) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(ephemeralAddress, kind)}}
}

var emptyPlan = resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}

func TestEphemeralClusterThroughItsLife(t *testing.T) {
	cliPath(t)
	lab := newEphemeralLab(t)
	ready := func(status bootstrap.Status) []statecheck.StateCheck {
		return []statecheck.StateCheck{
			statecheck.ExpectKnownValue(ephemeralAddress, tfjsonpath.New("phase"), knownvalue.StringExact(phaseReady)),
			statecheck.ExpectKnownValue(ephemeralAddress, tfjsonpath.New("status"), knownvalue.StringExact(string(status))),
			statecheck.ExpectKnownValue(ephemeralAddress, tfjsonpath.New("access").AtMapKey("ephemeral_cluster").AtMapKey("name"), knownvalue.StringExact("boot")),
		}
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: lab.providers(),
		CheckDestroy: func(*terraform.State) error {
			if status, _ := lab.Status(t.Context(), "boot"); status != bootstrap.NotHere {
				return fmt.Errorf("the cluster is %s", status)
			}
			return nil
		},
		Steps: []resource.TestStep{
			{ // its providers cannot be read: it is unfinished, and says how to go on
				Config:      lab.config("first-secret", t.TempDir()),
				ExpectError: regexp.MustCompile(`(?s)Unable to create the ephemeral cluster "boot".*terraform untaint`),
			},
			{ // the replacement takes up what is there
				Config:            lab.config("first-secret", lab.repository),
				ConfigPlanChecks:  ephemeralAction(plancheck.ResourceActionDestroyBeforeCreate),
				ConfigStateChecks: ready(bootstrap.Running),
			},
			{ // a new secret is a change in place
				Config:            lab.config("second-secret", lab.repository),
				ConfigPlanChecks:  ephemeralAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: ready(bootstrap.Running),
				Check: func(*terraform.State) error {
					if got := lab.secret(t); got != "second-secret" {
						return fmt.Errorf("the manager's secret is %q", got)
					}
					return nil
				},
			},
			{ // not known: the state stays
				PreConfig:         func() { lab.set(bootstrap.Running, fmt.Errorf("the lock is held")) },
				Config:            lab.config("second-secret", lab.repository),
				ConfigPlanChecks:  emptyPlan,
				ConfigStateChecks: ready(bootstrap.Running),
			},
			{ // retired: no plan makes it again
				PreConfig:         func() { lab.set(bootstrap.NotHere, nil) },
				Config:            lab.config("second-secret", lab.repository),
				ConfigPlanChecks:  emptyPlan,
				ConfigStateChecks: ready(bootstrap.NotHere),
			},
			{ // of a retired one only the specification changes
				Config:            lab.config("third-secret", lab.repository),
				ConfigPlanChecks:  ephemeralAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: ready(bootstrap.NotHere),
			},
			{ // it holds a Cluster: a destroy refuses
				PreConfig: func() {
					lab.set(bootstrap.Running, nil)
					if err := lab.client.Create(t.Context(), lab.cluster()); err != nil {
						t.Fatal(err)
					}
				},
				Config:      lab.config("third-secret", lab.repository),
				Destroy:     true,
				ExpectError: regexp.MustCompile(`(?s)still\s+holds\s+default/kmgt`),
			},
			{
				PreConfig: func() {
					if err := lab.client.Delete(t.Context(), lab.cluster()); err != nil {
						t.Fatal(err)
					}
				},
				ResourceName: ephemeralAddress, ImportState: true, ImportStateId: "local/boot", ImportStateVerify: true,
				// The specification comes from the configuration, after the import.
				ImportStateVerifyIgnore: []string{"access", "providers", "cert_manager", "repository", "kubernetes_version", "phase"},
			},
		},
	})
}

func TestStoppedEphemeralClusterIsStartedByWhatNeedsIt(t *testing.T) {
	cliPath(t)
	lab := newEphemeralLab(t)
	chart := t.TempDir()
	for name, text := range map[string]string{
		"Chart.yaml":          "apiVersion: v2\nname: note\nversion: 1.0.0\n",
		"templates/note.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: note}\ndata: {text: {{ .Values.text | quote }}}\n",
	} {
		file := filepath.Join(chart, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cluster := lab.config("secret", lab.repository)
	release := func(text string) string {
		return cluster + fmt.Sprintf(`
resource "capi_helm_release" "note" {
  cluster    = capi_ephemeral_cluster.bootstrap.access
  name       = "note"
  namespace  = "notes"
  chart      = %q
  values     = ["text: %s"]
  on_destroy = "remove"
}
`, chart, text)
	}
	stop := func() { lab.set(bootstrap.Stopped, nil) }
	running := statecheck.ExpectKnownValue("capi_helm_release.note", tfjsonpath.New("phase"), knownvalue.StringExact(phaseReady))
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: lab.providers(),
		CheckDestroy: func(*terraform.State) error {
			err := lab.client.Get(t.Context(), client.ObjectKey{Namespace: "notes", Name: "note"}, &corev1.ConfigMap{})
			if !kube.IsAbsent(kube.Classify(err)) {
				return fmt.Errorf("the release's object answers %w", err)
			}
			return nil
		},
		Steps: []resource.TestStep{
			{Config: cluster},
			{ // the machine was switched off meanwhile
				PreConfig:         stop,
				Config:            release("first"),
				ConfigPlanChecks:  ephemeralAction(plancheck.ResourceActionNoop),
				ConfigStateChecks: []statecheck.StateCheck{running},
			},
			{ // a plan starts nothing, and an apply that changes something does
				PreConfig: stop,
				Config:    release("second"),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction("capi_helm_release.note", plancheck.ResourceActionUpdate), lab.expectStatus(bootstrap.Stopped),
				}},
				ConfigStateChecks: []statecheck.StateCheck{running},
			},
			{PreConfig: stop, Config: release("second"), Destroy: true},
		},
	})
}

// statusCheck is a check of a plan that looks at the cluster.
type statusCheck struct {
	lab  *ephemeralLab
	want bootstrap.Status
}

func (l *ephemeralLab) expectStatus(want bootstrap.Status) plancheck.PlanCheck {
	return statusCheck{l, want}
}

func (c statusCheck) CheckPlan(ctx context.Context, _ plancheck.CheckPlanRequest, resp *plancheck.CheckPlanResponse) {
	if status, err := c.lab.Status(ctx, "boot"); err != nil || status != c.want {
		resp.Error = fmt.Errorf("after the plan the cluster is %s, %w", status, err)
	}
}

func TestAnUpdateThatFailsBeforeItsFirstStepLeavesThePhaseAsItWas(t *testing.T) {
	for name, test := range map[string]struct{ reached, prior, want string }{
		"the bootstrap cluster could not be reached": {reached: phaseReady, prior: "waiting-for-machines", want: "waiting-for-machines"},
		"the cluster was complete before":            {reached: phaseReady, prior: phaseReady, want: phaseReady},
		"it failed at a step":                        {reached: "applying", prior: phaseReady, want: "applying"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := phaseAfterFailure(types.StringValue(test.reached), types.StringValue(test.prior)); got.ValueString() != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestEphemeralClusterConfigurationIsJudgedFromItsText(t *testing.T) {
	cliPath(t)
	for name, test := range map[string]struct{ config, fails string }{
		"a version without its v": {
			config: `cert_manager = { version = "1.21.0" }
				providers = { core = { "cluster-api" = { version = "v1.14.2" } } }`,
			fails: `does not begin with v`,
		},
		"no core provider": {
			config: `cert_manager = { version = "v1.21.0" }
				providers = { ipam = { "in-cluster" = { version = "v1.1.0" } } }`,
			fails: `exactly one core provider`,
		},
		"CAPMOX without IPAM": {
			config: `cert_manager = { version = "v1.21.0" }
				providers = { core = { "cluster-api" = { version = "v1.14.2" } }, infrastructure = { proxmox = { version = "v0.9.0" } } }`,
			fails: `needs\s+ipam-in-cluster`,
		},
		"two cert-managers": {
			config: `cert_manager = { version = "v1.21.0", external = true }
				providers = { core = { "cluster-api" = { version = "v1.14.2" } } }`,
			fails: `exactly\s+one\s+of\s+version`,
		},
		"an unknown runtime": {
			config: `runtime = "magic"
				cert_manager = { version = "v1.21.0" }
				providers = { core = { "cluster-api" = { version = "v1.14.2" } } }`,
			fails: `magic`,
		},
		"settings of kind for the local runtime": {
			config: `kind = { engine = "docker" }
				cert_manager = { version = "v1.21.0" }
				providers = { core = { "cluster-api" = { version = "v1.14.2" } } }`,
			fails: `runtime = "kind" alone`,
		},
		"an unknown engine": {
			config: `runtime = "kind"
				kind = { engine = "rkt" }
				cert_manager = { version = "v1.21.0" }
				providers = { core = { "cluster-api" = { version = "v1.14.2" } } }`,
			fails: `rkt`,
		},
		"a kind configuration with a field that kind does not know": {
			config: `runtime = "kind"
				kind = { config = "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnode: []" }
				cert_manager = { version = "v1.21.0" }
				providers = { core = { "cluster-api" = { version = "v1.14.2" } } }`,
			fails: `Unable to use the kind configuration(.|\n)*unknown\s+field\s+"node"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			resource.UnitTest(t, resource.TestCase{
				ProtoV6ProviderFactories: testProviders(),
				Steps: []resource.TestStep{{
					Config:      "resource \"capi_ephemeral_cluster\" \"bootstrap\" {\nname = \"boot\"\n" + test.config + "\n}\n",
					PlanOnly:    true,
					ExpectError: regexp.MustCompile(test.fails),
				}},
			})
		})
	}
}

func TestTheRuntimeMustSuitTheMachine(t *testing.T) {
	for name, test := range map[string]struct {
		runtime      types.String
		goos, goarch string
		fails        bool
	}{
		"local on Linux":           {types.StringValue("local"), "linux", "amd64", false},
		"the default on Linux":     {types.StringNull(), "linux", "arm64", false},
		"local on macOS":           {types.StringValue("local"), "darwin", "arm64", true},
		"the default on Windows":   {types.StringNull(), "windows", "amd64", true},
		"local on another machine": {types.StringValue("local"), "linux", "riscv64", true},
		"kind on macOS":            {types.StringValue("kind"), "darwin", "arm64", false},
		"what is not known yet":    {types.StringUnknown(), "darwin", "arm64", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := ephemeralClusterModel{Runtime: test.runtime, Kind: types.ObjectNull(nil)}
			diags := m.checkRuntime(test.goos, test.goarch)
			if diags.HasError() != test.fails || test.fails && !strings.Contains(diags[0].Detail(), `runtime = "kind"`) {
				t.Errorf("the diagnostics are %v", diags)
			}
		})
	}
}
