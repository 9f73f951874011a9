// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// ErrExists is the answer of Apply when a finished Cluster of that name or with
// that control plane endpoint is already there.
var ErrExists = errors.New("exists already")

// ApplyOptions is what Apply writes.
type ApplyOptions struct {
	// Instance is the UUID of the resource instance.
	Instance string
	// Manifest holds the cluster's objects, Secrets its Secret objects.
	Manifest, Secrets *Manifest
	// New is set by a creation: it refuses a finished Cluster of another instance.
	New bool
}

// Apply writes the Secrets and then the manifest by server-side apply. A write
// that a webhook or the API server is not ready for is tried again until ctx
// ends. Unfinished objects of another instance are taken over.
func (h Home) Apply(ctx context.Context, options ApplyOptions) error {
	if err := h.checkFree(ctx, options); err != nil {
		return err
	}
	h.Report.Report(ctx, "applying", fmt.Sprintf("applying the objects of cluster %s", h.key("")))
	if options.Secrets != nil {
		for _, o := range options.Secrets.Objects {
			if err := h.applyObject(ctx, o.Unstructured); err != nil {
				return err
			}
		}
	}
	for _, o := range h.ordered(options.Manifest) {
		object := o.DeepCopy()
		if isCluster(object) {
			annotate(object, InstanceAnnotation, options.Instance)
		}
		if err := h.applyObject(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// ordered puts the Cluster last: its controllers start work when it appears, and
// all it refers to should be there by then.
func (h Home) ordered(m *Manifest) []Object {
	objects := slices.Clone(m.Objects)
	slices.SortStableFunc(objects, func(a, b Object) int {
		switch {
		case isCluster(a.Unstructured) == isCluster(b.Unstructured):
			return 0
		case isCluster(a.Unstructured):
			return 1
		}
		return -1
	})
	return objects
}

func isCluster(u *unstructured.Unstructured) bool {
	return u.GroupVersionKind().Group == coreGroup && u.GetKind() == "Cluster"
}

func annotate(u *unstructured.Unstructured, key, value string) {
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	u.SetAnnotations(annotations)
}

// EnsureNamespace makes the Cluster's namespace if it is not there.
func (h Home) EnsureNamespace(ctx context.Context) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
	err := h.retry(ctx, "creating namespace "+h.Namespace, func(ctx context.Context) error {
		return h.Client.Create(ctx, namespace.DeepCopy())
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (h Home) applyObject(ctx context.Context, object *unstructured.Unstructured) error {
	object = object.DeepCopy()
	if object.GetNamespace() == "" {
		namespaced, err := h.Client.IsObjectNamespaced(object)
		if err != nil {
			return fmt.Errorf("finding out whether %s has a namespace: %w", object.GetKind(), err)
		}
		if namespaced {
			object.SetNamespace(h.Namespace)
		}
	}
	return h.retry(ctx, "applying "+refOf(object), func(ctx context.Context) error {
		return h.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()), fieldOwner, client.ForceOwnership)
	})
}

// retry calls write until it succeeds, fails for good, or ctx ends; then it
// answers the last failure, since that says why.
func (h Home) retry(ctx context.Context, what string, write func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, h.poll(), true, func(ctx context.Context) (bool, error) {
		err := write(ctx)
		if err == nil {
			return true, nil
		}
		if !isPassing(err) {
			return false, err
		}
		if last == nil || last.Error() != err.Error() {
			h.Report.Report(ctx, "retrying", what+": "+err.Error())
		}
		last = err
		return false, nil
	})
	if err != nil && last != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: %w (last answer: %w)", what, context.Cause(ctx), last)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// isPassing says whether the same write may go through later: the server is
// starting or overloaded, a webhook does not answer yet, a kind is not served
// yet. A webhook that answered no is final.
func isPassing(err error) bool {
	switch {
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsAlreadyExists(err),
		apierrors.IsBadRequest(err), apierrors.IsNotFound(err), apierrors.IsRequestEntityTooLargeError(err), apierrors.IsMethodNotSupported(err):
		return false
	case meta.IsNoMatchError(err):
		return true
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code == 429 || code >= 500 || apierrors.IsConflict(err)
	}
	return !errors.Is(err, context.Canceled)
}

// checkFree refuses a creation over a Cluster that somebody else has finished.
func (h Home) checkFree(ctx context.Context, options ApplyOptions) error {
	if !options.New {
		return nil
	}
	endpoint := manifestEndpoint(options.Manifest)
	clusters := &clusterv1.ClusterList{}
	if err := h.retry(ctx, "listing the clusters that exist", func(ctx context.Context) error { return h.Client.List(ctx, clusters) }); err != nil {
		return err
	}
	for _, c := range clusters.Items {
		if c.Namespace == h.Namespace && c.Name == h.Name {
			if c.Annotations[FinishedAnnotation] == "true" && c.Annotations[InstanceAnnotation] != options.Instance || c.Annotations[InstanceAnnotation] == "" {
				return fmt.Errorf("cluster %s/%s: %w, and it was not left unfinished by this provider", c.Namespace, c.Name, ErrExists)
			}
			continue
		}
		if endpoint != "" && c.Spec.ControlPlaneEndpoint.Host == endpoint {
			return fmt.Errorf("cluster %s/%s with the same control plane endpoint %s: %w", c.Namespace, c.Name, endpoint, ErrExists)
		}
	}
	return nil
}

func manifestEndpoint(m *Manifest) string {
	for _, o := range m.Objects {
		if host, ok, _ := unstructured.NestedString(o.Object, "spec", "controlPlaneEndpoint", "host"); ok && host != "" {
			return host
		}
	}
	return ""
}

// Finish marks the Cluster as finished by instance.
func (h Home) Finish(ctx context.Context, instance string) error {
	return h.annotateCluster(ctx, map[string]any{InstanceAnnotation: instance, FinishedAnnotation: "true"})
}

func (h Home) annotateCluster(ctx context.Context, annotations map[string]any) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: h.Name}}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return fmt.Errorf("marking cluster %s: %w", h.key(""), err)
	}
	return h.retry(ctx, "marking cluster "+h.key("").String(), func(ctx context.Context) error {
		return h.Client.Patch(ctx, cluster.DeepCopy(), client.RawPatch(types.MergePatchType, patch), fieldOwner)
	})
}

// Delete asks for the deletion of the Cluster if it still carries instance, and
// waits until it and all its Machines are gone. The infrastructure provider
// removes the VMs on the way.
func (h Home) Delete(ctx context.Context, instance string) error {
	cluster, err := h.Cluster(ctx)
	if kube.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if owner := cluster.Annotations[InstanceAnnotation]; owner != instance {
		return fmt.Errorf("cluster %s carries the mark %q, not %q: it belongs to another resource instance and was left alone", h.key(""), owner, instance)
	}
	if err := h.retry(ctx, "deleting cluster "+h.key("").String(), func(ctx context.Context) error {
		return client.IgnoreNotFound(h.Client.Delete(ctx, cluster.DeepCopy()))
	}); err != nil {
		return err
	}
	return h.waitGone(ctx)
}
