// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// criticalTime bounds the part of a move that must not be cut in the middle. It
// runs on a context of its own, so that a timeout or Ctrl-C waits for it.
const criticalTime = 30 * time.Minute

// Result is what a move came to.
type Result struct {
	// Clusters are those that the target manages now.
	Clusters []client.ObjectKey
	// Counts are the moved objects by kind; ProviderIDs those of the Machines.
	Counts      map[string]int64
	ProviderIDs []string
}

// Move waits until every Cluster of the source is available, moves all of them
// to the target with clusterctl's library, and compares what the target holds
// with what the source held. source is nil when it is proven to be gone. An
// [ErrHalfDone] means that both sides must be looked at before anything else.
func Move(ctx context.Context, source, target *Side, report progress.Reporter) (*Result, error) {
	state, moving, err := Inspect(ctx, source, target)
	if err != nil {
		return nil, err
	}
	if state == Done {
		return moved(ctx, target, moving, report)
	}
	if err := waitAvailable(ctx, source, moving, report); err != nil {
		return nil, err
	}
	report.Report(ctx, "recording-inventory", "recording what the source holds")
	before, err := TakeSettled(ctx, source.Client)
	if err != nil {
		return nil, err
	}
	report.Report(ctx, "moving", fmt.Sprintf("moving %d objects of %d clusters", len(before), len(moving)))
	if err := keepStatus(ctx, source, target); err != nil {
		return nil, err
	}
	if err := move(ctx, source, target); err != nil {
		return nil, err
	}
	report.Report(ctx, "verifying", "comparing what the target holds with what the source held")
	after, err := Take(ctx, target.Client)
	if err != nil {
		return nil, err
	}
	if differences := Compare(before, after); len(differences) > 0 {
		return nil, fmt.Errorf("the target manages the clusters now, but does not hold all that the source held; the source is kept: %w", differencesError(differences))
	}
	if err := restoreStatus(ctx, target); err != nil {
		return nil, err
	}
	if err := waitAvailable(ctx, target, moving, report); err != nil {
		return nil, err
	}
	return &Result{Clusters: moving, Counts: before.Counts(), ProviderIDs: before.ProviderIDs()}, nil
}

func waitAvailable(ctx context.Context, side *Side, keys []client.ObjectKey, report progress.Reporter) error {
	for _, key := range keys {
		home := cluster.Home{Client: &kube.Client{Client: side.Client}, Namespace: key.Namespace, Name: key.Name, Report: report}
		if err := home.WaitAvailable(ctx); err != nil {
			return err
		}
	}
	return nil
}

// moved finishes a move that an earlier run has carried through.
func moved(ctx context.Context, target *Side, clusters []client.ObjectKey, report progress.Reporter) (*Result, error) {
	if err := restoreStatus(ctx, target); err != nil {
		return nil, err
	}
	if err := waitAvailable(ctx, target, clusters, report); err != nil {
		return nil, err
	}
	inventory, err := Take(ctx, target.Client)
	if err != nil {
		return nil, err
	}
	return &Result{Clusters: clusters, Counts: inventory.Counts(), ProviderIDs: inventory.ProviderIDs()}, nil
}

// move runs clusterctl's own move over all namespaces. Once begun it is not cut.
func move(ctx context.Context, source, target *Side) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the move was not begun: %w", context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), criticalTime)
	defer cancel()
	if err := source.Cluster.ObjectMover().Move(ctx, "", target.Cluster, false); err != nil {
		state, _, inspectErr := Inspect(ctx, source, target)
		if inspectErr == nil && state == NotStarted {
			return fmt.Errorf("moving with clusterctl's library: %w (the source manages its clusters as before)", err)
		}
		return fmt.Errorf("moving with clusterctl's library: %w; %w", err, inspectErr)
	}
	return nil
}
