// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

var leaseKey = client.ObjectKey{Namespace: journalNamespace, Name: "terraform-provider-capi-pivot"}

// lock takes the lease on both clusters, in the order of their UIDs so that two
// runs never wait for each other, and answers what releases them.
func (r *run) lock(ctx context.Context) (func(), error) {
	ordered := r.sides()
	slices.SortFunc(ordered, func(a, b *Side) int { return strings.Compare(a.UID, b.UID) })
	// The leases outlive a cancelled context: the run then still has to roll back.
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	var held []*Side
	release := func() {
		ending, end := context.WithTimeout(context.WithoutCancel(ctx), r.opts.RetryFor)
		defer end()
		for _, side := range slices.Backward(held) {
			// One that cannot be released runs out by itself.
			_ = side.lease.Release(ending)
			side.lease = nil
		}
		cancel(nil)
	}
	for _, side := range ordered {
		_, lease, err := r.opts.Leases.Acquire(lasting, side.Client, leaseKey, r.id, r.opts.Report)
		if err != nil {
			stop()
			release()
			return nil, fmt.Errorf("taking the lease for a pivot on %s: %w", side.Name, err)
		}
		side.lease = lease
		held = append(held, side)
	}
	if !stop() {
		release()
		return nil, fmt.Errorf("the move was not begun: %w", context.Cause(ctx))
	}
	return release, nil
}

// recover ends what earlier runs left unfinished: back to the source before
// [PhaseCommitted], through to the target from then on.
func (r *run) recover(ctx context.Context) error {
	left, err := r.unfinished(ctx)
	if err != nil {
		return err
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), criticalTime)
	defer cancel()
	for _, j := range left {
		if err := r.takeOver(detached, j); err != nil {
			return err
		}
		if j.Phase.before(PhaseCommitted) {
			r.opts.Report.Report(ctx, "rolling-back", fmt.Sprintf("an earlier run was lost in the phase %s; bringing everything back to the source", j.Phase))
			if err := r.back(detached); err != nil {
				return fmt.Errorf("rolling back the pivot %s, which an earlier run left unfinished: %w", j.ID, err)
			}
			r.journal = nil
			continue
		}
		r.opts.Report.Report(ctx, "rolling-forward", fmt.Sprintf("an earlier run was lost in the phase %s; bringing everything through to the target", j.Phase))
		if err := r.rollForward(detached); err != nil {
			return err
		}
	}
	return r.adopt(ctx)
}

// unfinished answers the journals to which this run has to attend. What the
// source says of one holds; only when it is gone does the target's word.
func (r *run) unfinished(ctx context.Context) ([]*journal, error) {
	there, err := journals(ctx, r.target)
	if err != nil {
		return nil, err
	}
	var here []*journal
	if r.source != nil {
		if here, err = journals(ctx, r.source); err != nil {
			return nil, err
		}
	}
	var left []*journal
	for _, j := range here {
		if j.Phase == PhaseDone {
			continue
		}
		if err := r.checkParties(j); err != nil {
			return nil, err
		}
		if at := slices.IndexFunc(there, func(o *journal) bool { return o.ID == j.ID }); at >= 0 {
			j.versions[r.target.UID] = there[at].versions[r.target.UID]
		}
		left = append(left, j)
	}
	if r.source != nil {
		return left, nil
	}
	for _, j := range there {
		if j.Phase == PhaseDone || j.Target != r.target.UID {
			continue
		}
		if j.Phase.before(PhaseVerified) {
			return nil, fmt.Errorf("%w: in the phase %s (pivot %s), and its source is gone. The target holds copies of a part of the objects at most. Restore the source, or the objects from a backup, before anything else; never un-pause the copies", ErrHalfDone, j.Phase, j.ID)
		}
		if j.Phase == PhaseVerified {
			j.Phase = PhaseCommitted // all copies are there, and nobody else has them
		}
		left = append(left, j)
	}
	return left, nil
}

// checkParties refuses a journal of the source that this run cannot end.
func (r *run) checkParties(j *journal) error {
	switch {
	case j.Source != r.source.UID && j.Target == r.source.UID:
		return fmt.Errorf("%w: %s is the target of the pivot %s, which is in the phase %s. Finish that one first: apply it again", ErrHalfDone, r.source.Name, j.ID, j.Phase)
	case j.Target != r.target.UID && !j.Phase.before(PhaseCommitted):
		return fmt.Errorf("%w: the pivot %s to another target (UID %s of its namespace kube-system) is in the phase %s. Finish that one first: apply it again with that target", ErrHalfDone, j.ID, j.Target, j.Phase)
	}
	return nil
}

// takeOver makes a journal this run's, so that the one which wrote it before
// cannot go on.
func (r *run) takeOver(ctx context.Context, j *journal) error {
	from := r.target
	if r.source != nil {
		from = r.source
	}
	if err := j.loadEntries(ctx, from); err != nil {
		return err
	}
	j.Run = r.id
	r.journal = j
	return j.save(ctx, j.Phase, from)
}

// rollBack answers the error that stopped a move, after everything was brought
// back.
func (r *run) rollBack(ctx context.Context, cause error) error {
	if errors.Is(cause, errTakenOver) || errors.Is(cause, kube.ErrLeaseLost) {
		return cause
	}
	r.opts.Report.Report(ctx, "rolling-back", "bringing everything back to the source, since: "+cause.Error())
	if err := r.back(ctx); err != nil {
		return fmt.Errorf("moving: %w; bringing everything back to the source did not succeed either: %w. The source holds all objects and may be paused; the next apply brings them back (pivot %s)", cause, err, r.journal.ID)
	}
	return fmt.Errorf("moving: %w (everything was brought back: the source manages its clusters as before)", cause)
}

// back removes the copies and un-pauses the source. The order matters: as long as
// a copy may be un-paused by somebody, the source stays paused.
func (r *run) back(ctx context.Context) error {
	sides := r.sides()
	ours := r.journal.Target == r.target.UID
	if !ours {
		// The target of then is not at hand. Its copies are paused, and without a
		// journal that says committed nobody un-pauses them.
		sides = []*Side{r.source}
	}
	if err := r.journal.save(ctx, PhaseRollingBack, sides...); err != nil {
		return err
	}
	if r.journal.Copied && ours {
		if err := r.removeAll(ctx, r.target, func(e entry) bool { return !e.Existing }); err != nil {
			return err
		}
	}
	// A journal without a fence paused nothing. A frozen run may have written it after
	// the next one had moved everything, and then there is nothing to un-pause.
	if r.journal.Fenced != nil {
		other := r.target
		if !ours {
			other = nil
		}
		if err := r.silence(ctx); err != nil {
			return err
		}
		if err := r.resume(ctx, r.source, other, func(journalClass) bool { return true }); err != nil {
			return err
		}
	}
	if err := r.unsilence(ctx); err != nil {
		return err
	}
	for _, side := range slices.Backward(sides) {
		if err := r.journal.remove(ctx, side); err != nil {
			return err
		}
	}
	return nil
}

// rollForward removes the originals and un-pauses the copies.
func (r *run) rollForward(ctx context.Context) error {
	if err := r.forward(ctx); err != nil {
		return fmt.Errorf("finishing the move, which is past the point of no return: %w. The target holds all objects; the next apply goes on (pivot %s)", err, r.journal.ID)
	}
	return nil
}

func (r *run) forward(ctx context.Context) error {
	if !r.journal.Phase.before(PhaseResumed) {
		return nil
	}
	if r.source != nil {
		if err := r.journal.save(ctx, PhaseDeleting, r.sides()...); err != nil {
			return err
		}
		if err := r.silence(ctx); err != nil {
			return err
		}
		r.opts.Report.Report(ctx, "deleting-source", fmt.Sprintf("removing %d objects from the source", len(r.journal.entries)))
		if err := r.removeAll(ctx, r.source, func(e entry) bool { return !e.Keep }); err != nil {
			return err
		}
	}
	if err := r.resume(ctx, r.target, r.source, func(c journalClass) bool { return !c.Existing }); err != nil {
		return err
	}
	if r.source != nil {
		if err := r.resumeClasses(ctx, r.source, func(c journalClass) bool { return c.Keep }); err != nil {
			return err
		}
		if err := r.unsilence(ctx); err != nil {
			return err
		}
	}
	resumed := metav1.NowMicro()
	r.journal.Resumed = &resumed
	return r.journal.save(ctx, PhaseResumed, r.sides()...)
}
