// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
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
var busyTexts = []string{
	"can't lock file",
	"got lock request timeout",
	"got lock timeout",
	"VM is locked (",
	"no quorum",
	"cfs-lock",
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
			for _, text := range busyTexts {
				if strings.Contains(apiErr.Error(), text) {
					return busy
				}
			}
		}
		return final
	}
	if pve.IsTaskFailed(err) || pve.IsTimeout(err) {
		return final
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return final
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return unsent
	}
	var transport interface{ Timeout() bool } // *url.Error and all of net's
	if errors.As(err, &transport) {
		return answered
	}
	return final
}

// attempts of a call before it is given up, and the longest wait between two.
// With the first wait of a quarter of a second they last about 20 s.
const (
	attempts    = 8
	longestWait = 16 // times the first wait
)

// retry is the one retry policy. safe says that doing the call twice does no
// harm.
func (c *Client) retry(ctx context.Context, safe bool, try func() error) error {
	wait := c.config.PollInterval / 4
	for attempt := 1; ; attempt++ {
		err := c.login(ctx)
		repeatable := safe || err != nil // a login can always be repeated
		if err == nil {
			err = try()
		}
		if err == nil {
			return nil
		}
		v := judge(err)
		if v == final || (v == answered && !repeatable) || attempt == attempts || ctx.Err() != nil {
			return explain(err, c)
		}
		if !sleep(ctx, wait) {
			return explain(err, c)
		}
		wait = min(2*wait, longestWait*c.config.PollInterval/4)
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
