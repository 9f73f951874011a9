// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
)

// A move carries no status. Most of it is found out anew; the addresses of a
// machine may not be: CAPMOX v0.9.0 writes them in one step of its first
// provisioning alone (internal/service/vmservice, reconcileMachineAddresses), so
// that after a move its machines have none, and the Talos control plane provider,
// which reaches its nodes at them, stays unready for ever.

// statusFields are the fields of an infrastructure machine's status that are
// carried over where the target lacks them.
var statusFields = []string{"addresses", "ipAddresses", "proxmoxNode"}

// keepsake names the ConfigMap on the target that holds the fields while a move is
// under way, so that a run that was lost after the move is finished by the next.
var keepsake = client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "terraform-provider-capi-moved-status"}

const keepsakeField = "status.json"

// machineStatus is what one infrastructure machine had on the source.
type machineStatus struct {
	Group   string               `json:"group"`
	Version string               `json:"version"`
	Kind    string               `json:"kind"`
	Object  types.NamespacedName `json:"object"`
	Status  map[string]any       `json:"status"`
}

// keepStatus writes the fields of all the source's machines down on the target.
func keepStatus(ctx context.Context, source, target *Side) error {
	machines := &clusterv1.MachineList{}
	if err := source.Client.List(ctx, machines); err != nil {
		return fmt.Errorf("listing the machines of %s: %w", source.Name, err)
	}
	var kept []machineStatus
	for _, m := range machines.Items {
		o, err := external.GetObjectFromContractVersionedRef(ctx, source.Client, m.Spec.InfrastructureRef, m.Namespace)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading the infrastructure of machine %s/%s: %w", m.Namespace, m.Name, err)
		}
		gvk := o.GroupVersionKind()
		one := machineStatus{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Object: client.ObjectKeyFromObject(o), Status: map[string]any{}}
		for _, field := range statusFields {
			if value, ok, _ := unstructured.NestedFieldNoCopy(o.Object, "status", field); ok {
				one.Status[field] = value
			}
		}
		kept = append(kept, one)
	}
	content, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: keepsake.Namespace, Name: keepsake.Name}, Data: map[string]string{keepsakeField: string(content)}}
	err = target.Client.Create(ctx, config)
	if apierrors.IsAlreadyExists(err) {
		err = target.Client.Update(ctx, config)
	}
	if err != nil {
		return fmt.Errorf("writing the machines' addresses down on %s: %w", target.Name, err)
	}
	return nil
}

// restoreStatus gives the target's machines what they lack of the written fields.
// Without a note there is nothing to do.
func restoreStatus(ctx context.Context, target *Side) error {
	config := &corev1.ConfigMap{}
	if err := target.Client.Get(ctx, keepsake, config); err != nil {
		return client.IgnoreNotFound(err)
	}
	var kept []machineStatus
	if err := json.Unmarshal([]byte(config.Data[keepsakeField]), &kept); err != nil {
		return fmt.Errorf("reading the ConfigMap %s: %w", keepsake, err)
	}
	for _, one := range kept {
		if err := restoreOne(ctx, target, one); err != nil {
			return err
		}
	}
	return client.IgnoreNotFound(target.Client.Delete(ctx, config))
}

func restoreOne(ctx context.Context, target *Side, one machineStatus) error {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: one.Group, Version: one.Version, Kind: one.Kind})
	if err := target.Client.Get(ctx, one.Object, o); err != nil {
		return client.IgnoreNotFound(err)
	}
	lacking := map[string]any{}
	for field, value := range one.Status {
		if _, ok, _ := unstructured.NestedFieldNoCopy(o.Object, "status", field); !ok {
			lacking[field] = value
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": lacking})
	if err != nil {
		return err
	}
	if err := target.Client.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("giving %s %s its addresses back: %w", one.Kind, one.Object, err)
	}
	return nil
}
