// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
)

// findUnlabelled looks for objects that something which moves owns and whose kind
// does not carry clusterctl's label, so that no move sees them. The source's garbage
// collector would delete them, and their controllers what they stand for.
func (r *run) findUnlabelled(ctx context.Context) error {
	definitions := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := r.source.read(ctx, func() error { return r.source.Client.List(ctx, definitions) }); err != nil {
		return fmt.Errorf("listing the custom resource definitions of %s: %w", r.source.Name, err)
	}
	moving := map[types.UID]*node{}
	for _, n := range r.graph.placed() {
		if !n.keep {
			moving[n.uid] = n
		}
	}
	var kinds []schema.GroupVersionKind
	for i := range definitions.Items {
		d := &definitions.Items[i]
		at := slices.IndexFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Served && v.Storage })
		if _, labelled := d.Labels[clusterctlv1.ClusterctlLabel]; !labelled && at >= 0 {
			kinds = append(kinds, schema.GroupVersionKind{Group: d.Spec.Group, Version: d.Spec.Versions[at].Name, Kind: d.Spec.Names.Kind})
		}
	}
	found := make([][]Stayed, len(kinds))
	indexes := make([]int, len(kinds))
	for i := range indexes {
		indexes[i] = i
	}
	err := each(ctx, listsAtOnce, indexes, func(ctx context.Context, i int) (err error) {
		found[i], err = r.owned(ctx, kinds[i], moving)
		return err
	})
	r.unlabelled = slices.Concat(found...)
	slices.SortFunc(r.unlabelled, func(a, b Stayed) int { return compareIDs(a.ID, b.ID) })
	return err
}

// owned answers the objects of a kind that something which moves owns.
func (r *run) owned(ctx context.Context, gvk schema.GroupVersionKind, moving map[types.UID]*node) ([]Stayed, error) {
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	err := r.source.read(ctx, func() error { return r.source.Client.List(ctx, all) })
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil, nil // nobody who moves Clusters need be allowed to see all kinds
	}
	if err != nil {
		return nil, fmt.Errorf("listing every %s of %s: %w", gvk.Kind, r.source.Name, err)
	}
	var found []Stayed
	for i := range all.Items {
		o := &all.Items[i]
		for _, reference := range o.OwnerReferences {
			if owner := moving[reference.UID]; owner != nil {
				why := fmt.Sprintf("%s owns it and moves, but its kind does not carry the label %s: the source's garbage collector would delete it. Label its CustomResourceDefinition on both sides if it is to move, or take the owner away", owner.ID, clusterctlv1.ClusterctlLabel)
				found = append(found, Stayed{ID{gvk.Group, gvk.Kind, o.Namespace, o.Name}, why})
				break
			}
		}
	}
	return found, nil
}
