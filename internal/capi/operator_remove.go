// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"fmt"
	"slices"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// RemoveOperator takes away what [EnsureOperator] installed for owner: the
// providers, last installed first, the operator, and cert-manager where its
// chart is ours. Definitions and namespaces stay, and so does what carries
// another owner's mark. It is the caller's to see that no Cluster is left.
func RemoveOperator(ctx context.Context, c *kube.Client, owner string, certManager bool, report progress.Reporter) error {
	kinds := Types()
	slices.Reverse(kinds)
	for _, kind := range kinds {
		if err := removeProviders(ctx, c, kind, owner, report); err != nil {
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

func removeProviders(ctx context.Context, c *kube.Client, kind Type, owner string, report progress.Reporter) error {
	objects, err := c.Objects(ctx, operatorGroup, string(kind), "")
	if kube.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range objects {
		object := &objects[i]
		if object.GetAnnotations()[ownerAnnotation] != owner {
			continue
		}
		report.Report(ctx, "removing-providers", "removing "+kube.Describe(object))
		if err := c.Delete(ctx, object); err != nil && !kube.IsAbsent(kube.Classify(err)) {
			return fmt.Errorf("deleting %s: %w", kube.Describe(object), err)
		}
		err := kube.Wait(ctx, "the end of "+kube.Describe(object), func(ctx context.Context) (bool, string, error) {
			left, err := c.Object(ctx, operatorGroup, string(kind), object.GetNamespace(), object.GetName())
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
		label := Installed{Type: kind, Name: object.GetName()}.Label()
		for _, kind := range []string{"ConfigMap", "Secret"} {
			if err := deleteOthers(ctx, c, kind, object.GetNamespace(), label, nil); err != nil {
				return err
			}
		}
	}
	return nil
}
