// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// firstPause is how long a request that failed waits before it is sent again;
// each further one waits twice as long, up to lastPause.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// retryable marks an error after which the request is sent again.
type retryable struct{ error }

func (r retryable) Unwrap() error { return r.error }

// transient says whether the same request may succeed in a moment.
func transient(err error) bool {
	var again retryable
	return kube.Transient(err) || errors.As(err, &again) && !errors.Is(err, context.Canceled)
}

// read sends a request until it succeeds, fails for good or retryFor is over.
func (s *Side) read(ctx context.Context, send func() error) error {
	end := time.Now().Add(s.retryFor)
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		err := send()
		if !transient(err) || time.Now().Add(wait).After(end) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w (after: %w)", context.Cause(ctx), err)
		case <-timer.C:
		}
	}
}

// write is read for a request that changes something: none is sent once the lease
// on the cluster may be another run's. One that is under way then may still come
// late, and so each also says which object it means: by UID or resource version.
func (s *Side) write(ctx context.Context, send func() error) error {
	return s.read(ctx, func() error {
		if err := s.checkLease(); err != nil {
			return err
		}
		return send()
	})
}

func (s *Side) checkLease() error {
	if s.lease != nil && !s.lease.Fresh() {
		return fmt.Errorf("the lease on %s could not be renewed in time: %w", s.Name, kube.ErrLeaseLost)
	}
	return nil
}

// each calls do for all items, up to parallel at once, until one fails.
func each[T any](ctx context.Context, parallel int, items []T, do func(context.Context, T) error) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, item := range items {
		if groupCtx.Err() != nil {
			break
		}
		group.Go(func() error { return do(groupCtx, item) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}
