// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// State says how far a move has come.
type State int

const (
	// NotStarted means that the source holds the Clusters and the target none of them.
	NotStarted State = iota
	// Done means that the target manages the Clusters and the source holds none.
	Done
)

// Inspect finds out how far the move of the scope's Clusters is, and which they
// are, from the Clusters alone. source is nil when it is proven to be gone. It
// answers [ErrHalfDone] with the way out, and [ErrNothing].
func Inspect(ctx context.Context, source, target *Side, scope Scope) (State, []client.ObjectKey, error) {
	var here []clusterv1.Cluster
	if source != nil {
		var err error
		if here, err = source.clusters(ctx, scope); err != nil {
			return NotStarted, nil, err
		}
	}
	there, err := target.clusters(ctx, scope)
	if err != nil {
		return NotStarted, nil, err
	}
	if len(here) == 0 {
		return inspectTarget(there, target, scope)
	}
	copied := sets.New[client.ObjectKey]()
	for i := range there {
		// One that a lost run's last request made is removed before the next move.
		if c := &there[i]; !isPaused(c) || !slices.ContainsFunc(c.ManagedFields, isOfMove) {
			copied.Insert(client.ObjectKeyFromObject(c))
		}
	}
	for i := range here {
		c := &here[i]
		both := copied.Has(client.ObjectKeyFromObject(c))
		switch {
		case isPaused(c) && (both || pausedByMove(c)):
			return NotStarted, nil, fmt.Errorf("%w: Cluster %s/%s is paused on the source (%s). %s", ErrHalfDone, c.Namespace, c.Name, source.Name, wayOut(both))
		case both:
			return NotStarted, nil, fmt.Errorf("%w: Cluster %s/%s is on both sides, and the source (%s) manages it. Remove the copy from the target while it is paused, with its finalizers stripped, then apply again; never un-pause the copy. With adopt_failed_move = true the next apply does this", ErrHalfDone, c.Namespace, c.Name, source.Name)
		}
	}
	return NotStarted, keys(here), nil
}

func inspectTarget(there []clusterv1.Cluster, target *Side, scope Scope) (State, []client.ObjectKey, error) {
	if len(there) == 0 {
		return NotStarted, nil, ErrNothing
	}
	for i := range there {
		if c := &there[i]; isPaused(c) && pausedByMove(c) {
			return NotStarted, nil, fmt.Errorf("%w: Cluster %s/%s has left the source and is paused on the target (%s). Compare its Machines with the VMs; if all are there, set spec.paused to false on the target and apply again. With adopt_failed_move = true the next apply does this", ErrHalfDone, c.Namespace, c.Name, target.Name)
		}
	}
	found := keys(there)
	for _, wanted := range scope.Clusters {
		if !slices.Contains(found, wanted) {
			return NotStarted, nil, fmt.Errorf("%w: neither side holds Cluster %s", ErrNothing, wanted)
		}
	}
	return Done, found, nil
}

// wayOut says what may be done by hand. The rule behind it: a side is never
// un-paused while Machines of the control plane are missing there, since the
// controllers would evict etcd members and make a new first machine.
func wayOut(copied bool) string {
	text := "The target holds no copy: set spec.paused to false on the source and apply again"
	if copied {
		text = "The target holds a copy. Count the Machines on both sides. If the source still has all of them: remove the target's copies while they are paused, with their finalizers stripped, un-pause the source and apply again. If the source has lost some: strip the finalizers of what is left there, delete it, un-pause the target and apply again. Never un-pause a side that lacks Machines"
	}
	return text + ". With adopt_failed_move = true the next apply does this"
}

// isOfMove says whether a field manager is this package's own.
func isOfMove(entry metav1.ManagedFieldsEntry) bool { return entry.Manager == fieldManager }

// pausedByMove says whether a move set the pause, and not the Cluster's user: the
// one who did owns the field. clusterctl is its own field manager.
func pausedByMove(c *clusterv1.Cluster) bool {
	return slices.ContainsFunc(c.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		ofMove := isOfMove(entry) || strings.HasPrefix(entry.Manager, "clusterctl")
		return ofMove && entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:paused"`)
	})
}

func keys(clusters []clusterv1.Cluster) []client.ObjectKey {
	var all []client.ObjectKey
	for i := range clusters {
		all = append(all, client.ObjectKeyFromObject(&clusters[i]))
	}
	slices.SortFunc(all, func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) })
	return all
}
