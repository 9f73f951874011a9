// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// fieldOwner is the field manager of what this provider writes.
const fieldOwner = client.FieldOwner(kube.FieldManager)

// ErrExists is the answer of Apply when a finished Cluster of that name or with
// that control plane endpoint is already there.
var ErrExists = errors.New("exists already")

// ApplyOptions is what Apply writes.
type ApplyOptions struct {
	// Instance is the UUID of the resource instance.
	Instance string
	// Manifest holds the cluster's objects, Secrets its Secret objects.
	Manifest, Secrets *Manifest
	// Ignored are the fields that are left as they are found.
	Ignored []IgnoredField
	// New is set by a creation: it refuses a finished Cluster of another instance.
	New bool
}

// Apply writes the Secrets and then the manifest by server-side apply. A write
// that a webhook or the API server is not ready for is tried again until ctx
// ends. Unfinished objects of another instance are taken over. Templates whose
// content changed are written under a new name. What left the manifest stays in
// the Cluster's inventory until [Home.Prune].
func (h Home) Apply(ctx context.Context, options ApplyOptions) error {
	if err := h.checkFree(ctx, options); err != nil {
		return err
	}
	h.Report.Report(ctx, "applying", fmt.Sprintf("applying the objects of cluster %s", h.key("")))
	desired, err := h.desired(ctx, options.Manifest, options.Ignored)
	if err != nil {
		return err
	}
	inventory, err := h.extendInventory(ctx, inventoryOf(desired))
	if err != nil {
		return err
	}
	if options.Secrets != nil {
		for _, o := range options.Secrets.Objects {
			if err := h.applyObject(ctx, o.Unstructured); err != nil {
				return err
			}
		}
	}
	for _, object := range desired {
		if isCluster(object) {
			annotate(object, InstanceAnnotation, options.Instance)
			annotate(object, inventoryAnnotation, inventory)
		}
		if err := h.applyObject(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// desired answers the objects as they are to be applied: in the Cluster's
// namespace, with rotated templates, ignored fields as they are found, and the
// Cluster last: its controllers start work when it appears, and all that it
// refers to should be there by then.
func (h Home) desired(ctx context.Context, m *Manifest, ignored []IgnoredField) (objects []*unstructured.Unstructured, err error) {
	err = h.retry(ctx, "reading what stands", func(ctx context.Context) error {
		objects, err = h.desiredNow(ctx, m, ignored)
		return err
	})
	return objects, err
}

// desiredNow is desired without another try.
func (h Home) desiredNow(ctx context.Context, m *Manifest, ignored []IgnoredField) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, o := range m.Objects {
		object := o.DeepCopy()
		if err := h.place(object); err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	r := rotation{lister: func(ctx context.Context, apiVersion, kind string) ([]unstructured.Unstructured, error) {
		return h.Client.Objects(ctx, apiVersion, kind, h.Namespace)
	}}
	if err := r.rotate(ctx, objects); err != nil {
		return nil, err
	}
	for _, object := range objects {
		if err := h.keepIgnored(ctx, object, ignored); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		switch {
		case isCluster(a) == isCluster(b):
			return 0
		case isCluster(a):
			return 1
		}
		return -1
	})
	return objects, nil
}

// place puts an object without a namespace into the Cluster's. A kind that is not
// served yet has one, as all kinds of a cluster's own objects do.
func (h Home) place(object *unstructured.Unstructured) error {
	if object.GetNamespace() != "" {
		return nil
	}
	namespaced, err := h.Client.IsObjectNamespaced(object)
	if err != nil && !meta.IsNoMatchError(err) {
		return fmt.Errorf("finding out whether %s has a namespace: %w", object.GetKind(), err)
	}
	if namespaced || err != nil {
		object.SetNamespace(h.Namespace)
	}
	return nil
}

func isCluster(u *unstructured.Unstructured) bool {
	return u.GroupVersionKind().GroupKind() == clusterKind
}

func annotate(u *unstructured.Unstructured, key, value string) {
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	u.SetAnnotations(annotations)
}

// extendInventory writes the union of the Cluster's inventory and items into the
// Cluster, if it is there, before any of the items is applied: a run that is cut
// short leaves nothing behind that the next one does not know of. It answers the
// union as the annotation has it.
func (h Home) extendInventory(ctx context.Context, items []item) (string, error) {
	cluster := &clusterv1.Cluster{}
	there := false
	err := h.retry(ctx, "reading cluster "+h.key("").String(), func(ctx context.Context) error {
		err := h.Client.Get(ctx, h.key(""), cluster)
		there = err == nil
		return client.IgnoreNotFound(err)
	})
	if err != nil {
		return "", err
	}
	before, err := readInventory(cluster)
	if err != nil {
		return "", err
	}
	text, err := writeInventory(union(before, items))
	if err != nil || !there || cluster.Annotations[inventoryAnnotation] == text {
		return text, err
	}
	return text, h.annotateCluster(ctx, map[string]any{inventoryAnnotation: text})
}

// Prune removes what is in the Cluster's inventory and not in the manifest. With
// templates it waits for rollouts: they go once nothing is made of them any more.
func (h Home) Prune(ctx context.Context, options ApplyOptions) error {
	desired, err := h.desired(ctx, options.Manifest, options.Ignored)
	if err != nil {
		return err
	}
	cluster, err := h.Cluster(ctx)
	if err != nil {
		return err
	}
	before, err := readInventory(cluster)
	if err != nil {
		return err
	}
	keep := inventoryOf(desired)
	gone := slices.DeleteFunc(slices.Clone(before), func(i item) bool { return slices.Contains(keep, i) })
	// What makes machines goes before the templates that it makes them of.
	slices.SortStableFunc(gone, func(a, b item) int {
		switch {
		case isTemplate(a.kind()) == isTemplate(b.kind()):
			return 0
		case isTemplate(a.kind()):
			return 1
		}
		return -1
	})
	for _, i := range gone {
		if err := h.prune(ctx, i); err != nil {
			return err
		}
	}
	text, err := writeInventory(keep)
	if err != nil || text == cluster.Annotations[inventoryAnnotation] {
		return err
	}
	return h.annotateCluster(ctx, map[string]any{inventoryAnnotation: text})
}

func (h Home) applyObject(ctx context.Context, object *unstructured.Unstructured) error {
	object = object.DeepCopy()
	return h.retry(ctx, "applying "+refOf(object), func(ctx context.Context) error {
		// The kind may have come to be served only now.
		if err := h.place(object); err != nil {
			return err
		}
		_, err := h.Client.ApplyObject(ctx, object, kube.ApplyOptions{Force: true})
		return err
	})
}

// retry makes a request until it goes through, fails for good, or ctx ends.
func (h Home) retry(ctx context.Context, what string, request func(context.Context) error) error {
	told := ""
	return kube.Wait(ctx, what, func(ctx context.Context) (bool, string, error) {
		err := request(ctx)
		switch {
		case err == nil:
			return true, "", nil
		case !isPassing(err):
			return false, "", kube.Fatal(err)
		case err.Error() != told:
			told = err.Error()
			h.Report.Report(ctx, "retrying", what+": "+told)
		}
		return false, "", err
	})
}

// isPassing says whether the same request may go through later: the server is
// starting or overloaded, a webhook does not answer yet, a kind is not served
// yet. A webhook that answered no is final.
func isPassing(err error) bool {
	if meta.IsNoMatchError(err) {
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
	c := &checker{manifest: m}
	e, _ := c.endpoint()
	return e.host
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
