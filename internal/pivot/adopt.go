// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// adopt ends a move that somebody else began and that left no journal, if it is
// allowed to. What the source still holds decides: all of it, and everything is
// brought back; less, and what the target holds is complete, so that it goes on.
func (r *run) adopt(ctx context.Context) error {
	_, _, err := Inspect(ctx, r.source, r.target, r.opts.Scope)
	if !r.opts.AdoptFailedMove || !errors.Is(err, ErrHalfDone) {
		return nil
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), criticalTime)
	defer cancel()
	there, err := r.discover(ctx, r.target)
	if err != nil {
		return err
	}
	here := &graph{}
	if r.source != nil {
		if here, err = r.discover(ctx, r.source); err != nil {
			return err
		}
	}
	held, copied := idsOf(here), idsOf(there)
	for _, n := range here.deleted() {
		// That move had begun to delete: on a side that is un-paused its controllers
		// would destroy the machine behind such an object.
		held.Delete(n.ID)
	}
	switch {
	case r.source != nil && held.IsSuperset(copied):
		return r.adoptBack(detached, here, copied)
	case copied.IsSuperset(held):
		return r.adoptForward(detached, here, there)
	}
	return fmt.Errorf("%w: each side holds objects that the other lacks (%s on the source alone, %s on the target alone), so neither direction is safe. Compare both with a backup", ErrHalfDone, first(held.Difference(copied)), first(copied.Difference(held)))
}

func idsOf(g *graph) sets.Set[ID] {
	ids := sets.New[ID]()
	for _, n := range g.placed() {
		if !n.keep {
			ids.Insert(n.ID)
		}
	}
	return ids
}

func first(ids sets.Set[ID]) string {
	for id := range ids {
		return id.String()
	}
	return "nothing"
}

// adoptBack makes the journal that a move of ours would have left while it
// copied, and rolls it back.
func (r *run) adoptBack(ctx context.Context, here *graph, copied sets.Set[ID]) error {
	r.opts.Report.Report(ctx, "adopting", fmt.Sprintf("somebody's move stopped while it copied: the source holds all %d objects, the target %d of them; bringing everything back to the source", len(here.placed()), copied.Len()))
	if err := r.adoptJournal(ctx, here, PhaseCreated); err != nil {
		return err
	}
	if err := r.back(ctx); err != nil {
		return fmt.Errorf("taking back the move that somebody began: %w", err)
	}
	r.journal = nil
	return nil
}

// adoptForward makes the journal that a move of ours would have left while it
// deleted, and rolls it forward.
func (r *run) adoptForward(ctx context.Context, here, there *graph) error {
	r.opts.Report.Report(ctx, "adopting", fmt.Sprintf("somebody's move stopped while it deleted: the target holds all %d objects, the source %d of them; bringing everything through to the target", len(there.placed()), len(here.placed())))
	if err := r.adoptJournal(ctx, there, PhaseCommitted); err != nil {
		return err
	}
	return r.rollForward(ctx)
}

func (r *run) adoptJournal(ctx context.Context, g *graph, phase Phase) error {
	begun := now()
	j := &journal{ID: r.id, Run: r.id, Phase: phase, Target: r.target.UID, Scope: r.opts.Scope, Planned: begun, Fenced: &begun, Copied: true}
	if r.source != nil {
		j.Source = r.source.UID
	}
	r.graph, r.existing, r.journal = g, map[ID]bool{}, j
	for _, n := range g.ofKind(clusterKind) {
		if n.level >= 0 {
			j.Clusters = append(j.Clusters, journalCluster{Namespace: n.Namespace, Name: n.Name})
		}
	}
	for _, n := range g.ofKind(classKind) {
		if n.level >= 0 {
			j.Classes = append(j.Classes, journalClass{Namespace: n.Namespace, Name: n.Name, Keep: n.keep})
		}
	}
	r.describe(j)
	for i := range j.Clusters {
		j.Clusters[i].ControlPlane = max(j.Clusters[i].ControlPlane, g.wantedControlPlane(j.Clusters[i].key()))
	}
	return j.begin(ctx, r.sides()...)
}

// wantedControlPlane answers the replicas of a Cluster's control plane: with no
// journal they are the one thing that says how many Machines there must be.
func (g *graph) wantedControlPlane(cluster client.ObjectKey) int {
	plane := g.controlPlane(cluster)
	if plane == nil {
		return 0
	}
	replicas, _, _ := unstructured.NestedInt64(plane.object.Object, "spec", "replicas")
	return int(replicas)
}

// controlPlane answers the object that makes a Cluster's control plane, if any.
func (g *graph) controlPlane(cluster client.ObjectKey) *node {
	for _, n := range g.placed() {
		if n.Group != "controlplane.cluster.x-k8s.io" || n.Namespace != cluster.Namespace {
			continue
		}
		if slices.ContainsFunc(n.owners, func(owner *node) bool { return owner.is(clusterKind) && owner.Name == cluster.Name }) {
			return n
		}
	}
	return nil
}
