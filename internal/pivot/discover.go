// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Scope says which Clusters move. Its zero value means all.
type Scope struct {
	// Namespaces move with all that is in them.
	Namespaces []string `json:"namespaces,omitempty"`
	// Clusters are single ones that move without their neighbours. Give either
	// these or Namespaces.
	Clusters []client.ObjectKey `json:"clusters,omitempty"`
}

func (s Scope) all() bool { return len(s.Namespaces) == 0 && len(s.Clusters) == 0 }

// namespaces are those whose objects are looked at.
func (s Scope) namespaces() []string {
	names := slices.Clone(s.Namespaces)
	for _, key := range s.Clusters {
		names = append(names, key.Namespace)
	}
	return names
}

// holds says whether a Cluster of that name is one that moves.
func (s Scope) holds(key client.ObjectKey) bool {
	return s.all() || slices.Contains(s.Namespaces, key.Namespace) || slices.Contains(s.Clusters, key)
}

// listsAtOnce bounds the requests of a discovery, each of which may be large.
const listsAtOnce = 8

// discover reads the owner graph of what the scope names.
func discover(ctx context.Context, side *Side, scope Scope, carryForeign bool) (*graph, error) {
	kinds, err := kindsOf(ctx, side)
	if err != nil {
		return nil, err
	}
	objects, err := listAll(ctx, side, kinds)
	if err != nil {
		return nil, err
	}
	providerNamespaces, err := infrastructureNamespaces(ctx, side)
	if err != nil {
		return nil, err
	}
	g := newGraph(kinds, inScope(scope, objects, providerNamespaces))
	g.settle()
	g.keepForOthers(scope, objects)
	if len(scope.Clusters) > 0 {
		if err := g.narrow(scope); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	g.carrySecrets(objects)
	if carryForeign {
		g.dropForeignOwners()
	}
	g.place()
	for _, n := range g.nodes {
		if n.level < 0 && !n.moves() {
			n.object = nil // of no more use, and there may be many
		}
	}
	return g, nil
}

// kindsOf answers the kinds that clusterctl looks at: those whose definitions
// carry its label, Secrets and ConfigMaps.
func kindsOf(ctx context.Context, side *Side) (map[schema.GroupKind]*kind, error) {
	definitions := &apiextensionsv1.CustomResourceDefinitionList{}
	err := side.read(ctx, func() error {
		return side.Client.List(ctx, definitions, client.HasLabels{clusterctlv1.ClusterctlLabel})
	})
	if err != nil {
		return nil, fmt.Errorf("listing the custom resource definitions of %s: %w", side.Name, err)
	}
	kinds := map[schema.GroupKind]*kind{
		secretKind: {GroupKind: secretKind, versions: []string{"v1"}},
		configKind: {GroupKind: configKind, versions: []string{"v1"}},
	}
	for i := range definitions.Items {
		k := kindOf(&definitions.Items[i])
		kinds[k.GroupKind] = k
	}
	return kinds, nil
}

func kindOf(definition *apiextensionsv1.CustomResourceDefinition) *kind {
	k := &kind{GroupKind: schema.GroupKind{Group: definition.Spec.Group, Kind: definition.Spec.Names.Kind}}
	for _, version := range definition.Spec.Versions {
		switch {
		case version.Storage:
			k.versions = slices.Insert(k.versions, 0, version.Name)
		case version.Served:
			k.versions = append(k.versions, version.Name)
		}
	}
	for label := range definition.Labels {
		if contract, ok := strings.CutPrefix(label, clusterv1.GroupVersion.Group+"/v"); ok && version.CompareKubeAwareVersionStrings("v"+contract, k.contract) > 0 {
			k.contract = "v" + contract
		}
	}
	k.global = definition.Spec.Scope == apiextensionsv1.ClusterScoped
	_, k.hierarchy = definition.Labels[clusterctlv1.ClusterctlMoveHierarchyLabel]
	k.hierarchy = k.hierarchy || k.GroupKind == clusterKind || k.GroupKind == classKind || k.GroupKind == setKind
	_, k.move = definition.Labels[clusterctlv1.ClusterctlMoveLabel]
	k.move = k.move || k.hierarchy
	return k
}

// version answers the one in which objects of the kind are read.
func (k *kind) version(side *Side) string {
	if common, ok := side.versions[k.GroupKind]; ok {
		return common
	}
	return k.versions[0]
}

// listAll reads every object of the kinds, in a fixed order of the kinds.
func listAll(ctx context.Context, side *Side, kinds map[schema.GroupKind]*kind) ([]*unstructured.Unstructured, error) {
	ordered := make([]*kind, 0, len(kinds))
	for _, k := range kinds {
		ordered = append(ordered, k)
	}
	slices.SortFunc(ordered, func(a, b *kind) int { return strings.Compare(a.String(), b.String()) })
	lists := make([][]*unstructured.Unstructured, len(ordered))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listsAtOnce)
	for i, k := range ordered {
		group.Go(func() error {
			found, err := list(ctx, side, k.WithVersion(k.version(side)))
			lists[i] = found
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(lists...), nil
}

// list answers nothing for a kind that the cluster does not serve.
func list(ctx context.Context, side *Side, gvk schema.GroupVersionKind) ([]*unstructured.Unstructured, error) {
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	err := side.read(ctx, func() error { return side.Client.List(ctx, all) })
	if err = kube.Classify(err); errors.Is(err, kube.ErrAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing every %s of %s: %w", gvk.Kind, side.Name, err)
	}
	found := make([]*unstructured.Unstructured, len(all.Items))
	for i := range all.Items {
		found[i] = &all.Items[i]
	}
	return found, nil
}

// infrastructureNamespaces are those of the infrastructure providers, whose
// Secrets a global identity may own.
func infrastructureNamespaces(ctx context.Context, side *Side) ([]string, error) {
	installed, err := side.providers(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range installed {
		if i.Type == capi.Infrastructure {
			names = append(names, i.Namespace)
		}
	}
	return names, nil
}

// inScope answers the objects that the graph is built of: those of the scope's
// namespaces, the global ones, Secrets of the infrastructure providers, and the
// classes that the Clusters use in other namespaces with their templates.
func inScope(scope Scope, objects []*unstructured.Unstructured, providerNamespaces []string) []*unstructured.Unstructured {
	if scope.all() {
		return objects
	}
	namespaces := scope.namespaces()
	elsewhere := classesElsewhere(namespaces, objects)
	var found []*unstructured.Unstructured
	for _, o := range objects {
		id := idOf(o)
		switch {
		case id.Namespace == "", slices.Contains(namespaces, id.Namespace):
		case id.is(secretKind) && slices.Contains(providerNamespaces, id.Namespace):
		case elsewhere[id]:
		default:
			continue
		}
		found = append(found, o)
	}
	return found
}

func classesElsewhere(namespaces []string, objects []*unstructured.Unstructured) map[ID]bool {
	wanted := map[client.ObjectKey]bool{}
	for _, o := range objects {
		if class := classOf(o); idOf(o).is(clusterKind) && slices.Contains(namespaces, o.GetNamespace()) && class.Name != "" && !slices.Contains(namespaces, class.Namespace) {
			wanted[class] = true
		}
	}
	found := map[ID]bool{}
	for _, o := range objects {
		if id := idOf(o); id.is(classKind) && wanted[id.key()] {
			found[id] = true
			for _, template := range templatesOf(o) {
				found[template] = true
			}
		}
	}
	return found
}

// templatesOf answers what a ClusterClass refers to: every templateRef in it.
func templatesOf(class *unstructured.Unstructured) []ID {
	var found []ID
	walk(class.Object["spec"], func(field string, value map[string]any) {
		if field != "templateRef" {
			return
		}
		apiVersion, _ := value["apiVersion"].(string)
		group, _ := schema.ParseGroupVersion(apiVersion)
		kind, _ := value["kind"].(string)
		name, _ := value["name"].(string)
		found = append(found, ID{Group: group.Group, Kind: kind, Namespace: class.GetNamespace(), Name: name})
	})
	return found
}

// walk visits every object within a value, with the field that holds it.
func walk(value any, visit func(field string, value map[string]any)) {
	switch value := value.(type) {
	case map[string]any:
		for field, member := range value {
			if object, ok := member.(map[string]any); ok {
				visit(field, object)
			}
			walk(member, visit)
		}
	case []any:
		for _, member := range value {
			walk(member, visit)
		}
	}
}
