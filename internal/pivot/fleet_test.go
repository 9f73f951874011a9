// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// fleetKinds are the providers whose kinds a fleet is made of.
var fleetKinds = []string{"cluster-api", "bootstrap-talos", "control-plane-talos", "infrastructure-proxmox", "ipam-in-cluster", "bootstrap-kubeadm", "control-plane-kubeadm"}

const fleetNamespace = "fleet"

// fleet is a number of Clusters as their controllers leave them when all is well.
type fleet struct {
	clusters, machines int
	// ipam adds pools, claims and addresses; topology a ClusterClass, worker
	// machines and ClusterResourceSets.
	ipam, topology bool
	namespace      string
}

// fleetMaker makes the objects; its methods stop at the first error.
type fleetMaker struct {
	client    client.Client
	namespace string
	fleet     fleet
}

func (f fleet) make(ctx context.Context, t testing.TB, c client.Client) {
	t.Helper()
	if f.namespace == "" {
		f.namespace = fleetNamespace
	}
	m := &fleetMaker{client: c, namespace: f.namespace, fleet: f}
	err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.namespace}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if f.topology {
		if err := m.class(ctx); err != nil {
			t.Fatal(err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range f.clusters {
		group.Go(func() error { return m.cluster(ctx, fmt.Sprintf("c%d", i)) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

type fields = map[string]any

// object makes one object with its owners and answers it.
func (m *fleetMaker) object(ctx context.Context, apiVersion, kind, name string, content fields, owners ...*unstructured.Unstructured) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{Object: fields{}}
	for field, value := range content {
		o.Object[field] = value
	}
	if metadata, ok := content["metadata"].(fields); ok {
		o.Object["metadata"] = metadata
	}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(m.namespace)
	o.SetName(name)
	var references []metav1.OwnerReference
	for i, owner := range owners {
		reference := metav1.OwnerReference{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID()}
		if i == 0 {
			reference.Controller, reference.BlockOwnerDeletion = ptr.To(true), ptr.To(true)
		}
		references = append(references, reference)
	}
	o.SetOwnerReferences(references)
	status := o.Object["status"]
	if err := m.client.Create(ctx, o, client.FieldOwner("manager")); err != nil {
		return nil, fmt.Errorf("making %s %s: %w", kind, name, err)
	}
	if status == nil {
		return o, nil
	}
	made := o.DeepCopy()
	made.Object["status"] = status
	if err := m.client.Status().Update(ctx, made, client.FieldOwner("manager")); err != nil {
		return nil, fmt.Errorf("writing the status of %s %s: %w", kind, name, err)
	}
	return o, nil
}

const (
	infrastructure = "infrastructure.cluster.x-k8s.io/v1alpha2"
	bootstrap      = "bootstrap.cluster.x-k8s.io/v1alpha3"
	controlPlane   = "controlplane.cluster.x-k8s.io/v1alpha3"
	kubeadmPlane   = "controlplane.cluster.x-k8s.io/v1beta2"
	core           = "cluster.x-k8s.io/v1beta2"
	addons         = "addons.cluster.x-k8s.io/v1beta2"
	ipam           = "ipam.cluster.x-k8s.io/v1beta2"
)

func ref(group, kind, name string) fields {
	return fields{"apiGroup": group, "kind": kind, "name": name}
}

func labels(cluster string, more ...string) fields {
	all := fields{clusterv1.ClusterNameLabel: cluster}
	for _, label := range more {
		all[label] = ""
	}
	return fields{"labels": all}
}

func withFinalizer(metadata fields, finalizer string) fields {
	metadata["finalizers"] = []any{finalizer}
	return metadata
}

func proxmoxClusterSpec() fields {
	return fields{"dnsServers": []any{"10.0.0.53"}, "ipv4Config": fields{"addresses": []any{"10.0.0.10-10.0.0.99"}, "prefix": int64(24), "gateway": "10.0.0.1"}}
}

func machineSpec(providerID string) fields {
	spec := fields{"sourceNode": "pve1", "templateID": int64(100), "network": fields{"networkDevices": []any{fields{"name": "net0", "bridge": "vmbr0"}}}}
	if providerID != "" {
		spec["providerID"] = providerID
	}
	return spec
}

func (m *fleetMaker) class(ctx context.Context) error {
	template := func(apiVersion, kind string) fields {
		return fields{"templateRef": fields{"apiVersion": apiVersion, "kind": kind, "name": "class"}}
	}
	class, err := m.object(ctx, core, "ClusterClass", "class", fields{"spec": fields{
		"infrastructure": template(infrastructure, "ProxmoxClusterTemplate"),
		"controlPlane":   template(kubeadmPlane, "KubeadmControlPlaneTemplate"),
	}})
	if err != nil {
		return err
	}
	spec := fields{"template": fields{"spec": proxmoxClusterSpec()}}
	if _, err := m.object(ctx, infrastructure, "ProxmoxClusterTemplate", "class", fields{"spec": spec}, class); err != nil {
		return err
	}
	if _, err := m.object(ctx, kubeadmPlane, "KubeadmControlPlaneTemplate", "class", fields{"spec": fields{"template": fields{"spec": fields{"rollout": fields{"strategy": fields{"type": "RollingUpdate"}}}}}}, class); err != nil {
		return err
	}
	config, err := m.object(ctx, "v1", "ConfigMap", "addon", fields{"data": fields{"a.yaml": "{}"}})
	if err != nil {
		return err
	}
	set, err := m.object(ctx, addons, "ClusterResourceSet", "addons", fields{"metadata": withFinalizer(fields{}, "addons.cluster.x-k8s.io"), "spec": fields{
		"clusterSelector": fields{"matchLabels": fields{"a": "b"}}, "resources": []any{fields{"kind": "ConfigMap", "name": "addon"}},
	}})
	if err != nil {
		return err
	}
	config.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: addons, Kind: "ClusterResourceSet", Name: "addons", UID: set.GetUID()}})
	return m.client.Update(ctx, config)
}

func (m *fleetMaker) cluster(ctx context.Context, name string) error {
	spec := fields{
		"infrastructureRef":    ref("infrastructure.cluster.x-k8s.io", "ProxmoxCluster", name),
		"controlPlaneRef":      ref("controlplane.cluster.x-k8s.io", "TalosControlPlane", name),
		"controlPlaneEndpoint": fields{"host": "10.0.0.1", "port": int64(6443)},
	}
	if m.fleet.topology {
		spec["topology"] = fields{"classRef": fields{"name": "class"}, "version": "v1.34.0"}
	}
	cluster, err := m.object(ctx, core, "Cluster", name, fields{"metadata": withFinalizer(labels(name), "cluster.cluster.x-k8s.io"), "spec": spec})
	if err != nil {
		return err
	}
	proxmox, err := m.object(ctx, infrastructure, "ProxmoxCluster", name, fields{"metadata": withFinalizer(labels(name), "proxmoxcluster.infrastructure.cluster.x-k8s.io"), "spec": proxmoxClusterSpec()}, cluster)
	if err != nil {
		return err
	}
	plane, err := m.object(ctx, controlPlane, "TalosControlPlane", name, fields{"metadata": withFinalizer(labels(name), "talos.controlplane.cluster.x-k8s.io"), "spec": fields{
		"version": "v1.34.0", "replicas": int64(m.fleet.machines), "controlPlaneConfig": fields{"controlplane": fields{"generateType": "controlplane"}},
		"infrastructureTemplate": fields{"apiVersion": infrastructure, "kind": "ProxmoxMachineTemplate", "name": name},
	}}, cluster)
	if err != nil {
		return err
	}
	if _, err := m.object(ctx, infrastructure, "ProxmoxMachineTemplate", name, fields{"metadata": labels(name), "spec": fields{"template": fields{"spec": machineSpec("")}}}, cluster); err != nil {
		return err
	}
	var pool *unstructured.Unstructured
	if m.fleet.ipam {
		if pool, err = m.object(ctx, "ipam.cluster.x-k8s.io/v1alpha2", "InClusterIPPool", name, fields{"metadata": labels(name), "spec": fields{"addresses": []any{"10.0.0.10-10.0.0.99"}, "prefix": int64(24), "gateway": "10.0.0.1"}}, proxmox); err != nil {
			return err
		}
	}
	// By its name alone, of the Cluster, and of the control plane.
	for secret, owner := range map[string][]*unstructured.Unstructured{"-ca": nil, "-talosconfig": {cluster}, "-kubeconfig": {plane}} {
		if _, err := m.object(ctx, "v1", "Secret", name+secret, fields{"data": fields{"value": "c2VjcmV0"}}, owner...); err != nil {
			return err
		}
	}
	owner := plane
	if m.fleet.topology {
		if owner, err = m.machineSet(ctx, name, cluster); err != nil {
			return err
		}
	}
	for i := range m.fleet.machines {
		machineOwner := plane
		if i%2 == 1 {
			machineOwner = owner
		}
		if err := m.machine(ctx, name, i, machineOwner, pool); err != nil {
			return err
		}
	}
	return m.finish(ctx, cluster)
}

// machineSet makes the workers' chain of owners, and the binding of the resource
// sets.
func (m *fleetMaker) machineSet(ctx context.Context, name string, cluster *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	spec := fields{"clusterName": name, "selector": fields{"matchLabels": fields{"a": "b"}}, "template": fields{"metadata": fields{"labels": fields{"a": "b"}}, "spec": fields{
		"clusterName": name, "bootstrap": fields{"dataSecretName": "data"}, "infrastructureRef": ref("infrastructure.cluster.x-k8s.io", "ProxmoxMachineTemplate", name),
	}}}
	deployment, err := m.object(ctx, core, "MachineDeployment", name+"-md", fields{"metadata": labels(name), "spec": spec}, cluster)
	if err != nil {
		return nil, err
	}
	set, err := m.object(ctx, core, "MachineSet", name+"-ms", fields{"metadata": labels(name), "spec": spec}, deployment)
	if err != nil {
		return nil, err
	}
	sets := &unstructured.Unstructured{}
	sets.SetAPIVersion(addons)
	sets.SetKind("ClusterResourceSet")
	if err := m.client.Get(ctx, client.ObjectKey{Namespace: m.namespace, Name: "addons"}, sets); err != nil {
		return nil, err
	}
	_, err = m.object(ctx, addons, "ClusterResourceSetBinding", name, fields{"spec": fields{"clusterName": name}}, sets)
	return set, err
}

func (m *fleetMaker) machine(ctx context.Context, cluster string, number int, owner, pool *unstructured.Unstructured) error {
	name := fmt.Sprintf("%s-%d", cluster, number)
	metadata := labels(cluster)
	if owner.GetKind() == "TalosControlPlane" {
		metadata = labels(cluster, clusterv1.MachineControlPlaneLabel)
	}
	id := fmt.Sprintf("proxmox://%08x-0000-4000-8000-%012x", crc32.ChecksumIEEE([]byte(m.namespace+cluster)), number)
	machine, err := m.object(ctx, core, "Machine", name, fields{"metadata": withFinalizer(metadata, "machine.cluster.x-k8s.io"), "spec": fields{
		"clusterName": cluster, "providerID": id, "bootstrap": fields{"dataSecretName": name},
		"infrastructureRef": ref("infrastructure.cluster.x-k8s.io", "ProxmoxMachine", name),
	}}, owner)
	if err != nil {
		return err
	}
	vm, err := m.object(ctx, infrastructure, "ProxmoxMachine", name, fields{"metadata": withFinalizer(labels(cluster), "proxmoxmachine.infrastructure.cluster.x-k8s.io"),
		"spec": machineSpec(id), "status": fields{"addresses": []any{fields{"type": "InternalIP", "address": "10.0.0.1"}}, "proxmoxNode": "pve1"}}, machine)
	if err != nil {
		return err
	}
	config, err := m.object(ctx, bootstrap, "TalosConfig", name, fields{"metadata": labels(cluster), "spec": fields{"generateType": "controlplane"}}, machine)
	if err != nil {
		return err
	}
	if _, err := m.object(ctx, "v1", "Secret", name, fields{"metadata": labels(cluster), "data": fields{"value": "c2VjcmV0"}}, config); err != nil {
		return err
	}
	if pool == nil {
		return nil
	}
	poolRef := ref("ipam.cluster.x-k8s.io", "InClusterIPPool", cluster)
	claim, err := m.object(ctx, ipam, "IPAddressClaim", name, fields{"metadata": withFinalizer(labels(cluster), "ipam.cluster.x-k8s.io/ReleaseAddress"), "spec": fields{"poolRef": poolRef}}, vm)
	if err != nil {
		return err
	}
	_, err = m.object(ctx, ipam, "IPAddress", name, fields{"metadata": withFinalizer(labels(cluster), "ipam.cluster.x-k8s.io/ProtectAddress"), "spec": fields{
		"poolRef": poolRef, "claimRef": fields{"name": name}, "address": fmt.Sprintf("10.0.0.%d", 10+number), "prefix": int64(24), "gateway": "10.0.0.1",
	}}, claim, pool)
	return err
}

func (m *fleetMaker) finish(ctx context.Context, cluster *unstructured.Unstructured) error {
	// revive may be at it as well.
	return retry.RetryOnConflict(retry.DefaultRetry, func() error { return reviveNow(ctx, m.client, m.namespace, cluster.GetName()) })
}

// reviveNow writes the status of a Cluster and its Machines as controllers do when
// all is well.
func reviveNow(ctx context.Context, c client.Client, namespace, name string) error {
	cluster := &clusterv1.Cluster{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, cluster); err != nil {
		return err
	}
	machines := &clusterv1.MachineList{}
	if err := c.List(ctx, machines, client.InNamespace(namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: name}); err != nil {
		return err
	}
	for i := range machines.Items {
		machine := &machines.Items[i]
		if machine.Status.NodeRef.IsDefined() {
			continue
		}
		machine.Status.NodeRef = clusterv1.MachineNodeReference{Name: machine.Name}
		machine.Status.Addresses = addresses
		if err := c.Status().Update(ctx, machine, client.FieldOwner("manager")); err != nil {
			return err
		}
	}
	now := metav1.Now()
	cluster.Status.Initialization = clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true), ControlPlaneInitialized: ptr.To(true)}
	cluster.Status.Conditions = []metav1.Condition{
		{Type: clusterv1.ClusterAvailableCondition, Status: metav1.ConditionTrue, Reason: "Available", LastTransitionTime: now},
		{Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue, Reason: "Initialized", LastTransitionTime: now},
	}
	return c.Status().Update(ctx, cluster, client.FieldOwner("manager"))
}

// revive does what Cluster API's controllers do after a move, until the context
// ends: it writes the status anew of every Cluster that is not paused.
func revive(ctx context.Context, c client.Client) {
	for ctx.Err() == nil {
		list := &clusterv1.ClusterList{}
		if c.List(ctx, list) == nil {
			for i := range list.Items {
				one := &list.Items[i]
				if !ptr.Deref(one.Spec.Paused, false) && len(one.Status.Conditions) == 0 {
					// What fails is tried again in the next round.
					_ = reviveNow(ctx, c, one.Namespace, one.Name)
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
