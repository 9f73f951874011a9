// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package ownership

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestAMarkIsFoundAgainAmongOtherWords(t *testing.T) {
	unfinished := New(noon)
	for name, mark := range map[string]Mark{"unfinished": unfinished, "finished": unfinished.Finish()} {
		for _, around := range []string{"%", "Talos v1.13.7\n%\nmade by us", "(%)", "%, and more", "terraform-provider-capi: note %"} {
			got, ok := Find(strings.ReplaceAll(around, "%", mark.String()))
			if !ok || got != mark {
				t.Errorf("%s in %q: got %v, %v, want %v", name, around, got, ok, mark)
			}
		}
	}
}

func TestWhatIsNoMarkIsNotFound(t *testing.T) {
	for _, text := range []string{
		"", "a VM", "terraform-provider-capi:", "terraform-provider-capi:x:finished",
		"terraform-provider-capi:5f0c9a52-8f8e-4a0f-9c3f-0d6a3f1d2b11",
		"terraform-provider-capi:5f0c9a52-8f8e-4a0f-9c3f-0d6a3f1d2b11:unfinished",
		"terraform-provider-capi:5f0c9a52-8f8e-4a0f-9c3f-0d6a3f1d2b11:unfinished:today",
		"terraform-provider-capi:5f0c9a52-8f8e-4a0f-9c3f-0d6a3f1d2b11:finished:today",
	} {
		if mark, ok := Find(text); ok {
			t.Errorf("%q answers %v", text, mark)
		}
	}
}

func TestReplaceKeepsTheUsersWords(t *testing.T) {
	mark := New(noon)
	text := Replace("my template\n", mark)
	if text != "my template\n"+mark.String() {
		t.Errorf("got %q", text)
	}
	finished := mark.Finish()
	if got := Replace(text+" tail", finished); got != "my template\n"+finished.String()+" tail" {
		t.Errorf("got %q", got)
	}
	if got := Replace("", mark); got != mark.String() {
		t.Errorf("got %q", got)
	}
}

func TestALeaseRunsThirtySecondsFromItsRenewal(t *testing.T) {
	mark := New(noon)
	for name, test := range map[string]struct {
		mark Mark
		now  time.Time
		want time.Duration
	}{
		"at once":                     {mark, noon, 30 * time.Second},
		"later":                       {mark, noon.Add(29 * time.Second), time.Second},
		"run out":                     {mark, noon.Add(time.Minute), 0},
		"renewed":                     {mark.Renew(noon.Add(10 * time.Second)), noon.Add(30 * time.Second), 10 * time.Second},
		"from a clock that runs fast": {mark, noon.Add(-time.Hour), 30 * time.Second},
		"finished":                    {mark.Finish(), noon, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.mark.ExpiresIn(test.now); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// testClock passes time at once, as far as it is asked to.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) clock() Clock {
	return Clock{
		Now: func() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now },
		After: func(d time.Duration) <-chan time.Time {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.now = c.now.Add(d)
			passed := make(chan time.Time, 1)
			passed <- c.now
			return passed
		},
	}
}

func TestWaitFree(t *testing.T) {
	broken := errors.New("connection refused")
	mark := New(noon)
	for name, test := range map[string]struct {
		reads  []Mark
		err    error
		waited time.Duration
		want   error
	}{
		"a lease that runs out is free":        {reads: []Mark{mark, mark}, waited: Lease},
		"a lease that ran out is free at once": {reads: []Mark{mark.Renew(noon.Add(-time.Hour))}},
		"a finished object is free at once":    {reads: []Mark{mark.Finish()}},
		"one finished meanwhile is free":       {reads: []Mark{mark, mark.Finish()}, waited: Lease},
		"a renewed lease is held":              {reads: []Mark{mark, mark.Renew(noon.Add(10 * time.Second))}, waited: Lease, want: ErrHeld},
		"another owner holds it":               {reads: []Mark{mark, New(noon)}, waited: Lease, want: ErrHeld},
		"an unreadable mark is unknown":        {err: broken, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &testClock{now: noon}
			read := 0
			got, err := WaitFree(context.Background(), clock.clock(), nil, "VM 100", func(context.Context) (Mark, error) {
				if test.err != nil {
					return Mark{}, test.err
				}
				read++
				return test.reads[read-1], nil
			})
			if !errors.Is(err, test.want) {
				t.Fatalf("got the error %v, want %v", err, test.want)
			}
			if err == nil && got != test.reads[len(test.reads)-1] {
				t.Errorf("got %v", got)
			}
			if read != len(test.reads) || clock.now.Sub(noon) != test.waited {
				t.Errorf("read %d times and waited %s, want %d and %s", read, clock.now.Sub(noon), len(test.reads), test.waited)
			}
		})
	}
}

func TestWaitFreeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	clock := Clock{Now: func() time.Time { return noon }, After: func(time.Duration) <-chan time.Time { return nil }}
	_, err := WaitFree(ctx, clock, nil, "VM 100", func(context.Context) (Mark, error) { return New(noon), nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestKeepRenewsUntilItIsStopped(t *testing.T) {
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		answers []error
		want    error
	}{
		"a failed renewal is made good by the next": {[]error{nil, refused, nil}, nil},
		"the last renewal failed":                   {[]error{nil, refused}, refused},
		"it is stopped before the first renewal":    {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			turns, ticks := make(chan struct{}), make(chan time.Time)
			clock := Clock{
				Now:   func() time.Time { return noon },
				After: func(time.Duration) <-chan time.Time { turns <- struct{}{}; return ticks },
			}
			mark, writes := New(noon.Add(-time.Minute)), 0
			stop := Keep(context.Background(), clock, mark, func(_ context.Context, m Mark) error {
				if m.Owner != mark.Owner || !m.Renewed.Equal(noon) {
					t.Errorf("wrote %v", m)
				}
				writes++
				return test.answers[writes-1]
			})
			<-turns
			for range test.answers {
				ticks <- noon
				<-turns
			}
			for range 2 {
				if err := stop(); !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
			}
			if writes != len(test.answers) {
				t.Errorf("renewed %d times, want %d", writes, len(test.answers))
			}
		})
	}
}
