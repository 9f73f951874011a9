// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func manager(args ...any) unstructured.Unstructured {
	return unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "controller", "namespace": "system", "labels": map[string]any{"cluster.x-k8s.io/provider": "ipam-in-cluster"}},
		"spec": map[string]any{
			"replicas": int64(1),
			"selector": map[string]any{"matchLabels": map[string]any{"app": "controller"}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "controller"}},
				"spec": map[string]any{
					"tolerations": []any{map[string]any{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}},
					"containers": []any{map[string]any{
						"name": "manager", "image": "controller:v1", "args": args,
						"resources": map[string]any{"requests": map[string]any{"cpu": "10m", "memory": "64Mi"}},
					}},
				},
			},
		},
	}}
}

func TestAvailabilityChangesManagersAlone(t *testing.T) {
	a := Availability{
		Replicas: 3, Spread: "topology.kubernetes.io/zone", DisruptionBudget: true,
		Tolerations: []corev1.Toleration{{Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"}, {Key: "mgmt", Operator: "Exists"}},
		Requests:    corev1.ResourceList{"cpu": resource.MustParse("100m")},
	}
	other := unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "webhook"}}}
	got, err := a.apply([]unstructured.Unstructured{manager("--leader-elect"), *other.DeepCopy()})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || !reflect.DeepEqual(got[1], other) || got[2].GetKind() != "PodDisruptionBudget" {
		t.Fatalf("got %v", got)
	}
	if labels := got[2].GetLabels(); labels["cluster.x-k8s.io/provider"] != "ipam-in-cluster" {
		t.Errorf("the budget would stay when the provider goes: %v", labels)
	}
	pod, _, _ := unstructured.NestedMap(got[0].Object, "spec", "template", "spec")
	if tolerations, _ := pod["tolerations"].([]any); len(tolerations) != 2 {
		t.Errorf("tolerations are %v", tolerations)
	}
	container, _ := pod["containers"].([]any)[0].(map[string]any)
	requests, _, _ := unstructured.NestedStringMap(container, "resources", "requests")
	if want := map[string]string{"cpu": "100m", "memory": "64Mi"}; !reflect.DeepEqual(requests, want) {
		t.Errorf("requests are %v, want %v", requests, want)
	}
	if replicas, _, _ := unstructured.NestedInt64(got[0].Object, "spec", "replicas"); replicas != 3 {
		t.Errorf("there are %d replicas", replicas)
	}
	again, err := a.apply([]unstructured.Unstructured{*got[0].DeepCopy()})
	if err != nil || !reflect.DeepEqual(again[0], got[0]) {
		t.Errorf("a second time changes it again: %v, %v", again, err)
	}
}

func TestSeveralReplicasNeedALeader(t *testing.T) {
	for name, test := range map[string]struct {
		args  []any
		fails bool
	}{
		"elects one":              {args: []any{"--leader-elect"}},
		"elects one outright":     {args: []any{"--v=2", "--leader-elect=true"}},
		"in the older words":      {args: []any{"--enable-leader-election"}},
		"was told not to":         {args: []any{"--leader-elect=false"}, fails: true},
		"says nothing of leaders": {args: []any{"--v=2"}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Availability{Replicas: 2}.apply([]unstructured.Unstructured{manager(test.args...)})
			if (err != nil) != test.fails || err != nil && !strings.Contains(err.Error(), "elects no leader") {
				t.Errorf("error is %v", err)
			}
			if _, err := (Availability{Replicas: 1}).apply([]unstructured.Unstructured{manager(test.args...)}); err != nil {
				t.Errorf("one replica is refused: %v", err)
			}
		})
	}
}

func TestSettingsHashFollowsTheAvailability(t *testing.T) {
	p := Provider{Type: IPAM, Name: "in-cluster", Version: "v1.1.0"}
	plain := p.settingsHash()
	if plain != p.variablesHash() {
		t.Error("without an availability the hash is not that of the variables, so an update of this provider would restart all managers")
	}
	p.Availability = &Availability{Replicas: 2}
	two := p.settingsHash()
	p.Availability = &Availability{Replicas: 3}
	if three := p.settingsHash(); two == plain || two == three {
		t.Errorf("hashes are %s, %s, %s", plain, two, three)
	}
}
