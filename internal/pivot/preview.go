// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Preview is what a move would carry over, found out without writing anything.
type Preview struct {
	Clusters []client.ObjectKey
	// Counts are the objects by kind.
	Counts map[string]int64
	// Stayed belong to the Clusters and would be left behind.
	Stayed []Stayed
	// Notices tell who may interfere, and who has to follow to the target.
	Notices []string
	// Lacking is what the move would be refused for if the target stayed as it is:
	// it may get its providers between a look and the move.
	Lacking error
}

// Look answers what a move of the scope would carry over. target may be nil when
// it cannot be reached yet; else its providers and kinds are compared too. It
// answers [ErrRefused] with the reasons when the move would be refused for what
// the source holds.
func Look(ctx context.Context, source, target *Side, opts Options) (*Preview, error) {
	r := newRun(source, target, opts)
	var err error
	if r.graph, err = r.discover(ctx, source); err != nil {
		return nil, err
	}
	if err := r.findUnlabelled(ctx); err != nil {
		return nil, err
	}
	preview := &Preview{Counts: r.graph.counts(), Stayed: r.stayed()}
	for _, c := range r.graph.ofKind(clusterKind) {
		if c.level >= 0 {
			preview.Clusters = append(preview.Clusters, c.key())
		}
	}
	if preview.Notices, err = r.notices(ctx); err != nil {
		return nil, err
	}
	reasons := []error{r.checkHeldBack(), r.checkHosted()}
	if target != nil {
		preview.Lacking = errors.Join(r.chooseVersions(ctx), r.checkProviders(ctx), r.checkGates(ctx))
	}
	return preview, errors.Join(reasons...)
}

// Finished answers what a finished move to the target came to, from its journal.
// id is the journal's; an empty one means the last. [kube.IsAbsent] holds for the
// error when there is none.
func Finished(ctx context.Context, target *Side, id string) (*Result, error) {
	target.retryFor = defaultRetryFor
	found, err := journals(ctx, target)
	if err != nil {
		return nil, err
	}
	var last *journal
	for _, j := range found {
		if j.Phase == PhaseDone && j.Target == target.UID && (id == "" || j.ID == id) {
			last = j
		}
	}
	if last == nil {
		return nil, fmt.Errorf("the journal of a finished pivot to %s: %w", target.Name, kube.ErrAbsent)
	}
	return last.result(), nil
}
