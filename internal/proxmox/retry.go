// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	pve "github.com/luthermonson/go-proxmox"
)

// verdict says what may follow a failed call.
type verdict int

const (
	final    verdict = iota // asking again answers the same
	busy                    // refused for the moment, nothing was done
	unsent                  // did not reach Proxmox VE, nothing was done
	answered                // lost on the way: nobody knows whether it was done
)

// busyTexts are what Proxmox VE says when it could not get hold of a lock or of
// a quorum in time. All of them come as a status of 500.
var busyTexts = append([]string{"VM is locked ("}, append(lockTexts, quorumTexts...)...)

var (
	lockTexts   = []string{"can't lock file", "got lock request timeout", "got lock timeout", "cfs-lock"}
	quorumTexts = []string{"no quorum"}
)

func hasAny(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}

// judge classifies an error of one call.
func judge(err error) verdict {
	if apiErr, ok := pve.AsAPIError(err); ok {
		switch apiErr.StatusCode {
		case pve.StatusNodeConnectFailed:
			return unsent
		case pve.StatusNodeRequestFailed, http.StatusBadGateway, http.StatusGatewayTimeout:
			return answered
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			return busy
		case http.StatusInternalServerError:
			if hasAny(apiErr.Error(), busyTexts) {
				return busy
			}
		}
		return final
	}
	if err == nil || pve.IsTaskFailed(err) || pve.IsTimeout(err) || distrusted(err) {
		return final
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return unsent
	}
	var transport interface{ Timeout() bool } // *url.Error and all of net's
	if errors.As(err, &transport) || errors.Is(err, io.ErrUnexpectedEOF) {
		return answered
	}
	return final
}

// distrusted says whether an error is about who answers and how, not about
// whether: asking again meets the same server.
func distrusted(err error) bool {
	var certificate *tls.CertificateVerificationError
	var fingerprint *fingerprintError
	var plain tls.RecordHeaderError
	return errors.As(err, &certificate) || errors.As(err, &fingerprint) || errors.As(err, &plain) || errors.Is(err, http.ErrSchemeMismatch)
}

// backoff is how one call is repeated: the waits double from a quarter of a poll
// interval, up to four of these, until they add up to the limit.
type backoff struct{ next, longest, left time.Duration }

func (c *Client) backoff() *backoff {
	poll := c.config.PollInterval
	b := &backoff{next: max(poll/4, 1), longest: 4 * poll, left: c.config.Timeouts.Retry}
	if b.left <= 0 {
		b.left = 16 * poll
	}
	return b
}

// wait answers how long to wait before the next attempt; ok is false when there
// is none. hint is what the server asks for, or zero.
func (b *backoff) wait(hint time.Duration) (d time.Duration, ok bool) {
	if b.left <= 0 {
		return 0, false
	}
	d = min(max(b.next, hint), b.left)
	b.left -= d
	b.next = min(2*b.next, b.longest)
	return d, true
}

// retry is the one retry policy: calls that were surely not carried out are
// repeated, and so are those whose fate is unknown where that does no harm,
// which is what safe says. A ticket that is refused is replaced once.
func (c *Client) retry(ctx context.Context, safe bool, try func() error) error {
	waits, loginAgain := c.backoff(), true
	for {
		err := c.ensureLogin(ctx)
		loggedIn := err == nil
		if loggedIn {
			err = try()
		}
		if err == nil {
			return nil
		}
		apiErr, _ := pve.AsAPIError(err)
		if loggedIn && loginAgain && apiErr != nil && apiErr.StatusCode == http.StatusUnauthorized && c.login.forget() {
			loginAgain = false
			continue
		}
		v := judge(err)
		repeatable := safe || !loggedIn // a login can always be repeated
		if v == final || (v == answered && !repeatable) || ctx.Err() != nil {
			return explain(err, c)
		}
		var hint time.Duration
		if apiErr != nil {
			hint = apiErr.RetryAfter
		}
		d, ok := waits.wait(hint)
		if !ok || !sleep(ctx, d) {
			return explain(err, c)
		}
	}
}

// sleep waits, and answers false where the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// settle runs work that finds and finishes what an earlier run left, and runs
// it again when an answer got lost on the way: the second run finds what the
// lost call has done.
func settle(work func() error) error {
	var err error
	for range 3 {
		if err = work(); err == nil || !errors.Is(err, errAnswerLost) {
			return err
		}
	}
	return err
}
