// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package contract does on an API server without controllers what Cluster API and
// its providers do as far as a client sees it: machines of control planes and
// MachineDeployments on Proxmox, replaced one at a time when template or version
// change, and a Cluster's status and kubeconfig. Tests of clients need no more.
package contract

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

const (
	proxmoxVersion = "infrastructure.cluster.x-k8s.io/v1alpha2"
	templateKind   = "ProxmoxMachineTemplate.infrastructure.cluster.x-k8s.io"
	turn           = 50 * time.Millisecond
)

// Providers work for one Cluster until their test ends.
type Providers struct {
	client     *kube.Client
	key        client.ObjectKey
	kubeconfig []byte
	// Stuck keeps new machines from getting a node, so that rollouts hang.
	Stuck atomic.Bool
}

// Run has providers work for the Cluster of a key, now or when it appears. Its
// kubeconfig is to be the given one.
func Run(t testing.TB, c *kube.Client, key client.ObjectKey, kubeconfig []byte) *Providers {
	t.Helper()
	p := &Providers{client: c, key: key, kubeconfig: kubeconfig}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			// Whatever fails is done at the next turn, as controllers do.
			_ = p.step(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(turn):
			}
		}
	}()
	return p
}

func (p *Providers) step(ctx context.Context) error {
	cluster := &clusterv1.Cluster{}
	if err := p.client.Get(ctx, p.key, cluster); err != nil {
		return err
	}
	if err := p.rollAll(ctx); err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.key.Namespace, Name: p.key.Name + "-kubeconfig"}, Data: map[string][]byte{"value": p.kubeconfig}}
	if err := p.client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return nil
	}
	cluster.Status.Initialization = clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true), ControlPlaneInitialized: ptr.To(true)}
	cluster.Status.Conditions = []metav1.Condition{{
		Type: clusterv1.ClusterAvailableCondition, Status: metav1.ConditionFalse, Reason: "NotAvailable", Message: "workers are missing", LastTransitionTime: metav1.Now(),
	}}
	return p.client.Status().Update(ctx, cluster)
}

// group is what the machines of a control plane or a MachineDeployment are made
// with.
type group struct {
	name, label, value string
	template, version  string
	replicas           int64
}

func (p *Providers) rollAll(ctx context.Context) error {
	planes, err := p.client.Objects(ctx, "controlplane.cluster.x-k8s.io/v1alpha3", "TalosControlPlane", p.key.Namespace)
	if err != nil {
		return err
	}
	deployments, err := p.client.Objects(ctx, clusterv1.GroupVersion.String(), "MachineDeployment", p.key.Namespace)
	if err != nil {
		return err
	}
	var groups []group
	for _, o := range planes {
		groups = append(groups, group{name: o.GetName(), label: clusterv1.MachineControlPlaneLabel,
			template: textAt(o, "spec", "infrastructureTemplate", "name"), version: textAt(o, "spec", "version"), replicas: replicasOf(o)})
	}
	for _, o := range deployments {
		groups = append(groups, group{name: o.GetName(), label: clusterv1.MachineDeploymentNameLabel, value: o.GetName(),
			template: textAt(o, "spec", "template", "spec", "infrastructureRef", "name"), version: textAt(o, "spec", "template", "spec", "version"), replicas: replicasOf(o)})
	}
	for _, g := range groups {
		if err := p.roll(ctx, g); err != nil {
			return err
		}
	}
	return p.removeOrphans(ctx, groups)
}

// removeOrphans takes the machines of MachineDeployments that are gone.
func (p *Providers) removeOrphans(ctx context.Context, groups []group) error {
	machines := &clusterv1.MachineList{}
	if err := p.client.List(ctx, machines, client.InNamespace(p.key.Namespace), client.HasLabels{clusterv1.MachineDeploymentNameLabel}); err != nil {
		return err
	}
	for i := range machines.Items {
		m := &machines.Items[i]
		owned := slices.ContainsFunc(groups, func(g group) bool { return m.Labels[g.label] == g.value && g.value != "" })
		if owned {
			continue
		}
		if err := p.remove(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func textAt(o unstructured.Unstructured, path ...string) string {
	text, _, _ := unstructured.NestedString(o.Object, path...)
	return text
}

func replicasOf(o unstructured.Unstructured) int64 {
	if count, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); found {
		return count
	}
	return 1
}

// roll brings a group's machines one step nearer to what it asks for.
func (p *Providers) roll(ctx context.Context, g group) error {
	machines := &clusterv1.MachineList{}
	if err := p.client.List(ctx, machines, client.InNamespace(p.key.Namespace), client.MatchingLabels{g.label: g.value}); err != nil {
		return err
	}
	current, ready := int64(0), int64(0)
	var surplus []*clusterv1.Machine
	for i := range machines.Items {
		m := &machines.Items[i]
		switch {
		case m.Annotations[clusterv1.TemplateClonedFromNameAnnotation] != g.template || m.Spec.Version != g.version || current == g.replicas:
			surplus = append(surplus, m)
		case m.Status.NodeRef.IsDefined():
			current, ready = current+1, ready+1
		default:
			current++
			if p.Stuck.Load() {
				continue
			}
			m.Status.NodeRef.Name = m.Name
			if err := p.client.Status().Update(ctx, m); err != nil {
				return err
			}
		}
	}
	switch {
	case current < g.replicas:
		return p.add(ctx, g)
	case len(surplus) > 0 && ready == g.replicas:
		return p.remove(ctx, surplus[0])
	}
	return nil
}

func (p *Providers) add(ctx context.Context, g group) error {
	origin := map[string]string{clusterv1.TemplateClonedFromNameAnnotation: g.template, clusterv1.TemplateClonedFromGroupKindAnnotation: templateKind}
	infrastructure := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": proxmoxVersion, "kind": "ProxmoxMachine", "metadata": map[string]any{"namespace": p.key.Namespace, "generateName": g.name + "-"},
		"spec": map[string]any{"sourceNode": "pve1", "templateID": int64(9000), "network": map[string]any{"networkDevices": []any{map[string]any{"name": "net0"}}}},
	}}
	infrastructure.SetAnnotations(origin)
	if err := p.client.Create(ctx, infrastructure); err != nil {
		return err
	}
	return p.client.Create(ctx, &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.key.Namespace, Name: infrastructure.GetName(), Annotations: origin,
			Labels: map[string]string{clusterv1.ClusterNameLabel: p.key.Name, g.label: g.value},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName: p.key.Name, Version: g.version, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("data")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "ProxmoxMachine", Name: infrastructure.GetName()},
		},
	})
}

func (p *Providers) remove(ctx context.Context, machine *clusterv1.Machine) error {
	infrastructure := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": proxmoxVersion, "kind": "ProxmoxMachine", "metadata": map[string]any{"namespace": machine.Namespace, "name": machine.Name},
	}}
	if err := client.IgnoreNotFound(p.client.Delete(ctx, infrastructure)); err != nil {
		return err
	}
	return p.client.Delete(ctx, machine)
}

// Edit changes an object by a JSON merge patch, as a person does with kubectl.
func Edit(ctx context.Context, t testing.TB, c *kube.Client, object *unstructured.Unstructured, patch string) {
	t.Helper()
	if err := c.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner("kubectl-edit")); err != nil {
		t.Fatal(err)
	}
}
