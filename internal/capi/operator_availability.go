// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"bytes"
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// additionalKey is where the operator reads additional manifests (v0.28.0,
// api/v1alpha2/provider_types.go).
const additionalKey = "manifests"

// deploymentSpec is what the operator takes as spec.deployment, for the managers
// as they were rendered: nil where there is nothing to set. The operator
// replaces tolerations and resources as a whole, so they are given as a whole.
func (c *components) deploymentSpec() (map[string]any, error) {
	a := c.provider.Availability
	if a == nil {
		return nil, nil
	}
	spec := map[string]any{}
	if a.Replicas > 0 {
		spec["replicas"] = int64(a.Replicas)
	}
	for i := range c.rendered {
		if c.rendered[i].GetKind() != "Deployment" {
			continue
		}
		pod, _, err := unstructured.NestedMap(c.rendered[i].Object, "spec", "template", "spec")
		if err != nil {
			return nil, fmt.Errorf("reading the pod of Deployment %s: %w", c.rendered[i].GetName(), err)
		}
		if tolerations, ok := pod["tolerations"]; ok && len(a.Tolerations) > 0 {
			spec["tolerations"] = tolerations
		}
		containers, _ := pod["containers"].([]any)
		for _, item := range containers {
			container, _ := item.(map[string]any)
			if container["name"] == managerContainer && (len(a.Requests) > 0 || len(a.Limits) > 0) {
				spec["containers"] = []any{map[string]any{"name": managerContainer, "resources": container["resources"]}}
			}
		}
	}
	return spec, nil
}

// spreadPatches spread the managers' pods. Constraints hold no variable.
func (c *components) spreadPatches() ([]any, error) {
	if c.provider.Availability == nil || c.provider.Availability.Spread == "" {
		return nil, nil
	}
	var patches []any
	for i := range c.rendered {
		if c.rendered[i].GetKind() != "Deployment" {
			continue
		}
		constraints, found, err := unstructured.NestedSlice(c.rendered[i].Object, "spec", "template", "spec", "topologySpreadConstraints")
		if err != nil || !found {
			continue
		}
		patch, err := yaml.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"topologySpreadConstraints": constraints}}}})
		if err != nil {
			return nil, fmt.Errorf("writing the patch of Deployment %s: %w", c.rendered[i].GetName(), err)
		}
		patches = append(patches, map[string]any{"patch": string(patch), "target": map[string]any{"kind": "Deployment", "name": c.rendered[i].GetName()}})
	}
	return patches, nil
}

// additional holds the objects that the availability adds to the provider's
// components: nil where it adds none. The operator installs them with these,
// and removes them with these.
func (c *components) additional() (*unstructured.Unstructured, error) {
	if c.provider.Availability == nil || !c.provider.Availability.DisruptionBudget {
		return nil, nil
	}
	var text bytes.Buffer
	for i := range c.rendered {
		if c.rendered[i].GetKind() != "PodDisruptionBudget" {
			continue
		}
		content, err := yaml.Marshal(c.rendered[i].Object)
		if err != nil {
			return nil, fmt.Errorf("writing the disruption budget %s: %w", c.rendered[i].GetName(), err)
		}
		text.WriteString("---\n")
		text.Write(content)
	}
	if text.Len() == 0 {
		return nil, nil
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata": map[string]any{
			// Another content has another name: the operator looks at the reference.
			"name": c.provider.Label() + "-additional-" + c.provider.settingsHash()[:8], "namespace": c.namespace,
			"labels": map[string]any{providerLabel: c.provider.Label()},
		},
		"data": map[string]any{additionalKey: text.String()},
	}}, nil
}

// operatorValues are the values of the operator's chart.
func (a *Availability) operatorValues() (map[string]any, error) {
	if a == nil {
		return nil, nil
	}
	values := map[string]any{}
	if a.Replicas > 0 {
		values["replicaCount"] = a.Replicas
	}
	if a.Spread != "" {
		// The chart has no value for spreading, but one for affinity, which Helm
		// merges with the chart's own.
		values["affinity"] = map[string]any{"podAntiAffinity": map[string]any{"preferredDuringSchedulingIgnoredDuringExecution": []any{map[string]any{
			"weight": 100,
			"podAffinityTerm": map[string]any{
				"topologyKey":   a.Spread,
				"labelSelector": map[string]any{"matchLabels": map[string]any{"clusterctl.cluster.x-k8s.io/core": operatorCore}},
			},
		}}}}
	}
	if len(a.Tolerations) > 0 {
		// The chart's own two, which a list of values replaces.
		tolerations := append([]corev1.Toleration{
			{Key: "node-role.kubernetes.io/master", Effect: corev1.TaintEffectNoSchedule},
			{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
		}, a.Tolerations...)
		values["tolerations"] = tolerations
	}
	if len(a.Requests) > 0 || len(a.Limits) > 0 {
		values["resources"] = map[string]any{"manager": corev1.ResourceRequirements{Requests: a.Requests, Limits: a.Limits}}
	}
	return plain(values)
}

// certManagerValues are the values of cert-manager's chart.
func (a *Availability) certManagerValues() (map[string]any, error) {
	values := map[string]any{"crds": map[string]any{"enabled": true}}
	if a == nil {
		return values, nil
	}
	webhook, injector := map[string]any{}, map[string]any{}
	for _, part := range []map[string]any{values, webhook, injector} {
		if a.Replicas > 0 {
			part["replicaCount"] = a.Replicas
		}
		if len(a.Tolerations) > 0 {
			part["tolerations"] = a.Tolerations
		}
		if a.DisruptionBudget {
			part["podDisruptionBudget"] = map[string]any{"enabled": true, "maxUnavailable": 1}
		}
		if len(a.Requests) > 0 || len(a.Limits) > 0 {
			part["resources"] = corev1.ResourceRequirements{Requests: a.Requests, Limits: a.Limits}
		}
	}
	for part, name := range map[*map[string]any]string{&values: "controller", &webhook: "webhook", &injector: "cainjector"} {
		if a.Spread != "" {
			(*part)["topologySpreadConstraints"] = []any{map[string]any{
				"maxSkew": 1, "topologyKey": a.Spread, "whenUnsatisfiable": string(corev1.ScheduleAnyway),
				"labelSelector": map[string]any{"matchLabels": map[string]any{
					"app.kubernetes.io/instance": certManagerRelease, "app.kubernetes.io/component": name,
				}},
			}}
		}
	}
	values["webhook"], values["cainjector"] = webhook, injector
	return plain(values)
}

// plain turns typed parts of values into what YAML has.
func plain(values map[string]any) (map[string]any, error) {
	content, err := yaml.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("writing the values of a chart: %w", err)
	}
	var out map[string]any
	if err := yaml.Unmarshal(content, &out); err != nil {
		return nil, fmt.Errorf("writing the values of a chart: %w", err)
	}
	return out, nil
}

// operatorBudget gives the operator's own manager a disruption budget, which its
// chart has none of, or takes it away.
func (o *operation) operatorBudget(ctx context.Context) error {
	list := &appsv1.DeploymentList{}
	if err := o.client.List(ctx, list, client.InNamespace(operatorNamespace), client.MatchingLabels{"clusterctl.cluster.x-k8s.io/core": operatorCore}); err != nil {
		return fmt.Errorf("looking for the operator's Deployment: %w", err)
	}
	for i := range list.Items {
		budget, err := Availability{}.budget(&list.Items[i])
		if err != nil {
			return err
		}
		budget.SetLabels(map[string]string{providerLabel: operatorRelease})
		if o.Availability != nil && o.Availability.DisruptionBudget {
			if _, err := o.client.ApplyObject(ctx, budget, kube.ApplyOptions{Force: true}); err != nil {
				return fmt.Errorf("giving the operator a disruption budget: %w", err)
			}
			continue
		}
		found, err := o.client.Object(ctx, budget.GetAPIVersion(), budget.GetKind(), budget.GetNamespace(), budget.GetName())
		switch {
		case kube.IsAbsent(err):
			continue
		case err != nil:
			return fmt.Errorf("looking for the operator's disruption budget: %w", err)
		case found.GetLabels()[providerLabel] != operatorRelease:
			continue
		}
		if err := o.client.Delete(ctx, found); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing the operator's disruption budget: %w", err)
		}
	}
	return nil
}
