// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package ownership is the mark that every object made by the provider carries:
// whose it is, whether it is finished, and a lease that says whether somebody
// is at work on it right now. Recovery relies on the mark and not on Terraform's
// state, since a killed plugin saves none.
package ownership

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

const (
	// Lease is how long an unfinished object stays with its maker after the last
	// renewal.
	Lease = 30 * time.Second
	// RenewEvery is how often the maker renews the lease. The clocks of two
	// runners that may meet must agree within the difference to [Lease].
	RenewEvery = 10 * time.Second
)

// PivotManager is the field manager of what a pivot writes for its own ends, such
// as the pause of a Cluster that it moves.
const PivotManager = "terraform-provider-capi-pivot"

// prefix starts the mark's text, so that it is found among other words of a
// description or a comment.
const prefix = "terraform-provider-capi:"

// ErrHeld says that an unfinished object's lease is being renewed: another run
// is at work on it.
var ErrHeld = errors.New("another run is at work on it")

// Mark says whose an object is.
type Mark struct {
	// Owner is the UUID that the owning resource keeps in its state.
	Owner string
	// Finished says that the object is complete. Only an unfinished object may
	// be taken over.
	Finished bool
	// Renewed is when the owner last renewed the lease of an unfinished object.
	Renewed time.Time
}

// New answers an unfinished mark with a new owner.
func New(now time.Time) Mark { return Mark{Owner: uuid.NewString(), Renewed: now} }

// Renew answers the mark with its lease renewed.
func (m Mark) Renew(now time.Time) Mark { m.Renewed = now; return m }

// Finish answers the mark of the complete object.
func (m Mark) Finish() Mark { m.Finished = true; m.Renewed = time.Time{}; return m }

// ExpiresIn answers how long the lease still runs; zero when it has run out or
// the object is finished. A renewal from the future (clocks differ) runs for a
// whole lease at most.
func (m Mark) ExpiresIn(now time.Time) time.Duration {
	if m.Finished {
		return 0
	}
	return max(0, min(Lease, m.Renewed.Add(Lease).Sub(now)))
}

// String writes the mark as one word without blanks that [Find] reads again.
func (m Mark) String() string {
	if m.Finished {
		return prefix + m.Owner + ":finished"
	}
	return prefix + m.Owner + ":unfinished:" + m.Renewed.UTC().Format("2006-01-02T15-04-05Z")
}

// Find reads the first mark in a text, such as the description of a VM.
func Find(text string) (Mark, bool) {
	for {
		at := strings.Index(text, prefix)
		if at < 0 {
			return Mark{}, false
		}
		text = text[at+len(prefix):]
		word := text
		if end := strings.IndexFunc(word, func(r rune) bool { return !isMarkRune(r) }); end >= 0 {
			word = word[:end]
		}
		if mark, ok := parse(word); ok {
			return mark, true
		}
	}
}

func isMarkRune(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-' || r == ':'
}

func parse(word string) (Mark, bool) {
	parts := strings.SplitN(word, ":", 3)
	if len(parts) < 2 {
		return Mark{}, false
	}
	if _, err := uuid.Parse(parts[0]); err != nil {
		return Mark{}, false
	}
	switch {
	case parts[1] == "finished" && len(parts) == 2:
		return Mark{Owner: parts[0], Finished: true}, true
	case parts[1] == "unfinished" && len(parts) == 3:
		renewed, err := time.Parse("2006-01-02T15-04-05Z", parts[2])
		if err != nil {
			return Mark{}, false
		}
		return Mark{Owner: parts[0], Renewed: renewed}, true
	}
	return Mark{}, false
}

// Replace writes mark into a text in place of the first mark in it, or at its end.
func Replace(text string, mark Mark) string {
	old, ok := Find(text)
	if ok {
		return strings.Replace(text, old.String(), mark.String(), 1)
	}
	if text == "" {
		return mark.String()
	}
	return strings.TrimRight(text, "\n") + "\n" + mark.String()
}

// Clock tells and passes time. The zero value is the real clock; tests use
// their own, so that nothing sleeps.
type Clock struct {
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
}

func (c Clock) now() time.Time {
	if c.Now == nil {
		return time.Now()
	}
	return c.Now()
}

func (c Clock) after(d time.Duration) <-chan time.Time {
	if c.After == nil {
		return time.After(d)
	}
	return c.After(d)
}

// WaitFree waits until the lease of an unfinished object has run out, so that
// it may be taken over. thing names the object for people. read answers the
// object's present mark. The error is [ErrHeld] (wrapped) when the lease was
// renewed meanwhile, read's own error, or the context's. A finished object is
// free at once: whether it may be touched is the caller's to say.
func WaitFree(ctx context.Context, clock Clock, report progress.Reporter, thing string, read func(context.Context) (Mark, error)) (Mark, error) {
	first, err := read(ctx)
	if err != nil {
		return Mark{}, fmt.Errorf("reading the ownership mark of %s: %w", thing, err)
	}
	wait := first.ExpiresIn(clock.now())
	if wait == 0 {
		return first, nil
	}
	report.Report(ctx, "waiting-for-lease",
		fmt.Sprintf("%s is unfinished and its lease runs for another %s; waiting before it is taken over", thing, wait.Round(time.Second)))
	select {
	case <-ctx.Done():
		return Mark{}, fmt.Errorf("waiting for the lease of %s to run out: %w", thing, context.Cause(ctx))
	case <-clock.after(wait):
	}
	now, err := read(ctx)
	switch {
	case err != nil:
		return Mark{}, fmt.Errorf("reading the ownership mark of %s: %w", thing, err)
	case now.Finished || now.Owner == first.Owner && now.Renewed.Equal(first.Renewed):
		return now, nil
	}
	return Mark{}, fmt.Errorf("%s: its lease was renewed at %s: %w", thing, now.Renewed.UTC().Format(time.RFC3339), ErrHeld)
}

// Keep renews the lease with write every [RenewEvery] until the returned stop is
// called, which waits for the last renewal to end and answers the error of the
// renewal that failed last, if none succeeded after it. A failed renewal is
// tried again at the next turn.
func Keep(ctx context.Context, clock Clock, mark Mark, write func(context.Context, Mark) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		var failed error
		for {
			select {
			case <-ctx.Done():
				done <- failed
				return
			case <-clock.after(RenewEvery):
			}
			if err := write(ctx, mark.Renew(clock.now())); ctx.Err() == nil {
				failed = err
			}
		}
	}()
	var result error
	stopped := false
	return func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-done
		}
		return result
	}
}
