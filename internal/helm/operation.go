// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func (o *operation) labels() map[string]string {
	return map[string]string{ownerLabel: o.Owner, configLabel: o.config}
}

func (o *operation) install(ctx context.Context, again bool) error {
	o.report.Report(ctx, "installing", fmt.Sprintf("installing Helm release %s (chart %s %s)", o, o.chart.Metadata.Name, o.chart.Metadata.Version))
	install := action.NewInstall(o.cfg)
	install.ReleaseName, install.Namespace = o.Name, o.Namespace
	install.Timeout = patience(ctx)
	install.Wait, install.WaitForJobs = o.Wait, o.WaitForJobs
	install.SkipCRDs = o.SkipCRDs
	install.Labels = o.labels()
	// A failed first install is installed again, with its hooks for an install,
	// and not upgraded.
	install.Replace = again
	// The configuration's own requests end with ctx; the library would go on in the
	// background after a cancelled RunWithContext.
	_, err := install.RunWithContext(context.WithoutCancel(ctx), o.chart, o.Values)
	if err != nil {
		return fmt.Errorf("installing Helm release %s: %w", o, withCause(ctx, explain(err)))
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
	upgrade.SkipCRDs = o.SkipCRDs
	bound, err := clientOf(o.cfg)
	if err != nil {
		return err
	}
	bound.forgiving = true
	defer func() { bound.forgiving = false }()
	_, err = upgrade.RunWithContext(context.WithoutCancel(ctx), o.Name, o.chart, o.Values)
	if err != nil {
		return fmt.Errorf("upgrading Helm release %s: %w", o, withCause(ctx, explain(err)))
	}
	return nil
}

// explain adds what a refused record means: a Secret holds 1 MiB
// (k8s.io/api/core/v1, MaxSecretSize), and an API server takes requests of 3 MiB.
func explain(err error) error {
	if apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsInvalid(err) && strings.Contains(err.Error(), "Too long") {
		return fmt.Errorf("%w (the release's record, with the chart's files and the values, does not fit into a Secret, which holds 1 MiB: leave files out of the chart with .helmignore)", err)
	}
	return err
}

// uninstall removes what is there of the release, but for definitions, and its
// records.
func (o *operation) uninstall(ctx context.Context) error {
	if err := uninstall(ctx, o.cfg, teardown{name: o.Name}); err != nil {
		return fmt.Errorf("uninstalling Helm release %s: %w", o, withCause(ctx, err))
	}
	o.before = 0
	return nil
}

// rollBack goes back to a revision that was complete once. It does not wait for
// the objects to be ready: they were, and what follows looks again.
func (o *operation) rollBack(ctx context.Context, cfg *action.Configuration, to *release.Release) error {
	o.report.Report(ctx, "rolling-back", fmt.Sprintf("rolling Helm release %s back to revision %d", o, to.Version))
	o.rolledBack = true
	o.rolledBackTo = to.Labels[configLabel]
	if to.Labels[ownerLabel] != o.Owner {
		// The new revision gets the labels of the old one, which may be from before the
		// release became ours.
		to.Labels = maps.Clone(to.Labels)
		if to.Labels == nil {
			to.Labels = map[string]string{}
		}
		to.Labels[ownerLabel] = o.Owner
		if err := cfg.Releases.Update(to); err != nil {
			return fmt.Errorf("marking revision %d of Helm release %s before going back to it: %w", to.Version, o, err)
		}
	}
	rollback := action.NewRollback(cfg)
	rollback.Version = to.Version
	rollback.Timeout = patience(ctx)
	rollback.MaxHistory = historyLimit
	if err := rollback.Run(o.Name); err != nil {
		return fmt.Errorf("rolling Helm release %s back to revision %d: %w", o, to.Version, withCause(ctx, err))
	}
	return nil
}

// mark makes a release ours that another run finished with this configuration,
// or that was imported, and notes in its record what our own records tell.
func (o *operation) mark(ctx context.Context, last *release.Release) error {
	noted := last.Chart.Metadata.Annotations[digestAnnotation] != ""
	if noted && last.Labels[ownerLabel] == o.Owner && last.Labels[configLabel] == o.config {
		return nil
	}
	o.report.Report(ctx, "adopting", fmt.Sprintf("taking over Helm release %s", o))
	last.Labels = o.labels()
	if !noted {
		annotations := o.chart.Metadata.Annotations
		annotate(last.Chart, annotations[digestAnnotation], strings.Split(annotations[definitionsAnnotation], ","))
	}
	if err := o.cfg.Releases.Update(last); err != nil {
		return fmt.Errorf("taking over Helm release %s: %w", o, err)
	}
	return nil
}

// await waits for the objects of a release that is on record as deployed.
func (o *operation) await(last *release.Release) error {
	if !o.Wait {
		return nil
	}
	bound, err := clientOf(o.cfg)
	if err != nil {
		return err
	}
	objects, err := bound.Build(strings.NewReader(last.Manifest), false)
	if err == nil {
		err = bound.await(objects, patience(bound.ctx), o.WaitForJobs)
	}
	if err != nil {
		return fmt.Errorf("checking the objects of Helm release %s: %w", o, err)
	}
	return nil
}

// patience is the time that ctx leaves, for the library's own limits.
func patience(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return unlimited
	}
	return max(time.Second, time.Until(deadline))
}
