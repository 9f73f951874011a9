// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// parsed reads objects for a test.
func parsed(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	manifest, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for _, o := range manifest.Objects {
		objects = append(objects, o.Unstructured)
	}
	return objects
}

// machineTemplate is a template of any kind with a number for its content.
func machineTemplate(apiVersion, kind, name string, content int) string {
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {name: %s}\nspec: {template: {spec: {size: %d, list: [a]}}}\n", apiVersion, kind, name, content)
}

// rotated runs a rotation of text among the objects that live.
func rotated(t *testing.T, text string, live []*unstructured.Unstructured) []*unstructured.Unstructured {
	t.Helper()
	objects := parsed(t, text)
	r := rotation{lister: func(_ context.Context, apiVersion, kind string) ([]unstructured.Unstructured, error) {
		var found []unstructured.Unstructured
		for _, o := range live {
			if o.GetAPIVersion() == apiVersion && o.GetKind() == kind {
				found = append(found, *o)
			}
		}
		if found == nil {
			return nil, fmt.Errorf("no such kind: %w", kube.ErrAbsent)
		}
		return found, nil
	}}
	if err := r.rotate(t.Context(), objects); err != nil {
		t.Fatal(err)
	}
	return objects
}

func nameOf(objects []*unstructured.Unstructured, kind string) string {
	for _, o := range objects {
		if o.GetKind() == kind {
			return o.GetName()
		}
	}
	return ""
}

func TestATemplateTakesANewNameOnlyWithNewContent(t *testing.T) {
	for apiVersion, kind := range map[string]string{
		"infrastructure.cluster.x-k8s.io/v1alpha2": "ProxmoxMachineTemplate",
		"infrastructure.cluster.x-k8s.io/v1beta2":  "DockerMachineTemplate",
		"bootstrap.cluster.x-k8s.io/v1beta2":       "KubeadmConfigTemplate",
		"bootstrap.cluster.x-k8s.io/v1beta1":       "RKE2ConfigTemplate",
		"bootstrap.cluster.x-k8s.io/v1alpha3":      "TalosConfigTemplate",
		"controlplane.cluster.x-k8s.io/v1beta1":    "KThreesControlPlaneTemplate",
		"infrastructure.cluster.x-k8s.io/v7":       "NobodyKnowsMachineTemplate",
	} {
		t.Run(kind, func(t *testing.T) {
			first := rotated(t, machineTemplate(apiVersion, kind, "a", 1), nil)
			if name := first[0].GetName(); name != "a" {
				t.Errorf("the first one is named %s, want a", name)
			}
			if same := rotated(t, machineTemplate(apiVersion, kind, "a", 1), first); same[0].GetName() != "a" {
				t.Errorf("unchanged it is named %s, want a", same[0].GetName())
			}
			second := rotated(t, machineTemplate(apiVersion, kind, "a", 2), first)
			if name := second[0].GetName(); !strings.HasPrefix(name, "a-") {
				t.Errorf("with another content it is named %s, want a- and a hash", name)
			}
			both := append(slices.Clone(first), second...)
			if again := rotated(t, machineTemplate(apiVersion, kind, "a", 2), both); again[0].GetName() != second[0].GetName() {
				t.Errorf("unchanged it is named %s, want %s", again[0].GetName(), second[0].GetName())
			}
			if back := rotated(t, machineTemplate(apiVersion, kind, "a", 1), both); back[0].GetName() != "a" {
				t.Errorf("with the first content again it is named %s, want a", back[0].GetName())
			}
			if third := rotated(t, machineTemplate(apiVersion, kind, "a", 3), second); third[0].GetName() != "a" {
				t.Errorf("with the first one gone a third is named %s, want a", third[0].GetName())
			}
		})
	}
}

func TestATemplateThatSomebodyElseMadeKeepsItsName(t *testing.T) {
	live := parsed(t, machineTemplate("infrastructure.cluster.x-k8s.io/v1alpha2", "ProxmoxMachineTemplate", "a", 1))
	// A default that the manifest does not have.
	if err := unstructured.SetNestedField(live[0].Object, "virtio", "spec", "template", "spec", "model"); err != nil {
		t.Fatal(err)
	}
	if got := rotated(t, machineTemplate("infrastructure.cluster.x-k8s.io/v1alpha2", "ProxmoxMachineTemplate", "a", 1), live); got[0].GetName() != "a" {
		t.Errorf("with the content that it has it is named %s, want a", got[0].GetName())
	}
	if got := rotated(t, machineTemplate("infrastructure.cluster.x-k8s.io/v1alpha2", "ProxmoxMachineTemplate", "a", 2), live); got[0].GetName() == "a" {
		t.Error("with another content it keeps its name")
	}
}

func TestAClusterTemplateKindOfAnotherGroupIsNoTemplate(t *testing.T) {
	text := machineTemplate("example.com/v1", "PodTemplate", "a", 1)
	if got := rotated(t, text, parsed(t, machineTemplate("example.com/v1", "PodTemplate", "a", 2))); got[0].GetName() != "a" || len(got[0].GetAnnotations()) > 0 {
		t.Errorf("it is %s with annotations %v", got[0].GetName(), got[0].GetAnnotations())
	}
}

const references = `
apiVersion: controlplane.cluster.x-k8s.io/v1alpha3
kind: TalosControlPlane
metadata: {name: cp}
spec: {infrastructureTemplate: {apiVersion: infrastructure.cluster.x-k8s.io/v1alpha2, kind: ProxmoxMachineTemplate, name: a}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlane
metadata: {name: cp}
spec: {machineTemplate: {spec: {infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: ProxmoxMachineTemplate, name: a}}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {name: md}
spec:
  template:
    spec:
      bootstrap: {configRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: TalosConfigTemplate, name: b}}
      infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: ProxmoxMachineTemplate, name: a}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {name: class}
spec:
  controlPlane: {machineInfrastructure: {templateRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1alpha2, kind: ProxmoxMachineTemplate, name: a}}}
  workers:
    machineDeployments:
      - bootstrap: {templateRef: {apiVersion: bootstrap.cluster.x-k8s.io/v1alpha3, kind: TalosConfigTemplate, name: b}}
  patches:
    - name: whole
      definitions:
        - jsonPatches:
            - {op: replace, path: /spec/template/spec/infrastructureRef, value: {apiVersion: infrastructure.cluster.x-k8s.io/v1alpha2, kind: ProxmoxMachineTemplate, name: a}}
            - {op: replace, path: /spec/template/spec/infrastructureRef/name, value: a}
            - {op: replace, path: /spec/template/spec/bootstrap/configRef/name, value: b}
            - {op: replace, path: /spec/template/metadata/name, value: a}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlaneTemplate
metadata: {name: c}
spec: {template: {spec: {machineTemplate: {spec: {infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: ProxmoxMachineTemplate, name: a}}}}}}
`

func TestReferencesFollowARotatedTemplateWhereverTheyStand(t *testing.T) {
	templates := func(content int) string {
		return machineTemplate("infrastructure.cluster.x-k8s.io/v1alpha2", "ProxmoxMachineTemplate", "a", content) +
			machineTemplate("bootstrap.cluster.x-k8s.io/v1alpha3", "TalosConfigTemplate", "b", content)
	}
	live := rotated(t, references+templates(1), nil)
	got := rotated(t, references+templates(2), live)
	a, b := nameOf(got, "ProxmoxMachineTemplate"), nameOf(got, "TalosConfigTemplate")
	if a == "a" || b == "b" || a == b {
		t.Fatalf("the templates are named %s and %s", a, b)
	}
	for _, o := range got {
		for _, r := range referencesOf(Object{Unstructured: o}) {
			if want := map[string]string{"ProxmoxMachineTemplate": a, "TalosConfigTemplate": b}[r.kind.Kind]; r.name != want {
				t.Errorf("%s %s refers to %s, want %s", o.GetKind(), r.field.path, r.name, want)
			}
		}
	}
	var patches []field
	for _, o := range got {
		for _, p := range (Object{Unstructured: o}).at("spec.patches").items() {
			patches = p.at("definitions").items()[0].at("jsonPatches").items()
		}
	}
	for i, want := range []any{a, a, b, "a"} {
		value := patches[i].at("value")
		if value.at("name").set() {
			value = value.at("name")
		}
		if value.value != want {
			t.Errorf("JSON patch %d sets %v, want %v", i, value.value, want)
		}
	}
	if name := nameOf(got, "KubeadmControlPlaneTemplate"); !strings.HasPrefix(name, "c-") {
		t.Errorf("the template that refers to a rotated one is named %s, want c- and a hash: its content changed", name)
	}
}

func TestTemplatesInACircleAreRenamedAllTheSame(t *testing.T) {
	circle := func(from, to string) string {
		return fmt.Sprintf("---\napiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: XTemplate\nmetadata: {name: %s}\nspec: {xRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: XTemplate, name: %s}}\n", from, to)
	}
	got := rotated(t, circle("a", "b")+circle("b", "a"), nil)
	if got[0].GetName() != "a" || got[1].GetName() != "b" {
		t.Errorf("they are named %s and %s", got[0].GetName(), got[1].GetName())
	}
}

func TestARotationTellsThatItCannotLook(t *testing.T) {
	broken := errors.New("the server is away")
	r := rotation{lister: func(context.Context, string, string) ([]unstructured.Unstructured, error) { return nil, broken }}
	err := r.rotate(t.Context(), parsed(t, machineTemplate("infrastructure.cluster.x-k8s.io/v1alpha2", "ProxmoxMachineTemplate", "a", 1)))
	if !errors.Is(err, broken) {
		t.Errorf("the answer is %v", err)
	}
}

func TestGroupProgress(t *testing.T) {
	object := parsed(t, references)[0]
	template := templateKey{proxmoxMachineKind, "a"}
	g := group{object: object, template: template, version: "v1.36.2", plane: true, replicas: 1}
	good := groupMachine{name: "m1", version: "v1.36.2", template: template, hasNode: true}
	with := func(change func(*groupMachine)) groupMachine {
		m := good
		m.name = "m2"
		change(&m)
		return m
	}
	tests := map[string]struct {
		machines []groupMachine
		want     string
	}{
		"all are as they should be":                {machines: []groupMachine{good}},
		"a machine of unknown origin is no reason": {machines: []groupMachine{with(func(m *groupMachine) { m.template = templateKey{} })}},
		"too few":                  {want: "0 of 1"},
		"too many":                 {machines: []groupMachine{good, with(func(*groupMachine) {})}, want: "2 of 1"},
		"an old template":          {machines: []groupMachine{good, with(func(m *groupMachine) { m.template.name = "old" })}, want: "m2 is of the old template"},
		"an old version":           {machines: []groupMachine{with(func(m *groupMachine) { m.version = "v1.35.4" })}, want: "m2 is of the old template or version"},
		"a machine on its way out": {machines: []groupMachine{good, with(func(m *groupMachine) { m.deleting = true })}, want: "m2 is being deleted"},
		"a machine on its way in":  {machines: []groupMachine{with(func(m *groupMachine) { m.hasNode, m.phase = false, "Provisioning" })}, want: "m2: Provisioning"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			done, now := g.progress(test.machines)
			if done != (test.want == "") || !strings.Contains(now, test.want) {
				t.Errorf("done %v, %q; want %q", done, now, test.want)
			}
		})
	}
}
