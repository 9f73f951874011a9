// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/ownership"
)

// The fence is the pause: while both sides hold copies, no controller acts on
// either. It is not a lock. Whoever applies the Clusters from elsewhere may lift
// it at any time, and so it is looked at before every phase.

// fieldManager owns what the move writes for its own ends, such as the pause.
// Nothing of it is left when the move is done.
const fieldManager = ownership.PivotManager

// errFenceLifted says that somebody un-paused a Cluster while it was moved.
var errFenceLifted = errors.New("somebody un-paused it while it was moved: suspend what applies it from elsewhere (Argo CD, Flux) and apply again")

// pauseKind is one of the two kinds that are paused, and how.
type pauseKind struct {
	gvk    schema.GroupVersionKind
	paused func(*unstructured.Unstructured) bool
	// on and off are merge patches.
	on, off string
}

var clusterPause = pauseKind{
	gvk: clusterv1.GroupVersion.WithKind("Cluster"),
	paused: func(o *unstructured.Unstructured) bool {
		paused, _, _ := unstructured.NestedBool(o.Object, "spec", "paused")
		return paused || annotatedPaused(o)
	},
	on:  `{"metadata":{"resourceVersion":%q},"spec":{"paused":true}}`,
	off: `{"metadata":{"resourceVersion":%q},"spec":{"paused":null}}`,
}

var classPause = pauseKind{
	gvk:    clusterv1.GroupVersion.WithKind("ClusterClass"),
	paused: annotatedPaused,
	on:     `{"metadata":{"resourceVersion":%q,"annotations":{"` + clusterv1.PausedAnnotation + `":""}}}`,
	off:    `{"metadata":{"resourceVersion":%q,"annotations":{"` + clusterv1.PausedAnnotation + `":null}}}`,
}

func annotatedPaused(o *unstructured.Unstructured) bool {
	_, annotated := o.GetAnnotations()[clusterv1.PausedAnnotation]
	return annotated
}

// set pauses or un-pauses one object. It answers false when it is not there.
func (k pauseKind) set(ctx context.Context, side *Side, key client.ObjectKey, paused bool) (bool, error) {
	patch := k.off
	if paused {
		patch = k.on
	}
	there := true
	err := side.write(ctx, func() error {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(k.gvk)
		if err := side.Client.Get(ctx, key, o); apierrors.IsNotFound(err) {
			there = false
			return nil
		} else if err != nil || k.paused(o) == paused {
			return err
		}
		// The resource version keeps a pause from covering one that somebody else set
		// since it was looked at.
		err := side.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, patch, o.GetResourceVersion())), client.FieldOwner(fieldManager))
		if apierrors.IsConflict(err) {
			return retryable{err}
		}
		return err
	})
	if err != nil {
		return there, fmt.Errorf("setting the pause of %s %s on %s to %t: %w", k.gvk.Kind, key, side.Name, paused, err)
	}
	return there, nil
}

// pauseSource pauses what moves; what its user had paused is paused already.
func (r *run) pauseSource(ctx context.Context) error {
	if err := each(ctx, r.parallel(), r.journal.Clusters, func(ctx context.Context, c journalCluster) error {
		there, err := clusterPause.set(ctx, r.source, c.key(), true)
		if err == nil && !there {
			return fmt.Errorf("cluster %s is not on %s any more", c.key(), r.source.Name)
		}
		return err
	}); err != nil {
		return err
	}
	return each(ctx, r.parallel(), r.journal.Classes, func(ctx context.Context, c journalClass) error {
		_, err := classPause.set(ctx, r.source, c.key(), true)
		return err
	})
}

// resume un-pauses a side: classes first, since the Clusters are made after them.
// What its user had paused stays so. Right before each Cluster it looks that the
// other side, if any, does not manage it: a tool may have made it there again.
func (r *run) resume(ctx context.Context, side, other *Side, classes func(journalClass) bool) error {
	if err := r.countControlPlanes(ctx, side); err != nil {
		return err
	}
	if err := r.resumeClasses(ctx, side, classes); err != nil {
		return err
	}
	return each(ctx, r.parallel(), r.journal.Clusters, func(ctx context.Context, c journalCluster) error {
		if c.Paused {
			return nil
		}
		if err := checkUnmanaged(ctx, other, c.key()); err != nil {
			return err
		}
		there, err := clusterPause.set(ctx, side, c.key(), false)
		if err == nil && !there {
			return fmt.Errorf("cluster %s is not on %s any more", c.key(), side.Name)
		}
		return err
	})
}

// checkUnmanaged answers an error when a side manages a Cluster.
func checkUnmanaged(ctx context.Context, side *Side, key client.ObjectKey) error {
	if side == nil {
		return nil
	}
	c := &clusterv1.Cluster{}
	err := side.read(ctx, func() error { return client.IgnoreNotFound(side.Client.Get(ctx, key, c)) })
	switch {
	case err != nil:
		return fmt.Errorf("looking whether %s manages cluster %s: %w", side.Name, key, err)
	case c.Name != "" && !isPaused(c):
		return fmt.Errorf("cluster %s on %s: %w", key, side.Name, errFenceLifted)
	}
	return nil
}

func (r *run) resumeClasses(ctx context.Context, side *Side, classes func(journalClass) bool) error {
	return each(ctx, r.parallel(), r.journal.Classes, func(ctx context.Context, c journalClass) error {
		if c.Paused || !classes(c) {
			return nil
		}
		_, err := classPause.set(ctx, side, c.key(), false)
		return err
	})
}

// countControlPlanes refuses to un-pause a side that lacks machines of a control
// plane: its controllers would remove the etcd members that have no Machine and
// make a new first one.
func (r *run) countControlPlanes(ctx context.Context, side *Side) error {
	machines := &clusterv1.MachineList{}
	err := side.read(ctx, func() error {
		return side.Client.List(ctx, machines, client.HasLabels{clusterv1.MachineControlPlaneLabel})
	})
	if err != nil {
		return fmt.Errorf("counting the machines of %s: %w", side.Name, err)
	}
	count := map[client.ObjectKey]int{}
	for i := range machines.Items {
		// One that somebody else has deleted counts: what he asked for is done once the
		// side is un-paused.
		count[client.ObjectKey{Namespace: machines.Items[i].Namespace, Name: machines.Items[i].Spec.ClusterName}]++
	}
	managed, err := r.lifted(ctx, side)
	if err != nil {
		return err
	}
	for _, c := range r.journal.Clusters {
		if count[c.key()] < c.ControlPlane && !slices.Contains(managed, c.key().String()) {
			return fmt.Errorf("cluster %s has %d control plane machines on %s and had %d when the move began: it stays paused, since its controllers would remove members of etcd and make machines anew. Restore the Machine objects from a backup, or, if their machines are gone for good, un-pause it by hand; then apply again", c.key(), count[c.key()], side.Name, c.ControlPlane)
		}
	}
	return nil
}

// checkFence answers an error that names the Clusters of a side which somebody
// has un-paused.
func (r *run) checkFence(ctx context.Context, sides ...*Side) error {
	for _, side := range sides {
		lifted, err := r.lifted(ctx, side)
		if err != nil {
			return err
		}
		if len(lifted) > 0 {
			return fmt.Errorf("cluster %s on %s: %w", strings.Join(lifted, ", "), side.Name, errFenceLifted)
		}
	}
	return nil
}

func (r *run) lifted(ctx context.Context, side *Side) ([]string, error) {
	found, err := side.clusters(ctx, r.journal.Scope)
	if err != nil {
		return nil, err
	}
	moving := map[client.ObjectKey]bool{}
	for _, c := range r.journal.Clusters {
		moving[c.key()] = true
	}
	var lifted []string
	for i := range found {
		if key := client.ObjectKeyFromObject(&found[i]); moving[key] && !isPaused(&found[i]) {
			lifted = append(lifted, key.String())
		}
	}
	return lifted, nil
}

// raiseFence pauses again what somebody has un-paused on a side whose objects
// are about to be deleted.
func (r *run) raiseFence(ctx context.Context, side *Side) error {
	lifted, err := r.lifted(ctx, side)
	if err != nil || len(lifted) == 0 {
		return err
	}
	r.opts.Report.Report(ctx, "pausing", fmt.Sprintf("somebody un-paused %s on %s; pausing it again", strings.Join(lifted, ", "), side.Name))
	return each(ctx, r.parallel(), r.journal.Clusters, func(ctx context.Context, c journalCluster) error {
		_, err := clusterPause.set(ctx, side, c.key(), true)
		return err
	})
}

// metadataOf is an object of which only the metadata is read and written.
func metadataOf(e entry) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}}
	o.SetGroupVersionKind(e.gvk())
	return o
}
