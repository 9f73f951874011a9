// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
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

// unlimited stands for a context without a deadline, where Helm wants a duration.
const unlimited = 24 * time.Hour

// Engine installs and upgrades releases. Its zero value is ready for use.
type Engine struct {
	// Leases are the times of the leases on unfinished releases; tests shorten them.
	Leases kube.Leases
	Report progress.Reporter
}

// Ensure installs or upgrades a release until it is as spec says and answers
// its record. With an error it answers the newest record as well, where there
// is one.
//
// A release of the same name is taken up when it carries the owner's mark; when
// it is an unfinished one that another run of this provider left, once that
// run's lease has run out; and when another run of this provider finished
// exactly this configuration. Else the error is [ErrForeign].
func (e Engine) Ensure(ctx context.Context, c *kube.Client, spec Spec) (*Release, error) {
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
	released, err := e.ensure(held, c, spec, chart)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if releaseErr := lease.Release(end); err == nil && releaseErr != nil && ctx.Err() == nil {
		err = fmt.Errorf("giving back the reservation of Helm release %s: %w", spec, releaseErr)
	}
	return released, err
}

// leaseKey names the lease on a release that is being worked on.
func leaseKey(spec Spec) client.ObjectKey {
	return client.ObjectKey{Namespace: spec.Namespace, Name: "terraform-provider-capi.helm." + spec.Name}
}

// operation is one run of Ensure on a release that it has reserved.
type operation struct {
	Spec
	cfg    *action.Configuration
	chart  *helmchart.Chart
	config string
	report progress.Reporter
}

func (e Engine) ensure(ctx context.Context, c *kube.Client, spec Spec, chart *helmchart.Chart) (*Release, error) {
	cfg, err := configure(ctx, c, spec.Namespace, e.Report)
	if err != nil {
		return nil, fmt.Errorf("preparing Helm release %s: %w", spec, err)
	}
	op := &operation{Spec: spec, cfg: cfg, chart: chart, config: hashConfig(chart.Metadata, spec.Values), report: e.Report}
	records, err := history(cfg, spec.Name)
	if err != nil && !kube.IsAbsent(err) {
		return nil, fmt.Errorf("looking for Helm release %s: %w", spec, err)
	}
	err = op.run(ctx, records)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	return op.settle(ctx, end, c, err)
}

// run brings the release from what records say to what is wanted.
func (o *operation) run(ctx context.Context, records []*release.Release) error {
	if len(records) == 0 {
		return o.install(ctx, false)
	}
	last := records[len(records)-1]
	if err := o.mayTake(last); err != nil {
		return err
	}
	status := last.Info.Status
	switch {
	case status == release.StatusDeployed && !o.differs(last):
		// An earlier run got as far as this; what is left is its mark and its wait.
		if err := o.mark(ctx, last); err != nil {
			return err
		}
		return o.await(last)
	case status == release.StatusUninstalling:
		return o.reinstallAfterUninstall(ctx)
	case status == release.StatusUninstalled:
		return o.install(ctx, true)
	case status.IsPending():
		o.report.Report(ctx, "recovering", fmt.Sprintf("taking up Helm release %s, which an interrupted run left %s", o, status))
		last.SetStatus(release.StatusFailed, "Interrupted while "+string(status))
		if err := o.cfg.Releases.Update(last); err != nil {
			return fmt.Errorf("marking the interrupted revision %d of Helm release %s as failed: %w", last.Version, o, err)
		}
	}
	if everDeployed(records) {
		return o.upgrade(ctx)
	}
	return o.install(ctx, true)
}

// mayTake refuses a release that is not ours to touch.
func (o *operation) mayTake(last *release.Release) error {
	owner := last.Labels[ownerLabel]
	switch {
	case owner == o.Owner, o.Adopt:
		return nil
	case owner == "":
		return fmt.Errorf("a Helm release %s (chart %s, %s) is there already and was not made by this provider: %w", o, chartOf(last), last.Info.Status, ErrForeign)
	case last.Info.Status != release.StatusDeployed, !o.differs(last):
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
	return last.Chart == nil || last.Chart.Metadata == nil || hashConfig(last.Chart.Metadata, last.Config) != o.config
}

func (o *operation) labels() map[string]string {
	return map[string]string{ownerLabel: o.Owner, configLabel: o.config}
}

func (o *operation) install(ctx context.Context, again bool) error {
	o.report.Report(ctx, "installing", fmt.Sprintf("installing Helm release %s (chart %s %s)", o, o.chart.Metadata.Name, o.chart.Metadata.Version))
	install := action.NewInstall(o.cfg)
	install.ReleaseName, install.Namespace = o.Name, o.Namespace
	install.Timeout = patience(ctx)
	install.Wait, install.WaitForJobs = o.Wait, o.WaitForJobs
	install.Labels = o.labels()
	// A failed first install is installed again, with its hooks for an install,
	// and not upgraded.
	install.Replace = again
	// The configuration's own requests end with ctx; the library would go on in the
	// background after a cancelled RunWithContext.
	_, err := install.RunWithContext(context.WithoutCancel(ctx), o.chart, o.Values)
	if err != nil {
		return fmt.Errorf("installing Helm release %s: %w", o, withCause(ctx, err))
	}
	return nil
}

func (o *operation) upgrade(ctx context.Context) error {
	o.report.Report(ctx, "upgrading", fmt.Sprintf("upgrading Helm release %s (chart %s %s)", o, o.chart.Metadata.Name, o.chart.Metadata.Version))
	upgrade := action.NewUpgrade(o.cfg)
	upgrade.Namespace = o.Namespace
	upgrade.Timeout = patience(ctx)
	upgrade.Wait, upgrade.WaitForJobs = o.Wait, o.WaitForJobs
	upgrade.Labels = o.labels()
	upgrade.MaxHistory = historyLimit
	upgrade.ResetValues = true
	_, err := upgrade.RunWithContext(context.WithoutCancel(ctx), o.Name, o.chart, o.Values)
	if err != nil {
		return fmt.Errorf("upgrading Helm release %s: %w", o, withCause(ctx, err))
	}
	return nil
}

func (o *operation) reinstallAfterUninstall(ctx context.Context) error {
	o.report.Report(ctx, "recovering", fmt.Sprintf("finishing the interrupted uninstall of Helm release %s", o))
	uninstall := action.NewUninstall(o.cfg)
	uninstall.Timeout, uninstall.Wait = patience(ctx), true
	if _, err := uninstall.Run(o.Name); err != nil {
		return fmt.Errorf("finishing the interrupted uninstall of Helm release %s: %w", o, withCause(ctx, err))
	}
	return o.install(ctx, false)
}

// mark makes a release ours that another run finished with this configuration,
// or that was imported.
func (o *operation) mark(ctx context.Context, last *release.Release) error {
	if last.Labels[ownerLabel] == o.Owner && last.Labels[configLabel] == o.config {
		return nil
	}
	o.report.Report(ctx, "adopting", fmt.Sprintf("taking over Helm release %s", o))
	last.Labels = o.labels()
	if err := o.cfg.Releases.Update(last); err != nil {
		return fmt.Errorf("taking over Helm release %s: %w", o, err)
	}
	return nil
}

// await waits for the objects of a release that is on record as deployed.
func (o *operation) await(last *release.Release) error {
	bound, ok := o.cfg.KubeClient.(*boundClient)
	if !ok || !o.Wait {
		return nil
	}
	objects, err := bound.Build(manifestReader(last.Manifest), false)
	if err == nil {
		err = bound.await(objects, patience(bound.ctx), o.WaitForJobs)
	}
	if err != nil {
		return fmt.Errorf("checking the objects of Helm release %s: %w", o, err)
	}
	return nil
}

// settle reads back what is on record, mends it where the operation could not
// write its own end (it was cancelled, or the API server was away just then),
// and answers it. ctx is the operation's context, end one that is still alive.
func (o *operation) settle(ctx, end context.Context, c *kube.Client, failed error) (*Release, error) {
	cfg, err := configure(end, c, o.Namespace, nil)
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	last, err := newest(cfg, o.Name)
	if err != nil {
		if failed != nil {
			return nil, failed
		}
		return nil, fmt.Errorf("reading back Helm release %s: %w", o, err)
	}
	if failed != nil && last.Labels[ownerLabel] != o.Owner {
		return nil, failed
	}
	if last.Labels[configLabel] == o.config && last.Info.Status.IsPending() {
		if failed == nil {
			failed = fmt.Errorf("the end of the operation on Helm release %s did not get on record", o)
		}
		last.SetStatus(release.StatusFailed, "Interrupted: "+context.Cause(orAlive(ctx)).Error())
		if err := cfg.Releases.Update(last); err != nil {
			failed = fmt.Errorf("%w; marking it as failed: %w", failed, err)
		}
	}
	return describe(last), failed
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

// patience is the time that ctx leaves, for the library's own limits.
func patience(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return unlimited
	}
	return max(time.Second, time.Until(deadline))
}
