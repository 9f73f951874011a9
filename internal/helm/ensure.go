// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	helmchart "helm.sh/helm/v3/pkg/chart"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// recordTime is how long the end of an operation may take to get on record
// after the operation's own context has ended.
const recordTime = 15 * time.Second

// undoTime is how long it may take to undo what failed, where [Spec.Atomic]
// asks for it, after the operation's own context has ended.
const undoTime = 2 * time.Minute

// clientTime is how long the work of another Helm client on a release is
// waited for when it has no lease: five minutes are the time limit that the helm
// command has by default.
const clientTime = 5 * time.Minute

// unlimited stands for a context without a deadline, where Helm wants a duration.
const unlimited = 24 * time.Hour

// Engine installs and upgrades releases. Its zero value is ready for use.
type Engine struct {
	// Leases are the times of the leases on unfinished releases; tests shorten them.
	Leases kube.Leases
	Report progress.Reporter
	// Started is called before the first record of the release is written, once
	// nobody else can be at work on it. An error of it ends the operation. May be nil.
	Started func() error
	// ClientTime replaces the five minutes that another Helm client is waited for.
	ClientTime time.Duration
}

// Ensure installs or upgrades a release until it is as spec says and answers
// its record. With an error it answers the newest record as well, where there
// is one of this owner; its status is "unknown" where that could not be read.
// No record and an error mean that none was left behind.
//
// A release of the same name is taken up when it carries the owner's mark; when
// it is an unfinished one that another run of this provider left, once that
// run's lease has run out; and when another run of this provider finished
// exactly this configuration. Else the error is [ErrForeign].
func (e Engine) Ensure(ctx context.Context, c *kube.Client, spec Spec) (*Release, error) {
	mask := spec.masker()
	e.Report = mask.reporter(e.Report)
	released, err := e.reserveAndEnsure(ctx, c, spec)
	if released != nil {
		released.Description = mask.Replace(released.Description)
	}
	return released, mask.err(err)
}

func (e Engine) reserveAndEnsure(ctx context.Context, c *kube.Client, spec Spec) (*Release, error) {
	if err := CheckName(spec.Name); err != nil {
		return nil, fmt.Errorf("the release's name: %w", err)
	}
	e.Report.Report(ctx, "loading-chart", fmt.Sprintf("loading chart %s for release %s", spec.Chart, spec))
	chart, err := spec.Chart.load(ctx)
	if err != nil {
		return nil, fmt.Errorf("loading chart %s: %w", spec.Chart, err)
	}
	if spec.CreateNamespace {
		if err := c.EnsureNamespace(ctx, spec.Namespace); err != nil {
			return nil, err
		}
	}
	held, lease, err := e.Leases.Acquire(ctx, c, leaseKey(spec), spec.Owner, e.Report)
	if err != nil {
		return nil, fmt.Errorf("reserving Helm release %s: %w", spec, err)
	}
	released, dangling, err := e.ensure(held, c, spec, chart, lease)
	if dangling {
		lease.Abandon()
		return released, err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if releaseErr := lease.Release(end); err == nil && releaseErr != nil && ctx.Err() == nil {
		err = fmt.Errorf("giving back the reservation of Helm release %s: %w", spec, releaseErr)
	}
	return released, err
}

// leasePrefix begins the names of the leases on releases.
const leasePrefix = "terraform-provider-capi.helm."

// leaseKey names the lease on a release that is being worked on.
func leaseKey(spec Spec) client.ObjectKey {
	return client.ObjectKey{Namespace: spec.Namespace, Name: leasePrefix + spec.Name}
}

// operation is one run of Ensure on a release that it has reserved.
type operation struct {
	Spec
	cfg     *action.Configuration
	cluster *kube.Client
	chart   *helmchart.Chart
	config  string
	report  progress.Reporter
	// interrupted says that an earlier run of this provider was cut off, which had
	// begun its work at since, or taken it up from one that had.
	interrupted bool
	since       time.Time
	// clientTime is how long another Helm client is waited for.
	clientTime time.Duration
	// before is the newest revision that was there when the operation began.
	before int
	// fresh says that the release was not this owner's when the operation began,
	// and takenFrom whose finished release it was, if it was one.
	fresh     bool
	takenFrom string
	// rolledBackTo is the label of the configuration that the operation has gone
	// back to, if it has; a record from before this provider's time has none.
	rolledBack   bool
	rolledBackTo string
	// dangling says that the end of the operation is not on record.
	dangling bool
}

// ensure answers, besides the record and an error, whether the record may say that
// work is under way when there is none. The lease then stays, as after a killed
// run: without it the record would be taken for another Helm client's.
func (e Engine) ensure(ctx context.Context, c *kube.Client, spec Spec, chart *helmchart.Chart, lease *kube.Lease) (released *Release, dangling bool, err error) {
	cfg, err := configure(ctx, c, spec.Namespace, spec.Name, e.Report)
	if err != nil {
		return nil, lease.Inherited(), fmt.Errorf("preparing Helm release %s: %w", spec, err)
	}
	op := &operation{
		Spec: spec, cfg: cfg, cluster: c, chart: chart, config: hashConfig(chart.Metadata, spec.Values), report: e.Report,
		interrupted: lease.Inherited(), since: lease.Since(), clientTime: cmp.Or(e.ClientTime, clientTime),
		fresh: !spec.Adopt && !spec.AdoptUnmarked,
	}
	records, err := history(cfg, spec.Name)
	if err != nil && !kube.IsAbsent(err) {
		return nil, lease.Inherited(), fmt.Errorf("looking for Helm release %s: %w", spec, err)
	}
	if len(records) > 0 {
		last := records[len(records)-1]
		op.before = last.Version
		op.fresh = op.fresh && last.Labels[ownerLabel] != spec.Owner
		if err := op.mayTake(last); err != nil {
			return nil, lease.Inherited(), err
		}
	}
	if e.Started != nil {
		if err := e.Started(); err != nil {
			return nil, lease.Inherited(), err
		}
	}
	err = op.run(ctx, records)
	if err != nil && spec.Atomic {
		err = op.undo(ctx, err)
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	released, err = op.settle(ctx, end, err)
	return released, op.dangling, err
}

// run brings the release from what records say to what is wanted.
func (o *operation) run(ctx context.Context, records []*release.Release) error {
	records, err := o.awaitOthers(ctx, records)
	if err != nil {
		return err
	}
	if err := o.bringAbout(ctx, records); err != nil {
		return err
	}
	return o.sweep(records)
}

func (o *operation) bringAbout(ctx context.Context, records []*release.Release) error {
	if len(records) == 0 {
		return o.install(ctx, false)
	}
	last := records[len(records)-1]
	status := last.Info.Status
	switch {
	case status == release.StatusDeployed && !o.Repair && !o.differs(last):
		// An earlier run got as far as this; what is left is its mark and its wait.
		if err := o.mark(ctx, last); err != nil {
			return err
		}
		return o.await(last)
	case status == release.StatusDeployed:
		return o.upgrade(ctx)
	case status == release.StatusUninstalled:
		return o.install(ctx, true)
	}
	return o.recover(ctx, records)
}

// mayTake refuses a release that is not ours to touch.
func (o *operation) mayTake(last *release.Release) error {
	owner := last.Labels[ownerLabel]
	switch {
	case owner == o.Owner, o.Adopt, owner == "" && o.AdoptUnmarked:
		return nil
	case owner == "":
		return fmt.Errorf("a Helm release %s (chart %s, %s) is there already and was not made by this provider: %w", o, chartOf(last), last.Info.Status, ErrForeign)
	case last.Info.Status != release.StatusDeployed:
		return nil
	case !o.differs(last):
		if !o.interrupted {
			o.takenFrom = owner
		}
		return nil
	case o.interrupted && !last.Info.FirstDeployed.Time.Before(o.since):
		// The interrupted run has installed it, so that it is in nobody's state.
		return nil
	}
	return fmt.Errorf("a finished Helm release %s (chart %s) of another resource (%s) is there already: %w", o, chartOf(last), owner, ErrForeign)
}

func chartOf(rel *release.Release) string {
	if rel.Chart == nil || rel.Chart.Metadata == nil {
		return "unknown"
	}
	return rel.Chart.Metadata.Name + " " + rel.Chart.Metadata.Version
}

// differs says whether the record is of another chart, version or values than
// wanted. It looks at the record and not at its label, which is the old one
// after a roll-back by hand.
func (o *operation) differs(last *release.Release) bool {
	if last.Chart == nil || last.Chart.Metadata == nil {
		return true
	}
	wanted := o.config
	if last.Chart.Metadata.Annotations[digestAnnotation] == "" {
		// Another Helm client has made the record, which then tells the version alone.
		wanted = hashConfig(&helmchart.Metadata{Name: o.chart.Metadata.Name, Version: o.chart.Metadata.Version}, o.Values)
	}
	return hashConfig(last.Chart.Metadata, last.Config) != wanted
}

// settle reads back what is on record, mends it where the operation could not
// write its own end (it was cancelled, or the API server was away just then),
// and answers it. ctx is the operation's context, end one that is still alive.
func (o *operation) settle(ctx, end context.Context, failed error) (*Release, error) {
	cfg, err := configure(end, o.cluster, o.Namespace, o.Name, nil)
	var last *release.Release
	if err == nil {
		last, err = newest(cfg, o.Name)
	}
	if err != nil {
		if failed == nil {
			failed = fmt.Errorf("reading back Helm release %s: %w", o, err)
		}
		if kube.IsAbsent(err) {
			return nil, failed
		}
		o.dangling = true
		return &Release{Name: o.Name, Namespace: o.Namespace, Status: string(release.StatusUnknown), Owner: o.Owner}, failed
	}
	if failed != nil && last.Labels[ownerLabel] != o.Owner {
		o.dangling = o.interrupted && underWay(last)
		return nil, failed
	}
	if failed != nil && o.fresh && last.Info.Status == release.StatusDeployed {
		// What follows has a mark of its own, and takes up what is not complete.
		last.SetStatus(release.StatusFailed, failed.Error())
		if err := cfg.Releases.Update(last); err != nil {
			failed = fmt.Errorf("%w; marking it as failed: %w", failed, err)
		}
	}
	if o.leftPending(ctx, last) {
		if failed == nil {
			failed = fmt.Errorf("the end of the operation on Helm release %s did not get on record", o)
		}
		last.SetStatus(release.StatusFailed, "Interrupted: "+context.Cause(orAlive(ctx)).Error())
		if err := cfg.Releases.Update(last); err != nil {
			o.dangling = true
			failed = fmt.Errorf("%w; marking it as failed: %w", failed, err)
		}
	}
	// Left as it was found, it is still an interrupted run's.
	o.dangling = o.dangling || o.interrupted && underWay(last)
	released := describe(last)
	released.TakenFrom = o.takenFrom
	return released, failed
}

// leftPending says whether this operation has left a record that says that work
// is under way. One of another run, or of another Helm client, is not ours to end.
func (o *operation) leftPending(ctx context.Context, last *release.Release) bool {
	config := last.Labels[configLabel]
	return last.Info.Status.IsPending() && last.Version > o.before && !errors.Is(context.Cause(ctx), kube.ErrLeaseLost) &&
		(config == o.config || o.rolledBack && config == o.rolledBackTo)
}

// orAlive answers ctx if it has ended, else one that ended for want of a record.
func orAlive(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return ctx
	}
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("its end did not get on record"))
	return ended
}
