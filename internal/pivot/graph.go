// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package pivot moves Cluster API objects from one management cluster to another
// and proves that nothing was lost on the way.
//
// A move is journalled in both clusters, and each of its writes may be its last:
// whoever runs it next brings everything back to the source before the phase
// [PhaseCommitted] was reached, and to the target from then on.
package pivot

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "sigs.k8s.io/cluster-api/api/addons/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	secretutil "sigs.k8s.io/cluster-api/util/secret"
)

// ID names an object on any cluster: without version and UID, which differ. With
// the group in it, two kinds of the same name are never mistaken for one another.
type ID struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (id ID) String() string {
	if id.Namespace == "" {
		return id.Kind + " " + id.Name
	}
	return id.Kind + " " + id.Namespace + "/" + id.Name
}

func (id ID) key() client.ObjectKey {
	return client.ObjectKey{Namespace: id.Namespace, Name: id.Name}
}

func compareIDs(a, b ID) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// The kinds that a move treats apart.
var (
	clusterKind = schema.GroupKind{Group: clusterv1.GroupVersion.Group, Kind: "Cluster"}
	classKind   = schema.GroupKind{Group: clusterv1.GroupVersion.Group, Kind: "ClusterClass"}
	machineKind = schema.GroupKind{Group: clusterv1.GroupVersion.Group, Kind: "Machine"}
	setKind     = schema.GroupKind{Group: addonsv1.GroupVersion.Group, Kind: "ClusterResourceSet"}
	bindingKind = schema.GroupKind{Group: addonsv1.GroupVersion.Group, Kind: "ClusterResourceSetBinding"}
	secretKind  = schema.GroupKind{Kind: "Secret"}
	configKind  = schema.GroupKind{Kind: "ConfigMap"}
)

func (id ID) is(kind schema.GroupKind) bool { return id.Group == kind.Group && id.Kind == kind.Kind }

// kind is one whose objects a move looks at.
type kind struct {
	schema.GroupKind
	// versions are those that the cluster serves, the stored one first.
	versions []string
	global   bool
	// contract is the newest version of Cluster API's contract that the kind keeps.
	contract string
	// move and hierarchy are clusterctl's labels of the definition: its objects
	// move, or they and all that they own.
	move, hierarchy bool
}

// node is an object of the source and its place in the owner graph.
type node struct {
	ID
	uid    types.UID
	object *unstructured.Unstructured
	// owners are as in the object's references, softOwners those that a naming
	// convention or another field tells.
	owners, softOwners, dependents []*node
	// virtual means that the object was only named as an owner and not read: its
	// kind is none that moves, or it does not exist.
	virtual         bool
	move, hierarchy bool
	global          bool
	// keep says that the object is copied and stays on the source: it is global,
	// or others there need it.
	keep bool
	// carried is a Secret that clusterctl would leave behind: a moved object
	// refers to it.
	carried bool
	// tenants are the objects below which this one hangs and moves.
	tenants map[*node]bool
	// level is the number of creations that must come before; -1 without a place.
	level int
}

// graph is the owner graph of one cluster, as clusterctl v1.14.2 builds it
// (cmd/clusterctl/client/cluster/objectgraph.go).
type graph struct {
	kinds map[schema.GroupKind]*kind
	nodes map[types.UID]*node
}

func idOf(o *unstructured.Unstructured) ID {
	return ID{Group: o.GroupVersionKind().Group, Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
}

// newGraph links the objects by their owner references.
func newGraph(kinds map[schema.GroupKind]*kind, objects []*unstructured.Unstructured) *graph {
	g := &graph{kinds: kinds, nodes: map[types.UID]*node{}}
	for _, o := range objects {
		if g.nodes[o.GetUID()] == nil {
			g.add(o)
		}
	}
	for _, n := range g.sorted() {
		g.link(n)
	}
	g.linkSoftly()
	return g
}

func (g *graph) add(o *unstructured.Unstructured) *node {
	n := &node{ID: idOf(o), uid: o.GetUID(), object: o, tenants: map[*node]bool{}, level: -1}
	if k := g.kinds[schema.GroupKind{Group: n.Group, Kind: n.Kind}]; k != nil {
		n.move, n.hierarchy, n.global = k.move, k.hierarchy, k.global
	}
	if _, ok := o.GetLabels()[clusterctlv1.ClusterctlMoveLabel]; ok {
		n.move = true
	}
	if _, ok := o.GetLabels()[clusterctlv1.ClusterctlMoveHierarchyLabel]; ok {
		n.hierarchy = true
	}
	g.nodes[n.uid] = n
	return n
}

func (g *graph) link(n *node) {
	for _, reference := range n.object.GetOwnerReferences() {
		owner := g.nodes[reference.UID]
		if owner == nil {
			group, _ := schema.ParseGroupVersion(reference.APIVersion)
			owner = &node{ID: ID{Group: group.Group, Kind: reference.Kind, Name: reference.Name}, uid: reference.UID, virtual: true, tenants: map[*node]bool{}, level: -1}
			g.nodes[owner.uid] = owner
		}
		if !slices.Contains(n.owners, owner) {
			n.owners = append(n.owners, owner)
			owner.dependents = append(owner.dependents, n)
		}
	}
}

// sorted answers the nodes in a fixed order, the virtual ones left out.
func (g *graph) sorted() []*node {
	nodes := make([]*node, 0, len(g.nodes))
	for _, n := range g.nodes {
		if !n.virtual {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b *node) int { return compareIDs(a.ID, b.ID) })
	return nodes
}

func (g *graph) ofKind(kind schema.GroupKind) []*node {
	var found []*node
	for _, n := range g.sorted() {
		if n.is(kind) {
			found = append(found, n)
		}
	}
	return found
}

func (n *node) addSoftOwner(owner *node) {
	if !slices.Contains(n.softOwners, owner) {
		n.softOwners = append(n.softOwners, owner)
		owner.dependents = append(owner.dependents, n)
	}
}

// linkSoftly adds what no owner reference tells: a Cluster's Secrets by their
// names, its class, and its bindings of resource sets.
func (g *graph) linkSoftly() {
	clusters := map[client.ObjectKey]*node{}
	for _, c := range g.ofKind(clusterKind) {
		clusters[c.key()] = c
	}
	classes := map[client.ObjectKey]*node{}
	for _, c := range g.ofKind(classKind) {
		classes[c.key()] = c
	}
	for _, cluster := range clusters {
		if class := classes[classOf(cluster.object)]; class != nil {
			cluster.addSoftOwner(class)
		}
	}
	for _, secret := range g.ofKind(secretKind) {
		if len(secret.owners) > 0 {
			continue
		}
		name, _, err := secretutil.ParseSecretName(secret.Name)
		if cluster := clusters[client.ObjectKey{Namespace: secret.Namespace, Name: name}]; err == nil && cluster != nil {
			secret.addSoftOwner(cluster)
		}
	}
	for _, binding := range g.ofKind(bindingKind) {
		name, _, _ := unstructured.NestedString(binding.object.Object, "spec", "clusterName")
		if cluster := clusters[client.ObjectKey{Namespace: binding.Namespace, Name: name}]; cluster != nil {
			binding.addSoftOwner(cluster)
		}
	}
}

// classOf answers the ClusterClass of a Cluster; its name is empty without one.
func classOf(cluster *unstructured.Unstructured) client.ObjectKey {
	name, _, _ := unstructured.NestedString(cluster.Object, "spec", "topology", "classRef", "name")
	namespace, _, _ := unstructured.NestedString(cluster.Object, "spec", "topology", "classRef", "namespace")
	return client.ObjectKey{Namespace: cmp.Or(namespace, cluster.GetNamespace()), Name: name}
}

// settle finds the tenants of each object: the Clusters, ClusterClasses and
// other roots that it hangs below. What hangs below a global object stays on the
// source, since others there may hang below it too.
func (g *graph) settle() {
	for _, root := range g.sorted() {
		if root.hierarchy {
			g.descend(root, root, root.global)
		}
		if root.global {
			root.keep = true
		}
	}
}

func (g *graph) descend(n, root *node, global bool) {
	if n.tenants[root] {
		return // also ends the walk in a circle of owner references
	}
	n.tenants[root] = true
	n.keep = n.keep || global
	for _, below := range n.dependents {
		g.descend(below, root, global)
	}
}

// keepBelow marks an object and what it owns as staying on the source.
func (g *graph) keepBelow(n *node) {
	if n.keep {
		return
	}
	n.keep = true
	for _, below := range n.dependents {
		if slices.Contains(below.owners, n) {
			g.keepBelow(below)
		}
	}
}

// moves says whether the node is one that a move wants to carry over.
func (n *node) moves() bool { return !n.virtual && (len(n.tenants) > 0 || n.move || n.carried) }

// place gives each object that moves its level: all its owners are on lower
// ones. What has an owner that does not move gets none, and so stays.
func (g *graph) place() {
	waiting := map[*node]int{}
	var ready []*node
	for _, n := range g.sorted() {
		if !n.moves() {
			continue
		}
		waiting[n] = len(n.owners) + len(n.softOwners)
		if waiting[n] == 0 {
			n.level = 0
			ready = append(ready, n)
		}
	}
	for len(ready) > 0 {
		n := ready[0]
		ready = ready[1:]
		for _, below := range n.dependents {
			left, moves := waiting[below]
			if !moves {
				continue
			}
			below.level = max(below.level, n.level+1)
			if waiting[below] = left - 1; left == 1 {
				ready = append(ready, below)
			}
		}
	}
	for n, left := range waiting {
		if left > 0 {
			n.level = -1
		}
	}
}

// placed answers the objects that move, owners before what they own.
func (g *graph) placed() []*node {
	var nodes []*node
	for _, n := range g.sorted() {
		if n.level >= 0 {
			nodes = append(nodes, n)
		}
	}
	slices.SortStableFunc(nodes, func(a, b *node) int { return a.level - b.level })
	return nodes
}

// Stayed is an object that belongs to what is moved and stays on the source.
type Stayed struct {
	ID `json:",inline"`
	// Why says it for people.
	Why string `json:"why"`
}

// heldBack answers what wants to move and cannot, since something that does not
// move owns it. clusterctl leaves it behind without a word.
func (g *graph) heldBack() []Stayed {
	var held []Stayed
	for _, n := range g.sorted() {
		if !n.moves() || n.level >= 0 {
			continue
		}
		var names []string
		for _, owner := range slices.Concat(n.owners, n.softOwners) {
			if owner.level < 0 {
				names = append(names, owner.Kind+" "+owner.Name)
			}
		}
		held = append(held, Stayed{n.ID, "its owner " + strings.Join(names, " and ") + " does not move"})
	}
	return held
}

// dropForeignOwners cuts the references to owners that do not move, so that what
// they hold back is carried over without them.
func (g *graph) dropForeignOwners() {
	for _, n := range g.sorted() {
		if n.moves() {
			n.owners = slices.DeleteFunc(n.owners, func(owner *node) bool { return !owner.moves() })
		}
	}
}
