// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package pivot moves Cluster API objects from one management cluster to another
// and proves that nothing was lost on the way.
package pivot

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
)

// ID names an object on any cluster: without version and UID, which differ.
type ID struct {
	Group, Kind, Namespace, Name string
}

func (id ID) String() string { return id.Kind + " " + id.Namespace + "/" + id.Name }

// Entry is what must be the same on both sides of a move.
type Entry struct {
	// Content is a hash of spec, or of data for a Secret or ConfigMap.
	Content string
	// Owners are the owners that are in the inventory too.
	Owners []ID
	// ProviderID is that of a Machine.
	ProviderID string
}

// Inventory is all that belongs to Clusters on one management cluster.
type Inventory map[ID]Entry

// Counts answers the number of objects by kind.
func (i Inventory) Counts() map[string]int64 {
	counts := map[string]int64{}
	for id := range i {
		counts[id.Kind]++
	}
	return counts
}

// ProviderIDs answers the provider IDs of all Machines, sorted.
func (i Inventory) ProviderIDs() []string {
	var ids []string
	for id, entry := range i {
		if id.Kind == "Machine" && entry.ProviderID != "" {
			ids = append(ids, entry.ProviderID)
		}
	}
	slices.Sort(ids)
	return ids
}

// Take reads the inventory: every namespaced object of a kind whose CRD carries
// clusterctl's label, and every Secret and ConfigMap that one of these owns, which
// is what a move must carry over (clusterctl v1.14.2, objectgraph.go).
func Take(ctx context.Context, c client.Client) (Inventory, error) {
	kinds, err := moveKinds(ctx, c)
	if err != nil {
		return nil, err
	}
	var objects []unstructured.Unstructured
	for _, kind := range kinds {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := c.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing every %s: %w", strings.TrimSuffix(kind.Kind, "List"), err)
		}
		objects = append(objects, list.Items...)
	}
	return build(objects), nil
}

func moveKinds(ctx context.Context, c client.Client) ([]schema.GroupVersionKind, error) {
	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := c.List(ctx, crds, client.HasLabels{clusterctlv1.ClusterctlLabel}); err != nil {
		return nil, fmt.Errorf("listing the custom resource definitions: %w", err)
	}
	kinds := []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("SecretList"), corev1.SchemeGroupVersion.WithKind("ConfigMapList")}
	for _, crd := range crds.Items {
		if crd.Spec.Scope != apiextensionsv1.NamespaceScoped || staysBehind(crd.Spec.Group) {
			continue
		}
		for _, version := range crd.Spec.Versions {
			if version.Storage {
				kinds = append(kinds, schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.ListKind})
			}
		}
	}
	return kinds, nil
}

// staysBehind says whether the objects of a group describe the management cluster
// itself: clusterctl's inventory, the operator's providers, cert-manager's
// certificates of the webhooks.
func staysBehind(group string) bool {
	return group == clusterctlv1.GroupVersion.Group || group == "operator.cluster.x-k8s.io" || strings.HasSuffix(group, "cert-manager.io")
}

func build(objects []unstructured.Unstructured) Inventory {
	ids := map[string]ID{}
	for i := range objects {
		ids[string(objects[i].GetUID())] = idOf(&objects[i])
	}
	inventory := Inventory{}
	for i := range objects {
		o := &objects[i]
		owners := ownersIn(ids, o)
		// Secrets and ConfigMaps of other uses are no part of any Cluster.
		if o.GroupVersionKind().Group == "" && len(owners) == 0 {
			continue
		}
		providerID := ""
		if o.GetKind() == "Machine" {
			providerID, _, _ = unstructured.NestedString(o.Object, "spec", "providerID")
		}
		inventory[idOf(o)] = Entry{Content: contentHash(o), Owners: owners, ProviderID: providerID}
	}
	return inventory
}

func ownersIn(ids map[string]ID, o *unstructured.Unstructured) []ID {
	var owners []ID
	for _, reference := range o.GetOwnerReferences() {
		if id, ok := ids[string(reference.UID)]; ok {
			owners = append(owners, id)
		}
	}
	slices.SortFunc(owners, func(a, b ID) int { return strings.Compare(a.String(), b.String()) })
	return owners
}

func idOf(o *unstructured.Unstructured) ID {
	return ID{Group: o.GroupVersionKind().Group, Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
}

// contentHash leaves out spec.paused, which the move itself changes.
func contentHash(o *unstructured.Unstructured) string {
	content := map[string]any{}
	for _, field := range []string{"spec", "data", "binaryData", "type", "immutable"} {
		if value, ok := o.Object[field]; ok {
			content[field] = value
		}
	}
	if spec, ok := content["spec"].(map[string]any); ok && o.GetKind() == "Cluster" {
		spec = maps.Clone(spec)
		delete(spec, "paused")
		content["spec"] = spec
	}
	// The content came out of JSON, so it goes back into it; keys are sorted.
	raw, err := json.Marshal(content)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}

// TakeSettled reads the inventory until two readings, a second apart, are the
// same: an object that changes right now could not be compared afterwards.
func TakeSettled(ctx context.Context, c client.Client) (Inventory, error) {
	last, err := Take(ctx, c)
	if err != nil {
		return nil, err
	}
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the source's objects to stop changing: %w", context.Cause(ctx))
		case <-time.After(time.Second):
		}
		now, err := Take(ctx, c)
		if err != nil {
			return nil, err
		}
		if len(Compare(last, now)) == 0 && len(now) == len(last) {
			return now, nil
		}
		last = now
	}
}

// Difference is one way in which the target does not hold what the source held.
type Difference struct {
	ID   ID
	What string
}

func (d Difference) Error() string { return d.ID.String() + ": " + d.What }

// Compare answers what of source is missing or different in target, sorted.
// Objects that only target has are no fault.
func Compare(source, target Inventory) []Difference {
	var differences []Difference
	for id, want := range source {
		got, ok := target[id]
		switch {
		case !ok:
			differences = append(differences, Difference{id, "is missing"})
		case got.ProviderID != want.ProviderID:
			differences = append(differences, Difference{id, "has another provider ID"})
		case got.Content != want.Content:
			differences = append(differences, Difference{id, "has another content"})
		case !slices.Equal(got.Owners, want.Owners):
			differences = append(differences, Difference{id, fmt.Sprintf("has the owners %v instead of %v", got.Owners, want.Owners)})
		}
	}
	slices.SortFunc(differences, func(a, b Difference) int { return strings.Compare(a.Error(), b.Error()) })
	return differences
}

func differencesError(differences []Difference) error {
	var all []error
	for _, d := range differences {
		all = append(all, d)
	}
	return errors.Join(all...)
}
