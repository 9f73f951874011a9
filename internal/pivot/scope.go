// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// keepForOthers marks the classes that a Cluster which does not move uses, and
// those of other namespaces: they are copied and stay on the source.
func (g *graph) keepForOthers(scope Scope, objects []*unstructured.Unstructured) {
	if scope.all() {
		return
	}
	used := map[client.ObjectKey]bool{}
	for _, o := range objects {
		if idOf(o).is(clusterKind) && !scope.holds(client.ObjectKeyFromObject(o)) {
			used[classOf(o)] = true
		}
	}
	namespaces := scope.namespaces()
	for _, class := range g.ofKind(classKind) {
		if used[class.key()] || !slices.Contains(namespaces, class.Namespace) {
			g.keepBelow(class)
		}
	}
}

// narrow cuts the graph down to single Clusters: what belongs to them alone
// moves, what they need and others use too is copied, the rest is left alone.
func (g *graph) narrow(scope Scope) error {
	chosen := map[*node]bool{}
	for _, cluster := range g.ofKind(clusterKind) {
		if scope.holds(cluster.key()) {
			chosen[cluster] = true
		}
	}
	wanted := map[*node]bool{}
	for _, n := range g.sorted() {
		mine, others := belongs(n, chosen)
		if mine {
			wanted[n] = true
			n.keep = n.keep || others
		}
	}
	if err := g.addPools(wanted); err != nil {
		return err
	}
	for n := range wanted {
		g.wantOwners(n, chosen, wanted)
	}
	for _, n := range g.nodes {
		if !wanted[n] {
			n.move, n.hierarchy = false, false
			clear(n.tenants)
		}
	}
	return nil
}

// belongs says whether an object hangs below a chosen Cluster, and whether below
// another one too.
func belongs(n *node, chosen map[*node]bool) (mine, others bool) {
	for tenant := range n.tenants {
		if tenant.is(clusterKind) {
			mine = mine || chosen[tenant]
			others = others || !chosen[tenant]
		}
	}
	return mine, others
}

// wantOwners adds the owners of an object, which stay on the source as well, and
// what these own that belongs to no Cluster: the templates of a class.
func (g *graph) wantOwners(n *node, chosen, wanted map[*node]bool) {
	for _, owner := range slices.Concat(n.owners, n.softOwners) {
		if owner.virtual || wanted[owner] {
			continue
		}
		wanted[owner], owner.keep = true, true
		g.wantOwners(owner, chosen, wanted)
		for _, below := range owner.dependents {
			if mine, others := belongs(below, chosen); !mine && !others && !wanted[below] {
				wanted[below], below.keep = true, true
				g.wantOwners(below, chosen, wanted)
			}
		}
	}
}

var claimKind = schema.GroupKind{Group: "ipam.cluster.x-k8s.io", Kind: "IPAddressClaim"}

// addPools adds the IP pools from which the chosen Clusters have addresses. A
// pool that another Cluster uses too cannot be on both sides: both would hand
// out the same addresses.
func (g *graph) addPools(wanted map[*node]bool) error {
	users := map[ID][]*node{}
	for _, claim := range g.ofKind(claimKind) {
		if pool, ok := poolOf(claim.object); ok {
			users[pool] = append(users[pool], claim)
		}
	}
	for _, pool := range g.sorted() {
		claims := users[ID{Group: pool.Group, Kind: pool.Kind, Namespace: pool.Namespace, Name: pool.Name}]
		mine := slices.IndexFunc(claims, func(claim *node) bool { return wanted[claim] })
		other := slices.IndexFunc(claims, func(claim *node) bool { return !wanted[claim] })
		switch {
		case mine < 0 || pool.global:
			continue
		case other >= 0:
			return fmt.Errorf("%s serves %s, which moves, and %s, which stays: on both sides it would hand out the same addresses. Move both Clusters together, or give each a pool of its own", pool.ID, claims[mine].ID, claims[other].ID)
		}
		wanted[pool] = true
	}
	return nil
}

func poolOf(claim *unstructured.Unstructured) (ID, bool) {
	reference, ok, _ := unstructured.NestedMap(claim.Object, "spec", "poolRef")
	if !ok {
		return ID{}, false
	}
	text := func(field string) string { value, _ := reference[field].(string); return value }
	return ID{Group: text("apiGroup"), Kind: text("kind"), Namespace: claim.GetNamespace(), Name: text("name")}, true
}

// credentialFields end with these in the providers' specifications: CAPMOX's
// credentialsRef, OpenStack's and AWS's identityRef, Harvester's identitySecret.
var credentialFields = []string{"credentialsRef", "identityRef", "identitySecret", "secretRef"}

// carrySecrets adds the Secrets that a moved object refers to and that hang below
// nothing that moves. They stay on the source, where others may use them.
func (g *graph) carrySecrets(objects []*unstructured.Unstructured) {
	secrets := map[ID]*unstructured.Unstructured{}
	for _, o := range objects {
		if id := idOf(o); id.is(secretKind) {
			secrets[id] = o
		}
	}
	for _, n := range g.sorted() {
		if !n.moves() || n.Group == "" {
			continue
		}
		walk(n.object.Object["spec"], func(field string, reference map[string]any) {
			if secret := secrets[referencedSecret(n, field, reference)]; secret != nil {
				g.carry(secret)
			}
		})
	}
}

func referencedSecret(n *node, field string, reference map[string]any) ID {
	if !slices.ContainsFunc(credentialFields, func(suffix string) bool { return strings.HasSuffix(strings.ToLower(field), strings.ToLower(suffix)) }) {
		return ID{}
	}
	if kind, ok := reference["kind"].(string); ok && kind != "Secret" {
		return ID{}
	}
	name, _ := reference["name"].(string)
	namespace, _ := reference["namespace"].(string)
	if namespace == "" {
		namespace = n.Namespace
	}
	return ID{Kind: "Secret", Namespace: namespace, Name: name}
}

func (g *graph) carry(secret *unstructured.Unstructured) {
	n := g.nodes[secret.GetUID()]
	if n == nil || n.virtual {
		n = g.add(secret)
	}
	if n.moves() {
		return
	}
	// Its owners, if any, do not move: it goes without them.
	n.carried, n.keep, n.owners, n.softOwners = true, true, nil, nil
}
