// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pollInterval lies between the load on a small API server and the time that a
// user waits for nothing.
const pollInterval = 500 * time.Millisecond

// Check looks once. It answers whether the thing waited for holds, and else in
// a few words what there is instead. An error counts as "not yet" and is
// quoted if the time runs out, since an API server under way answers all kinds
// of errors; an error made by [Fatal] ends the wait.
type Check func(ctx context.Context) (done bool, now string, err error)

type fatalError struct{ error }

func (e fatalError) Unwrap() error { return e.error }

// Fatal marks an error that no waiting heals.
func Fatal(err error) error {
	if err == nil {
		return nil
	}
	return fatalError{err}
}

// Wait calls check until it holds or ctx ends. The error then says what was
// waited for, for how long and what there was last.
func Wait(ctx context.Context, what string, check Check) error {
	return wait(ctx, what, pollInterval, check)
}

// WaitUnbroken waits until check has held at each look for the given time.
func WaitUnbroken(ctx context.Context, what string, during time.Duration, check Check) error {
	var since time.Time
	return wait(ctx, what, pollInterval, func(ctx context.Context) (bool, string, error) {
		done, now, err := check(ctx)
		if err != nil || !done {
			since = time.Time{}
			return false, now, err
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= during, fmt.Sprintf("holding for %s of %s", time.Since(since).Round(time.Second), during), nil
	})
}

func wait(ctx context.Context, what string, interval time.Duration, check Check) error {
	start := time.Now()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	last := "nothing was seen"
	for {
		done, now, err := check(ctx)
		var fatal fatalError
		switch {
		case errors.As(err, &fatal):
			return fmt.Errorf("waiting for %s: %w", what, fatal.error)
		case err != nil && ctx.Err() == nil:
			last = err.Error()
		case err == nil && done:
			return nil
		case err == nil && now != "":
			last = now
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s, for %s; last: %s: %w", what, time.Since(start).Round(time.Second), last, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// WaitForAPI waits until the API server has answered for the given time
// without a break. A control plane that has just come up, or that sits behind
// an address that is moving, answers once and is gone again.
func (c *Client) WaitForAPI(ctx context.Context, unbroken time.Duration) error {
	return WaitUnbroken(ctx, "the API server at "+c.Config.Host, unbroken, func(ctx context.Context) (bool, string, error) {
		if _, err := c.UID(ctx); err != nil {
			return false, "", err
		}
		return true, "", nil
	})
}
