// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// copier makes the source's objects on the target.
type copier struct {
	target *Side
	// existing are the objects that the target had before.
	existing map[ID]bool

	mu sync.Mutex
	// made are the UIDs on the target.
	made map[ID]types.UID
}

// ensureNamespaces creates the namespaces that the target lacks.
func ensureNamespaces(ctx context.Context, target *Side, nodes []*node) error {
	names := map[string]bool{}
	for _, n := range nodes {
		if n.Namespace != "" {
			names[n.Namespace] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		err := target.write(ctx, func() error {
			err := target.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("creating namespace %s on %s: %w", name, target.Name, err)
		}
	}
	return nil
}

// levels groups the objects by the levels of the owner graph.
func levels(nodes []*node) [][]*node {
	var grouped [][]*node
	for _, n := range nodes {
		for len(grouped) <= n.level {
			grouped = append(grouped, nil)
		}
		grouped[n.level] = append(grouped[n.level], n)
	}
	return grouped
}

// create makes one object on the target, paused as it is on the source, with the
// owners and field managers that it has there.
func (c *copier) create(ctx context.Context, n *node) error {
	o := c.copyOf(n)
	err := c.target.write(ctx, func() error { return c.createOnce(ctx, n, o) })
	if err != nil {
		return fmt.Errorf("creating %s on %s: %w", n.ID, c.target.Name, err)
	}
	c.mu.Lock()
	c.made[n.ID] = o.GetUID()
	c.mu.Unlock()
	if c.existing[n.ID] {
		return nil
	}
	if err := c.carryStatus(ctx, n, o); err != nil {
		return fmt.Errorf("giving %s on %s the status that nobody finds out again: %w", n.ID, c.target.Name, err)
	}
	if err := c.restoreManagers(ctx, n, o); err != nil {
		return fmt.Errorf("restoring the field managers of %s on %s: %w", n.ID, c.target.Name, err)
	}
	return nil
}

func (c *copier) createOnce(ctx context.Context, n *node, o *unstructured.Unstructured) error {
	if c.existing[n.ID] {
		return c.target.Client.Get(ctx, n.key(), o)
	}
	err := c.target.Client.Create(ctx, o, client.FieldOwner(fieldManager))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	// It was not there when the move was planned: the answer to an earlier request
	// was lost, or somebody else has just made one, which must then be the same.
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(o.GroupVersionKind())
	if err := c.target.Client.Get(ctx, n.key(), found); err != nil {
		return err
	}
	if field := missing(content(n.object), content(found), ""); field != "" {
		return fmt.Errorf("somebody made another one there since the move began (%s differs)", field)
	}
	o.SetUID(found.GetUID())
	return nil
}

// copyOf answers the object as it is sent to the target. The source's stays as it
// was read.
func (c *copier) copyOf(n *node) *unstructured.Unstructured {
	metadata := map[string]any{}
	if source, ok := n.object.Object["metadata"].(map[string]any); ok {
		for _, field := range []string{"name", "namespace", "labels", "annotations", "finalizers"} {
			if value, ok := source[field]; ok {
				metadata[field] = value
			}
		}
	}
	o := &unstructured.Unstructured{Object: maps.Clone(n.object.Object)}
	o.Object["metadata"] = metadata
	o.SetOwnerReferences(c.ownersOf(n))
	return o
}

func (c *copier) ownersOf(n *node) []metav1.OwnerReference {
	c.mu.Lock()
	defer c.mu.Unlock()
	var owners []metav1.OwnerReference
	for _, reference := range n.object.GetOwnerReferences() {
		at := slices.IndexFunc(n.owners, func(owner *node) bool { return owner.uid == reference.UID })
		if at < 0 {
			continue // a foreign owner that is left behind
		}
		reference.UID = c.made[n.owners[at].ID]
		owners = append(owners, reference)
	}
	return owners
}

// restoreManagers gives the copy the field managers of the original. Otherwise
// the move would own all fields, and who applies them could remove none any more.
func (c *copier) restoreManagers(ctx context.Context, n *node, o *unstructured.Unstructured) error {
	managers, ok, _ := unstructured.NestedFieldNoCopy(n.object.Object, "metadata", "managedFields")
	if !ok {
		managers = []any{map[string]any{}} // what the API server takes for "none"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID(), "managedFields": managers}})
	if err != nil {
		return err
	}
	return c.target.write(ctx, func() error {
		return c.target.Client.Patch(ctx, partial(o.GroupVersionKind(), n.ID), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager))
	})
}

func partial(gvk schema.GroupVersionKind, id ID) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name}}
	o.SetGroupVersionKind(gvk)
	return o
}
