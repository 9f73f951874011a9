// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// RemoveOperator takes away what [EnsureOperator] installed for owner: the
// providers, last installed first, the operator, and cert-manager where its
// chart is ours. Definitions and namespaces stay, and so does what carries
// another owner's mark. It is the caller's to see that no Cluster is left.
func RemoveOperator(ctx context.Context, c *kube.Client, owner string, certManager bool, report progress.Reporter) error {
	leaving, err := ownedProviders(ctx, c, owner)
	if err != nil {
		return err
	}
	for i := range leaving {
		if err := removeProvider(ctx, c, &leaving[i], report); err != nil {
			return err
		}
	}
	if err := helm.Remove(ctx, c, operatorNamespace, operatorRelease, owner, report); err != nil {
		return err
	}
	if !certManager {
		return nil
	}
	return helm.Remove(ctx, c, certManagerNamespace, certManagerRelease, owner, report)
}

// ownedProviders lists the objects for the operator that carry the owner's mark,
// last installed first.
func ownedProviders(ctx context.Context, c *kube.Client, owner string) ([]unstructured.Unstructured, error) {
	kinds := Types()
	slices.Reverse(kinds)
	var owned []unstructured.Unstructured
	for _, kind := range kinds {
		objects, err := c.Objects(ctx, operatorGroup, string(kind), "")
		if kube.IsAbsent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range objects {
			if objects[i].GetAnnotations()[ownerAnnotation] == owner {
				owned = append(owned, objects[i])
			}
		}
	}
	return owned, nil
}

// labelOf names the provider that an object for the operator is about.
func labelOf(object *unstructured.Unstructured) string {
	return clusterctlv1.ManifestLabel(object.GetName(), Type(object.GetKind()))
}

func removeProvider(ctx context.Context, c *kube.Client, object *unstructured.Unstructured, report progress.Reporter) error {
	report.Report(ctx, "removing-providers", "removing "+kube.Describe(object))
	if err := c.Delete(ctx, object); err != nil && !kube.IsAbsent(kube.Classify(err)) {
		return fmt.Errorf("deleting %s: %w", kube.Describe(object), err)
	}
	err := kube.Wait(ctx, "the end of "+kube.Describe(object), func(ctx context.Context) (bool, string, error) {
		left, err := c.Object(ctx, operatorGroup, object.GetKind(), object.GetNamespace(), object.GetName())
		if kube.IsAbsent(err) {
			return true, "", nil
		}
		if err != nil {
			return false, "", err
		}
		_, state, err := operatorState(left, "")
		return false, state, err
	})
	if err != nil {
		return err
	}
	for _, kind := range []string{"ConfigMap", "Secret"} {
		if err := deleteOthers(ctx, c, kind, object.GetNamespace(), labelOf(object), nil); err != nil {
			return err
		}
	}
	return nil
}
