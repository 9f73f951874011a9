// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Availability is how managers survive the loss of a node: what a cluster that
// manages itself needs before its own nodes are replaced.
type Availability struct {
	// Replicas is how many pods each manager has; one of them leads.
	Replicas int32 `json:"replicas,omitempty"`
	// Spread is the node label over whose values a manager's pods are spread as
	// evenly as can be, such as kubernetes.io/hostname; empty spreads over nothing.
	Spread string `json:"spread,omitempty"`
	// DisruptionBudget lets at most one pod of each manager be evicted at a time.
	DisruptionBudget bool `json:"disruptionBudget,omitempty"`
	// Tolerations are added to those of the managers.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Requests and Limits, by resource ("cpu", "memory"), replace those of the
	// managers' containers that they name.
	Requests corev1.ResourceList `json:"requests,omitempty"`
	Limits   corev1.ResourceList `json:"limits,omitempty"`
}

// text is the same for the same settings.
func (a Availability) text() string {
	content, err := json.Marshal(a)
	if err != nil {
		return fmt.Sprintf("%#v", a)
	}
	return string(content)
}

// managerContainer is the name that kubebuilder gives to a manager's container.
const managerContainer = "manager"

// apply changes a provider's objects: its managers, and a disruption budget for
// each. It refuses several replicas of a manager that elects no leader: each
// would do the others' work again.
func (a Availability) apply(objects []unstructured.Unstructured) ([]unstructured.Unstructured, error) {
	var budgets []unstructured.Unstructured
	for i := range objects {
		if objects[i].GetKind() != "Deployment" {
			continue
		}
		deployment := &appsv1.Deployment{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, deployment); err != nil {
			return nil, fmt.Errorf("reading the Deployment %s: %w", objects[i].GetName(), err)
		}
		if err := a.applyTo(deployment); err != nil {
			return nil, err
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(deployment)
		if err != nil {
			return nil, fmt.Errorf("writing the Deployment %s: %w", deployment.Name, err)
		}
		// These come out of the type and not out of the provider's components.
		delete(content, "status")
		unstructured.RemoveNestedField(content, "spec", "template", "metadata", "creationTimestamp")
		unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
		objects[i].Object = content
		if a.DisruptionBudget {
			budget, err := a.budget(deployment)
			if err != nil {
				return nil, err
			}
			budgets = append(budgets, *budget)
		}
	}
	return append(objects, budgets...), nil
}

func (a Availability) applyTo(d *appsv1.Deployment) error {
	pod := &d.Spec.Template.Spec
	i := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == managerContainer })
	if i < 0 {
		return nil
	}
	manager := &pod.Containers[i]
	if a.Replicas > 1 && !electsLeader(manager) {
		return fmt.Errorf("the manager of Deployment %s elects no leader, so it cannot have %d replicas", d.Name, a.Replicas)
	}
	if a.Replicas > 0 {
		d.Spec.Replicas = &a.Replicas
	}
	if a.Spread != "" {
		pod.TopologySpreadConstraints = slices.DeleteFunc(pod.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool { return c.TopologyKey == a.Spread })
		pod.TopologySpreadConstraints = append(pod.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: a.Spread,
			// With DoNotSchedule a rollout on few nodes would wait for ever.
			WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector:     d.Spec.Selector,
		})
	}
	for _, toleration := range a.Tolerations {
		if !slices.ContainsFunc(pod.Tolerations, func(t corev1.Toleration) bool { return t.MatchToleration(&toleration) }) {
			pod.Tolerations = append(pod.Tolerations, toleration)
		}
	}
	manager.Resources.Requests = withResources(manager.Resources.Requests, a.Requests)
	manager.Resources.Limits = withResources(manager.Resources.Limits, a.Limits)
	return nil
}

func withResources(there, wanted corev1.ResourceList) corev1.ResourceList {
	if len(wanted) == 0 {
		return there
	}
	merged := corev1.ResourceList{}
	maps.Copy(merged, there)
	maps.Copy(merged, wanted)
	return merged
}

// electsLeader knows the flags of controller-runtime's projects: --leader-elect
// and --enable-leader-election, which may be set to false.
func electsLeader(manager *corev1.Container) bool {
	for _, arg := range slices.Concat(manager.Command, manager.Args) {
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if name == "leader-elect" || name == "enable-leader-election" {
			return !given || value == "true"
		}
	}
	return false
}

// budget is the disruption budget of a manager. It has the manager's labels, so
// that it goes when the provider goes.
func (a Availability) budget(d *appsv1.Deployment) (*unstructured.Unstructured, error) {
	one := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name, Labels: d.Labels},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: d.Spec.Selector},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(budget)
	if err != nil {
		return nil, fmt.Errorf("writing the disruption budget of %s: %w", d.Name, err)
	}
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	return &unstructured.Unstructured{Object: content}, nil
}
