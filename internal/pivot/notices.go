// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// gitOps are the tools that apply objects again and again, and the labels and
// annotations by which their objects are known.
var gitOps = []struct {
	tool  string
	marks []string
}{
	{"Argo CD", []string{"argocd.argoproj.io/instance", "argocd.argoproj.io/tracking-id"}},
	{"Flux", []string{"kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name"}},
}

// notices tells what a move does not refuse and its user should know beforehand:
// who may lift the pause or make the objects again, and who goes on asking the
// source.
func (r *run) notices(ctx context.Context) ([]string, error) {
	applied, err := r.applied(ctx)
	if err != nil {
		return nil, err
	}
	followers, err := r.followers(ctx)
	return slices.Concat(applied, followers), err
}

func (r *run) applied(ctx context.Context) ([]string, error) {
	found := map[string][]string{}
	see := func(name string, o client.Object) {
		for _, g := range gitOps {
			if slices.ContainsFunc(g.marks, func(mark string) bool {
				_, labelled := o.GetLabels()[mark]
				_, annotated := o.GetAnnotations()[mark]
				return labelled || annotated
			}) {
				found[g.tool] = append(found[g.tool], name)
			}
		}
	}
	namespaces := map[string]bool{}
	for _, n := range r.graph.placed() {
		see(n.ID.String(), n.object)
		if n.Namespace != "" {
			namespaces[n.Namespace] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		namespace := &corev1.Namespace{}
		err := r.source.read(ctx, func() error { return r.source.Client.Get(ctx, client.ObjectKey{Name: name}, namespace) })
		if client.IgnoreNotFound(err) != nil && !apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("reading namespace %s of %s: %w", name, r.source.Name, err)
		}
		see("Namespace "+name, namespace)
	}
	var all []string
	for _, tool := range slices.Sorted(maps.Keys(found)) {
		first, more := found[tool][0], ""
		if others := len(found[tool]) - 1; others > 0 {
			more = fmt.Sprintf(" and %d more", others)
		}
		all = append(all, fmt.Sprintf("%s applies %s%s: suspend it until the move is done, and let it apply to the target afterwards. If it lifts the pause meanwhile, the move is rolled back; what it makes again on the source afterwards would have two managers", tool, first, more))
	}
	return all, nil
}

// followers are programs beside the source's controllers that scale its Machines.
func (r *run) followers(ctx context.Context) ([]string, error) {
	all := &appsv1.DeploymentList{}
	err := r.source.read(ctx, func() error { return r.source.Client.List(ctx, all) })
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("listing the Deployments of %s: %w", r.source.Name, err)
	}
	var found []string
	for i := range all.Items {
		if d := &all.Items[i]; slices.Contains(arguments(d), "--cloud-provider=clusterapi") {
			found = append(found, fmt.Sprintf("Deployment %s/%s scales the Clusters of the source: give it access to the target instead, or run it there", d.Namespace, d.Name))
		}
	}
	return found, nil
}
