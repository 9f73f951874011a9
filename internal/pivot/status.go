// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A move carries no status. Most of it is found out anew; the addresses of a
// machine may not be: CAPMOX v0.9.0 writes them in one step of its first
// provisioning alone (internal/service/vmservice, reconcileMachineAddresses), so
// that after a move its machines have none, and the Talos control plane provider,
// which reaches its nodes at them, stays unready for ever.

// statusFields are the fields of an infrastructure machine's status that are
// carried over.
var statusFields = []string{"addresses", "ipAddresses", "proxmoxNode"}

// keptStatus answers the fields that an object has of those.
func keptStatus(n *node) map[string]any {
	kept := map[string]any{}
	if !n.ofMachine() || n.is(machineKind) {
		return kept
	}
	for _, field := range statusFields {
		if value, ok, _ := unstructured.NestedFieldNoCopy(n.object.Object, "status", field); ok {
			kept[field] = value
		}
	}
	return kept
}

// ofMachine says whether a Machine owns the object, as it does its bootstrap
// configuration and its infrastructure.
func (n *node) ofMachine() bool {
	for _, owner := range n.owners {
		if owner.is(machineKind) {
			return true
		}
	}
	return false
}

func (c *copier) carryStatus(ctx context.Context, n *node, o *unstructured.Unstructured) error {
	kept := keptStatus(n)
	if len(kept) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID()}, "status": kept})
	if err != nil {
		return err
	}
	return c.target.write(ctx, func() error {
		return c.target.Client.Status().Patch(ctx, o.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager))
	})
}
