// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Discovered answers the identities of all objects that a move of everything
// from a side would carry over.
func Discovered(ctx context.Context, side *Side) ([]ID, error) {
	g, err := discover(ctx, side, Scope{}, false)
	if err != nil {
		return nil, err
	}
	var ids []ID
	for _, n := range g.placed() {
		ids = append(ids, n.ID)
	}
	return ids, nil
}

// DiscoveredOwners answers the objects that a move of the scope carries over as
// clusterctl would, with the owners of each.
func DiscoveredOwners(ctx context.Context, side *Side, scope Scope) (map[string][]string, error) {
	g, err := discover(ctx, side, scope, false)
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, n := range g.placed() {
		if n.carried {
			continue
		}
		var owners []string
		for _, owner := range n.owners {
			owners = append(owners, owner.Kind+" "+owner.Name)
		}
		slices.Sort(owners)
		found[n.Kind+" "+n.Namespace+"/"+n.Name] = owners
	}
	return found, nil
}

// DiscoveredVersions answers the names of all objects that a move of everything
// carries over, by their kinds.
func DiscoveredVersions(ctx context.Context, side *Side) (map[schema.GroupVersionKind][]client.ObjectKey, error) {
	g, err := discover(ctx, side, Scope{}, false)
	if err != nil {
		return nil, err
	}
	found := map[schema.GroupVersionKind][]client.ObjectKey{}
	for _, n := range g.placed() {
		found[n.object.GroupVersionKind()] = append(found[n.object.GroupVersionKind()], n.key())
	}
	return found, nil
}
