// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Machine is one machine of a Cluster and, on Proxmox, the VM that it is.
type Machine struct {
	Name         string
	Phase        string
	ControlPlane bool
	HasNode      bool
	HasAddress   bool
	// ProviderID is spec.providerID of the Machine, such as proxmox://<uuid>.
	ProviderID string
	// VMNode and VMID say where the VM is; empty and 0 on other systems or before
	// the clone. VMUUID is its SMBIOS UUID, by which it is recognised for sure.
	VMNode string
	VMID   int64
	VMUUID string
}

// proxmoxScheme starts the provider IDs that CAPMOX v0.9.0 writes; the SMBIOS
// UUID of the VM follows (internal/service/vmservice).
const proxmoxScheme = "proxmox://"

// Machines lists the Cluster's Machines, sorted by name.
func (h Home) Machines(ctx context.Context) ([]Machine, error) {
	list := &clusterv1.MachineList{}
	if err := h.Client.List(ctx, list, client.InNamespace(h.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: h.Name}); err != nil {
		return nil, fmt.Errorf("listing the machines of cluster %s: %w", h.key(""), err)
	}
	machines := make([]Machine, 0, len(list.Items))
	for _, item := range list.Items {
		_, controlPlane := item.Labels[clusterv1.MachineControlPlaneLabel]
		m := Machine{
			Name: item.Name, Phase: item.Status.Phase, ControlPlane: controlPlane,
			HasNode: item.Status.NodeRef.IsDefined(), HasAddress: len(item.Status.Addresses) > 0, ProviderID: item.Spec.ProviderID,
		}
		if item.Spec.InfrastructureRef.Kind == "ProxmoxMachine" {
			if err := h.addVM(ctx, &m, item.Spec.InfrastructureRef.Name); err != nil {
				return nil, err
			}
		}
		machines = append(machines, m)
	}
	slices.SortFunc(machines, func(a, b Machine) int { return strings.Compare(a.Name, b.Name) })
	return machines, nil
}

// addVM reads the VM from the ProxmoxMachine (v1alpha2, CAPMOX v0.9.0).
func (h Home) addVM(ctx context.Context, m *Machine, name string) error {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha2", Kind: "ProxmoxMachine"})
	if err := h.Client.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: name}, u); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil
		}
		return fmt.Errorf("reading ProxmoxMachine %s/%s: %w", h.Namespace, name, err)
	}
	m.VMNode, _, _ = unstructured.NestedString(u.Object, "status", "proxmoxNode")
	m.VMID, _, _ = unstructured.NestedInt64(u.Object, "spec", "virtualMachineID")
	id, _, _ := unstructured.NestedString(u.Object, "spec", "providerID")
	if uuid, ok := strings.CutPrefix(id, proxmoxScheme); ok {
		m.VMUUID = uuid
	}
	return nil
}
