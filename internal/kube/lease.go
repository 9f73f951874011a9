// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/ownership"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// ErrLeaseLost cancels the context of a [Lease] that somebody else has taken.
var ErrLeaseLost = errors.New("another run has taken over")

// Leases makes leases; its times can be shortened for tests.
type Leases struct {
	// Duration and Renewal default to [ownership.Lease] and [ownership.RenewEvery].
	Duration, Renewal time.Duration
}

// Lease is the right to write one unfinished thing, held by one run.
type Lease struct {
	client  client.Client
	key     client.ObjectKey
	holder  string
	cancel  context.CancelCauseFunc
	stopped sync.WaitGroup
	// begun is when the lease was taken, and renewed how long after that the last
	// renewal that succeeded was sent: both by the monotonic clock.
	begun    time.Time
	renewed  atomic.Int64
	duration time.Duration
	// inherited says that the lease was there already.
	inherited bool
	since     time.Time
}

// Inherited says whether the lease was found and not made: an earlier run was
// interrupted, since a run that comes to its end removes its lease.
func (l *Lease) Inherited() bool { return l.inherited }

// Since answers when the work began that the lease stands for: when it was
// taken or, by the clock of an interrupted run that it was inherited from, when
// that run took it. Inherited again, it stays the time of the first run.
func (l *Lease) Since() time.Time { return l.since }

// Fresh says whether nobody else can hold the lease at this moment: it was
// renewed within three quarters of its duration. A run that was stopped and goes
// on must ask before each write, since its renewal has not noticed yet.
func (l *Lease) Fresh() bool {
	return time.Since(l.begun)-time.Duration(l.renewed.Load()) < l.duration*3/4
}

// Acquire takes the lease key for holder, a UUID. One that was left behind runs
// out: Acquire waits for that, saying so, and answers [ownership.ErrHeld] if it is renewed
// meanwhile. The context that it answers is cancelled with [ErrLeaseLost] when
// the lease is taken away.
func (l Leases) Acquire(ctx context.Context, c client.Client, key client.ObjectKey, holder string, report progress.Reporter) (context.Context, *Lease, error) {
	if l.Duration == 0 {
		l.Duration = ownership.Lease
	}
	if l.Renewal == 0 {
		l.Renewal = ownership.RenewEvery
	}
	lease, err := l.take(ctx, c, key, holder, report)
	if err != nil {
		return nil, nil, err
	}
	held, cancel := context.WithCancelCause(ctx)
	lease.cancel = cancel
	lease.stopped.Go(func() { lease.renew(held, l) })
	return held, lease, nil
}

// takePatience is how long an API server that does not answer is asked again for
// a lease: a moment's trouble should not fail a run that has not begun, and an
// address where nobody listens should be told soon.
const takePatience = 10 * time.Second

// take answers a lease that is held and not renewed yet.
func (l Leases) take(ctx context.Context, c client.Client, key client.ObjectKey, holder string, report progress.Reporter) (*Lease, error) {
	var waitedFor *metav1.MicroTime
	var seen time.Time // when waitedFor was first seen, by this machine's clock
	patience := time.Now().Add(takePatience)
	for {
		sent := time.Now()
		found := &coordinationv1.Lease{}
		err := c.Get(ctx, key, found)
		inherited := err == nil
		mine := l.object(key, holder)
		switch {
		case apierrors.IsNotFound(err):
			err = c.Create(ctx, mine)
		case err == nil:
			owner := ptr.Deref(found.Spec.HolderIdentity, "")
			if owner != holder && waitedFor != nil && !waitedFor.Equal(found.Spec.RenewTime) {
				return nil, fmt.Errorf("lease %s of run %s: %w", key, owner, ownership.ErrHeld)
			}
			if waitedFor == nil {
				seen = sent
			}
			// The clock of the run that wrote it may be ahead of this one by any time. What
			// was not renewed for its whole duration has run out by every clock.
			left := min(time.Until(ptr.Deref(found.Spec.RenewTime, metav1.MicroTime{}).Add(l.Duration)), l.Duration-time.Since(seen))
			if owner != holder && left > 0 {
				waitedFor = found.Spec.RenewTime
				report.Report(ctx, "waiting-for-lease", fmt.Sprintf("an unfinished run (%s) was at work here; its lease runs out in %s", owner, left.Round(time.Second)))
				if err := pause(ctx, min(left+100*time.Millisecond, l.Renewal)); err != nil {
					return nil, err
				}
				continue
			}
			mine.ResourceVersion = found.ResourceVersion
			if found.Spec.AcquireTime != nil {
				mine.Spec.AcquireTime = found.Spec.AcquireTime
			}
			err = c.Update(ctx, mine)
		}
		switch {
		case err == nil:
			return &Lease{client: c, key: key, holder: holder, begun: sent, duration: l.Duration, inherited: inherited, since: mine.Spec.AcquireTime.Time}, nil
		case apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) && ctx.Err() == nil && !namespaceMissing(err):
		case Transient(err) && time.Now().Before(patience):
			if err := pause(ctx, min(pollInterval, l.Renewal)); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("taking the lease %s: %w", key, err)
		}
	}
}

// namespaceMissing tells a create that failed for want of its namespace from an
// update of a lease that somebody has just released.
func namespaceMissing(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

func (l Leases) object(key client.ObjectKey, holder string) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &holder,
			LeaseDurationSeconds: ptr.To(int32(max(1, l.Duration/time.Second))),
			AcquireTime:          &now,
			RenewTime:            &now,
		},
	}
}

func (l *Lease) renew(ctx context.Context, times Leases) {
	for {
		if pause(ctx, times.Renewal) != nil {
			return
		}
		sent := time.Since(l.begun)
		found := &coordinationv1.Lease{}
		// An API server that does not answer for a while is no loss: nobody else can
		// take the lease there either.
		err := l.client.Get(ctx, l.key, found)
		if err == nil && ptr.Deref(found.Spec.HolderIdentity, "") != l.holder || apierrors.IsNotFound(err) {
			l.cancel(ErrLeaseLost)
			return
		}
		if err != nil {
			continue
		}
		found.Spec.RenewTime = ptr.To(metav1.NowMicro())
		if err := l.client.Update(ctx, found); err == nil {
			l.renewed.Store(int64(sent))
		}
	}
}

// Release ends the renewal and removes the lease if it is still the holder's. An
// error leaves a lease that runs out by itself.
func (l *Lease) Release(ctx context.Context) error {
	l.cancel(nil)
	l.stopped.Wait()
	for {
		found := &coordinationv1.Lease{}
		if err := l.client.Get(ctx, l.key, found); err != nil {
			return client.IgnoreNotFound(err)
		}
		if ptr.Deref(found.Spec.HolderIdentity, "") != l.holder {
			return nil
		}
		err := l.client.Delete(ctx, found, client.Preconditions{ResourceVersion: &found.ResourceVersion})
		// A last renewal may be carried out after its request was cancelled.
		if !apierrors.IsConflict(err) {
			return client.IgnoreNotFound(err)
		}
	}
}

// Abandon ends the renewal and leaves the lease to run out, as a killed run does.
func (l *Lease) Abandon() {
	l.cancel(nil)
	l.stopped.Wait()
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
