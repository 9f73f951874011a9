// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// criticalTime bounds what must not be cut in the middle. It runs on a context
// of its own, so that a timeout or Ctrl-C waits until it is back or through.
const criticalTime = 30 * time.Minute

// Defaults of [Options].
const (
	defaultParallel   = 32
	defaultRetryFor   = 30 * time.Second
	defaultBlockedFor = 10 * time.Minute
	defaultSettle     = time.Second
)

// ForeignOwners says what to do with an object that belongs to a Cluster and has
// an owner that does not move, such as an Argo CD Application.
type ForeignOwners string

// The rules for foreign owners.
const (
	// ForeignRefuse refuses the move. It is the default.
	ForeignRefuse ForeignOwners = "refuse"
	// ForeignLeave leaves the object and what it owns behind, as clusterctl does.
	ForeignLeave ForeignOwners = "leave"
	// ForeignCarry moves the object without that owner.
	ForeignCarry ForeignOwners = "carry"
)

// Options are how a move is made. The zero value moves everything.
type Options struct {
	Scope         Scope
	ForeignOwners ForeignOwners
	// Backup is made before anything is paused, unless it is nil.
	Backup *Backup
	// Parallel is the number of objects that are written at once; it defaults to 32.
	Parallel int
	// RetryFor is how long a request that fails for the moment is sent again;
	// BlockedFor how long a provider may block the move. They default to 30
	// seconds and 10 minutes.
	RetryFor, BlockedFor time.Duration
	// ProveFor is how long after the move no new Machine may appear.
	ProveFor time.Duration
	// Settle is the time between the two readings of the source that must be the
	// same before the move begins; it defaults to a second.
	Settle time.Duration
	// AdoptFailedMove allows to finish or to take back a move that somebody else
	// began and that left no journal.
	AdoptFailedMove bool
	// Leases are the times of the lease on both clusters.
	Leases kube.Leases
	Report progress.Reporter
}

// Result is what a move came to.
type Result struct {
	// Clusters are those that the target manages now.
	Clusters []client.ObjectKey
	// Counts are the moved objects by kind; ProviderIDs those of the Machines.
	Counts      map[string]int64
	ProviderIDs []string
	// Digest is over all moved objects, their contents and owners.
	Digest string
	// Stayed are the objects that belong to the Clusters and were left behind.
	Stayed []Stayed
	// PausedFor is how long nobody managed the Clusters; zero when it is not known.
	PausedFor time.Duration
	// ID names the pivot's journal; empty when there is none.
	ID string
	// Backup is where the backup is, if one was made.
	Backup string
	// Scope is what was asked for; it is empty when that is not known.
	Scope Scope
	// Skipped tells what could not be asked of a source whose controllers are gone,
	// and so was not waited for or compared.
	Skipped []string
}

// run is one attempt at a move.
type run struct {
	opts Options
	// source is nil when it is proven to be gone, target when a preview cannot reach
	// it yet.
	source, target *Side
	id             string
	journal        *journal
	graph          *graph
	existing       map[ID]bool
	// unattended says that nobody looks after the source's Clusters; skipped is what
	// could not be asked there.
	unattended bool
	skipped    []string
	// unlabelled are objects of kinds that no move sees.
	unlabelled []Stayed
	// dead are webhooks of the source that nobody answers; open says that none of
	// them is in the way any more.
	dead []hook
	open bool
}

func (r *run) parallel() int { return r.opts.Parallel }

// sides are those that are there, the source first.
func (r *run) sides() []*Side {
	return slices.DeleteFunc([]*Side{r.source, r.target}, func(s *Side) bool { return s == nil })
}

// Move brings the scope's Clusters from the source to the target. What an earlier
// run left unfinished is first brought back to the source or, from [PhaseCommitted]
// on, through to the target. source is nil when it is proven to be gone.
//
// Any failure before [PhaseCommitted] is rolled back before Move answers it, and a
// cancelled context is such a failure; afterwards the move goes on to its end
// whatever the context says. An [ErrHalfDone] means that both sides must be
// looked at before anything else.
func Move(ctx context.Context, source, target *Side, opts Options) (*Result, error) {
	r := newRun(source, target, opts)
	unlock, err := r.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := r.recover(ctx); err != nil {
		return nil, err
	}
	var finished *Result
	if r.journal != nil { // rolled forward
		if finished, err = r.prove(ctx); err != nil {
			return nil, err
		}
	}
	state, _, err := Inspect(ctx, r.source, r.target, r.opts.Scope)
	if err != nil {
		return nil, err
	}
	if state == Done && finished != nil && r.journal.Scope.equal(r.opts.Scope) {
		return finished, nil
	}
	if state == Done {
		return r.alreadyDone(ctx)
	}
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	if err := r.critical(ctx); err != nil {
		return nil, err
	}
	return r.prove(ctx)
}

func newRun(source, target *Side, opts Options) *run {
	if opts.Parallel == 0 {
		opts.Parallel = defaultParallel
	}
	if opts.RetryFor == 0 {
		opts.RetryFor = defaultRetryFor
	}
	if opts.BlockedFor == 0 {
		opts.BlockedFor = defaultBlockedFor
	}
	if opts.Settle == 0 {
		opts.Settle = defaultSettle
	}
	if opts.ForeignOwners == "" {
		opts.ForeignOwners = ForeignRefuse
	}
	r := &run{opts: opts, source: source, target: target, id: uuid.NewString()}
	for _, side := range r.sides() {
		side.retryFor, side.versions = opts.RetryFor, nil
	}
	return r
}

func (r *run) discover(ctx context.Context, side *Side) (*graph, error) {
	return discover(ctx, side, r.opts.Scope, r.opts.ForeignOwners == ForeignCarry)
}

// prepare does all that can be done before anything is paused: it waits until the
// Clusters are well and nothing changes, checks that the move will succeed, and
// writes the journal.
func (r *run) prepare(ctx context.Context) error {
	if err := r.attend(ctx); err != nil {
		return err
	}
	if !r.unattended {
		if err := r.waitAvailable(ctx, r.source); err != nil {
			return err
		}
	}
	r.opts.Report.Report(ctx, "recording-inventory", "recording what the source holds")
	if err := r.settle(ctx); err != nil {
		return err
	}
	if err := r.preflight(ctx); err != nil {
		return err
	}
	notices, err := r.notices(ctx)
	if err != nil {
		return err
	}
	for _, notice := range notices {
		r.opts.Report.Report(ctx, "notice", notice)
	}
	j, err := r.plan(ctx)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the move was not begun: %w", context.Cause(ctx))
	}
	r.journal = j
	return nil
}

// critical is the part in which both clusters hold copies. It ends with all on
// exactly one side, un-paused, or with an error that says what is where.
func (r *run) critical(ctx context.Context) error {
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), criticalTime)
	defer cancel()
	if err := r.toCommit(ctx, detached); err != nil {
		return r.rollBack(detached, err)
	}
	return r.rollForward(detached)
}

// toCommit does everything up to the point of no return.
func (r *run) toCommit(ctx, detached context.Context) error {
	if err := r.journal.begin(ctx, r.sides()...); err != nil {
		return err
	}
	if err := r.backUp(ctx); err != nil {
		return err
	}
	if err := r.silence(ctx); err != nil {
		return err
	}
	r.opts.Report.Report(ctx, "pausing", fmt.Sprintf("pausing %d clusters", len(r.journal.Clusters)))
	fenced := now()
	r.journal.Fenced = &fenced
	if err := r.journal.save(ctx, PhaseFenced, r.sides()...); err != nil {
		return err
	}
	if err := r.pauseSource(ctx); err != nil {
		return err
	}
	if err := r.waitUnblocked(ctx); err != nil {
		return err
	}
	if err := r.copyAll(ctx); err != nil {
		return err
	}
	if err := r.checkFence(ctx, r.source, r.target); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	// From here on the answer to a request that was sent counts, not the context.
	return r.journal.save(detached, PhaseCommitted, r.source)
}

func (r *run) backUp(ctx context.Context) error {
	if r.opts.Backup == nil {
		return nil
	}
	r.opts.Report.Report(ctx, "backing-up", "writing a backup of all objects")
	made, err := r.opts.Backup.write(r.journal.ID, r.source.UID, r.journal.Digest, r.graph.placed())
	if err != nil {
		return err
	}
	r.journal.Backup = made
	return r.journal.save(ctx, PhaseBackedUp, r.sides()...)
}

// copyRounds is how often the copies are made anew because the source's objects
// changed after they were paused: a controller was in the middle of its work.
const copyRounds = 3

func (r *run) copyAll(ctx context.Context) error {
	for round := 1; ; round++ {
		if err := r.refresh(ctx); err != nil {
			return err
		}
		if err := r.journal.save(ctx, PhaseCreating, r.sides()...); err != nil {
			return err
		}
		if err := r.create(ctx); err != nil {
			return err
		}
		if err := r.journal.save(ctx, PhaseCreated, r.sides()...); err != nil {
			return err
		}
		r.opts.Report.Report(ctx, "verifying", "comparing what the target holds with what the source holds")
		err := r.verify(ctx)
		if err == nil {
			return r.journal.save(ctx, PhaseVerified, r.sides()...)
		}
		if !errors.Is(err, errSourceChanged) || round == copyRounds {
			return err
		}
		r.opts.Report.Report(ctx, "copying-again", err.Error())
		if err := r.removeAll(ctx, r.target, func(e entry) bool { return !e.Existing }); err != nil {
			return err
		}
	}
}

// create makes the copies, level by level.
func (r *run) create(ctx context.Context) error {
	nodes := r.graph.placed()
	r.opts.Report.Report(ctx, "creating", fmt.Sprintf("copying %d objects of %d clusters", len(nodes), len(r.journal.Clusters)))
	c := newCopier(r.target, r.existing)
	for _, level := range levels(nodes) {
		if err := r.checkFence(ctx, r.source); err != nil {
			return err
		}
		if err := each(ctx, r.parallel(), level, c.create); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) waitAvailable(ctx context.Context, side *Side) error {
	found, err := side.clusters(ctx, r.opts.Scope)
	if err != nil {
		return err
	}
	for i := range found {
		if isPaused(&found[i]) {
			continue // nobody looks after it, so it will say nothing new
		}
		home := cluster.Home{Client: &kube.Client{Client: side.Client}, Namespace: found[i].Namespace, Name: found[i].Name, Report: r.opts.Report}
		if err := home.WaitAvailable(ctx); err != nil {
			return err
		}
	}
	return nil
}
