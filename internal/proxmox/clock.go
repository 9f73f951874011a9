// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clock tells the time of Proxmox VE, which judges when a token expires and is
// the one clock that all runs on all machines share: leases are written and read
// by it. It goes by the dates of its answers, and by this machine's own clock
// where these agree or there was no answer yet.
type clock struct {
	local func() time.Time
	ahead atomic.Int64 // of the local clock, in nanoseconds
}

// tolerance is what two clocks may differ by and still agree: the date of an
// answer has whole seconds, and an answer takes its time to arrive.
const tolerance = 2 * time.Second

func (c *clock) now() time.Time { return c.local().Add(time.Duration(c.ahead.Load())) }

func (c *clock) until(t time.Time) time.Duration { return t.Sub(c.now()) }

// learn takes over the date of an answer.
func (c *clock) learn(res *http.Response) {
	date, err := http.ParseTime(res.Header.Get("Date"))
	if err != nil {
		return // an answer without a date leaves what is known
	}
	ahead := date.Sub(c.local())
	if ahead.Abs() <= tolerance {
		ahead = 0
	}
	c.ahead.Store(int64(ahead))
}

// dated is a transport by whose answers the clock is set.
type dated struct {
	http.RoundTripper
	clock *clock
}

func (d dated) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := d.RoundTripper.RoundTrip(req)
	if err == nil {
		d.clock.learn(res)
	}
	return res, err
}
