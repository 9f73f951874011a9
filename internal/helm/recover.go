// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"helm.sh/helm/v3/pkg/release"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Recovery says what happens to a release whose last operation failed or was
// interrupted.
type Recovery string

// What [Spec.Recover] may say.
const (
	// RecoverRetry installs again what was never complete, with its hooks for an
	// install, and upgrades anything else. It is the default.
	RecoverRetry Recovery = "retry"
	// RecoverRollback first goes back to the newest revision that was complete, and
	// then upgrades. Where none was, it is RecoverRetry.
	RecoverRollback Recovery = "rollback"
	// RecoverReplace uninstalls the release, but for its CustomResourceDefinitions,
	// and installs it anew.
	RecoverReplace Recovery = "replace"
	// RecoverFail leaves the release as it is and answers [ErrUnfinished].
	RecoverFail Recovery = "fail"
)

// ErrUnfinished says that a release is in a state that [RecoverFail] leaves to
// people.
var ErrUnfinished = errors.New("it is left as it is, since recover is \"fail\"")

// awaitOthers waits for another Helm client that is at work on the release and
// answers the records after it. Work of this provider has a lease; a record that
// says "pending" without one is somebody else's, and taken for abandoned once
// it is older than any reasonable operation.
func (o *operation) awaitOthers(ctx context.Context, records []*release.Release) ([]*release.Release, error) {
	if len(records) == 0 || o.interrupted || !underWay(records[len(records)-1]) {
		return records, nil
	}
	reported := false
	err := kube.Wait(ctx, "another Helm client that is at work on release "+o.String(), unlessRefused(refusalTime, func(ctx context.Context) (bool, string, error) {
		var err error
		records, err = history(o.cfg, o.Name)
		if kube.IsAbsent(err) {
			records = nil
			return true, "", nil
		}
		if err != nil {
			return false, "", err
		}
		last := records[len(records)-1]
		o.before = last.Version
		age := time.Since(since(last))
		if !underWay(last) || age >= o.clientTime {
			return true, "", nil
		}
		now := fmt.Sprintf("revision %d is %s since %s", last.Version, last.Info.Status, age.Round(time.Second))
		if !reported {
			reported = true
			o.report.Report(ctx, "waiting-for-client", now)
		}
		return false, now, nil
	}))
	return records, err
}

func underWay(last *release.Release) bool {
	return last.Info.Status.IsPending() || last.Info.Status == release.StatusUninstalling
}

// since answers when the operation of a record began.
func since(last *release.Release) time.Time {
	if last.Info.Status == release.StatusUninstalling {
		return last.Info.Deleted.Time
	}
	return last.Info.LastDeployed.Time
}

// recover takes up a release whose last operation failed or was interrupted.
func (o *operation) recover(ctx context.Context, records []*release.Release) error {
	last := records[len(records)-1]
	status := last.Info.Status
	if o.Recover == RecoverFail {
		return fmt.Errorf("revision %d of Helm release %s is %s since %s (%s): %w",
			last.Version, o, status, since(last).UTC().Format(time.RFC3339), last.Info.Description, ErrUnfinished)
	}
	o.report.Report(ctx, "recovering", fmt.Sprintf("taking up Helm release %s, whose revision %d is %s", o, last.Version, status))
	if o.Recover == RecoverReplace || status == release.StatusUninstalling {
		if err := o.uninstall(ctx); err != nil {
			return err
		}
		return o.install(ctx, false)
	}
	if status.IsPending() {
		last.SetStatus(release.StatusFailed, "Interrupted while "+string(status))
		if err := o.cfg.Releases.Update(last); err != nil {
			return fmt.Errorf("marking the interrupted revision %d of Helm release %s as failed: %w", last.Version, o, err)
		}
	}
	complete := lastComplete(records)
	if complete == nil {
		return o.install(ctx, true)
	}
	if o.Recover == RecoverRollback {
		return o.rollBackAndGoOn(ctx, complete)
	}
	return o.upgrade(ctx)
}

func (o *operation) rollBackAndGoOn(ctx context.Context, complete *release.Release) error {
	if err := o.rollBack(ctx, o.cfg, complete); err != nil {
		return err
	}
	last, err := newest(o.cfg, o.Name)
	if err != nil {
		return fmt.Errorf("reading Helm release %s after its roll-back: %w", o, err)
	}
	if o.differs(last) {
		return o.upgrade(ctx)
	}
	if err := o.mark(ctx, last); err != nil {
		return err
	}
	return o.await(last)
}

// lastComplete answers the newest revision that was complete once, or nil.
func lastComplete(records []*release.Release) *release.Release {
	for i := len(records) - 1; i >= 0; i-- {
		if status := records[i].Info.Status; status == release.StatusDeployed || status == release.StatusSuperseded {
			return records[i]
		}
	}
	return nil
}

// undo takes a failed operation back: to the newest complete revision, or to
// nothing where there is none. It works on when the operation's own context has
// ended, unless somebody else has taken over. It answers failed, with what came
// of the undoing.
func (o *operation) undo(ctx context.Context, failed error) error {
	if errors.Is(context.Cause(ctx), kube.ErrLeaseLost) || errors.Is(failed, ErrUnfinished) {
		return failed
	}
	alive, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	cfg, err := configure(alive, o.cluster, o.Namespace, o.Name, o.report)
	if err != nil {
		return errors.Join(failed, err)
	}
	records, err := history(cfg, o.Name)
	switch {
	case kube.IsAbsent(err):
		return failed
	case err != nil:
		return fmt.Errorf("%w; and it was not undone: %w", failed, err)
	}
	last := records[len(records)-1]
	if last.Version <= o.before || last.Labels[ownerLabel] != o.Owner {
		// The operation got no further than to its first record.
		return failed
	}
	if last.Info.Status.IsPending() {
		last.SetStatus(release.StatusFailed, failed.Error())
		if err := cfg.Releases.Update(last); err != nil {
			return fmt.Errorf("%w; and it was not undone: %w", failed, err)
		}
	}
	complete := lastComplete(records[:len(records)-1])
	if complete == nil {
		if err := uninstall(alive, cfg, teardown{name: o.Name}); err != nil {
			return fmt.Errorf("%w; and it was not uninstalled: %w", failed, withCause(alive, err))
		}
		return fmt.Errorf("%w; it was uninstalled", failed)
	}
	if err := o.rollBack(alive, cfg, complete); err != nil {
		return fmt.Errorf("%w; and it was not rolled back: %w", failed, err)
	}
	return fmt.Errorf("%w; it was rolled back to revision %d", failed, complete.Version)
}
