// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	helmkube "helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/release"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

const (
	definitionGroup = "apiextensions.k8s.io"
	definitionKind  = "CustomResourceDefinition"
)

// Removal says which release is to go, and how thoroughly.
type Removal struct {
	Namespace, Name string
	// Owner is the mark that the release must carry; empty means none, as on one
	// that was imported.
	Owner string
	// Definitions removes the CustomResourceDefinitions of the chart as well,
	// each only if no object of its kind is left in the cluster.
	Definitions bool
}

func (r Removal) String() string { return r.Namespace + "/" + r.Name }

// Remove is [Engine.Remove] without the definitions.
func Remove(ctx context.Context, c *kube.Client, namespace, name, owner string, report progress.Reporter) error {
	_, err := Engine{Report: report}.Remove(ctx, c, Removal{Namespace: namespace, Name: name, Owner: owner})
	return err
}

// Remove uninstalls a release that carries the owner's mark. A release that is
// not there, and one with the mark of somebody else, are left alone without an
// error. It answers the CustomResourceDefinitions that were to go and stay,
// each with its reason.
func (e Engine) Remove(ctx context.Context, c *kube.Client, r Removal) (stay []string, err error) {
	cfg, err := configure(ctx, c, r.Namespace, r.Name, e.Report)
	if err != nil {
		return nil, fmt.Errorf("uninstalling Helm release %s: %w", r, err)
	}
	lease := leaseKey(Spec{Namespace: r.Namespace, Name: r.Name})
	last, err := newest(cfg, r.Name)
	switch {
	case kube.IsAbsent(err):
		return nil, dropLease(ctx, c, lease, r.Owner)
	case err != nil:
		return nil, fmt.Errorf("looking for Helm release %s to uninstall it: %w", r, err)
	case last.Labels[ownerLabel] != r.Owner:
		return nil, nil
	}
	held, reservation, err := e.Leases.Acquire(ctx, c, lease, r.Owner, e.Report)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		// There is none, and nobody else can make one either.
		return e.remove(ctx, c, r, last)
	}
	if err != nil {
		return nil, fmt.Errorf("reserving Helm release %s: %w", r, err)
	}
	stay, err = e.remove(held, c, r, last)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if releaseErr := reservation.Release(end); err == nil && releaseErr != nil {
		err = fmt.Errorf("giving back the reservation of Helm release %s: %w", r, releaseErr)
	}
	return stay, err
}

func (e Engine) remove(ctx context.Context, c *kube.Client, r Removal, last *release.Release) (stay []string, err error) {
	cfg, err := configure(ctx, c, r.Namespace, r.Name, e.Report)
	if err != nil {
		return nil, fmt.Errorf("uninstalling Helm release %s: %w", r, err)
	}
	e.Report.Report(ctx, "uninstalling", "uninstalling Helm release "+r.String())
	// While the record is still there, so that an interrupted removal finds the
	// definitions again.
	definitions := func(ctx context.Context) error {
		if !r.Definitions {
			return nil
		}
		names, err := recordedDefinitions(last)
		if err != nil {
			return err
		}
		stay, err = removeDefinitions(ctx, c, names, e.Report)
		return err
	}
	ending, err := c.NamespaceEnds(ctx, r.Namespace)
	if err != nil {
		return nil, fmt.Errorf("uninstalling Helm release %s: %w", r, err)
	}
	// No hook can be made in a namespace that is being deleted, and the objects
	// that the release has outside of it must go all the same.
	if err := uninstall(ctx, cfg, teardown{name: r.Name, hookless: ending, gone: definitions}); err != nil {
		return nil, fmt.Errorf("uninstalling Helm release %s: %w", r, withCause(ctx, err))
	}
	return stay, nil
}

// dropLease takes away what an interrupted run of the owner has left.
func dropLease(ctx context.Context, c *kube.Client, key client.ObjectKey, owner string) error {
	lease := &coordinationv1.Lease{}
	if err := c.Get(ctx, key, lease); err != nil {
		return client.IgnoreNotFound(err)
	}
	if ptr.Deref(lease.Spec.HolderIdentity, "") != owner {
		return nil
	}
	return client.IgnoreNotFound(c.Client.Delete(ctx, lease, client.Preconditions{ResourceVersion: &lease.ResourceVersion}))
}

// recordedDefinitions names the CustomResourceDefinitions that a release has
// brought, from its chart's folders crds and from its templates. What the chart
// wants to be kept is left out.
func recordedDefinitions(last *release.Release) ([]string, error) {
	names := []string{}
	if last.Chart != nil && last.Chart.Metadata != nil {
		if noted := last.Chart.Metadata.Annotations[definitionsAnnotation]; noted != "" {
			names = strings.Split(noted, ",")
		}
	}
	objects, err := kube.ParseDocuments([]byte(last.Manifest))
	if err != nil {
		return nil, fmt.Errorf("reading the manifest on record: %w", err)
	}
	for _, object := range objects {
		kept := object.GetAnnotations()[helmkube.ResourcePolicyAnno] == helmkube.KeepPolicy
		if object.GetKind() == definitionKind && object.GroupVersionKind().Group == definitionGroup && !kept {
			names = append(names, object.GetName())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// removeDefinitions deletes the definitions of which no object is left.
func removeDefinitions(ctx context.Context, c *kube.Client, names []string, report progress.Reporter) (stay []string, err error) {
	for _, name := range names {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		err := kube.Classify(c.Get(ctx, client.ObjectKey{Name: name}, definition))
		if kube.IsAbsent(err) {
			continue
		}
		if err != nil {
			return stay, fmt.Errorf("reading the definition %s: %w", name, err)
		}
		objects, err := kube.Instances(ctx, c, definition, 1)
		if err != nil {
			return stay, fmt.Errorf("looking for objects of the definition %s: %w", name, err)
		}
		if len(objects) > 0 {
			stay = append(stay, name+": there is "+kube.Describe(&objects[0]))
			continue
		}
		report.Report(ctx, "deleting-definitions", "deleting the CustomResourceDefinition "+name)
		unchanged := client.Preconditions{UID: &definition.UID, ResourceVersion: &definition.ResourceVersion}
		if err := client.IgnoreNotFound(c.Client.Delete(ctx, definition, unchanged)); err != nil {
			return stay, fmt.Errorf("deleting the definition %s: %w", name, err)
		}
	}
	return stay, nil
}
