// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"net/http"
	"strings"
)

// Answer is a call as it was answered: what an administrator reads in
// /var/log/pveproxy/access.log.
type Answer struct {
	// Caller is who the call says to be, "user@realm" or "user@realm!token",
	// whether or not that was accepted. It is empty where it says nothing.
	Caller string
	// Method and Path are the call's, the path below /api2/json.
	Method, Path string
	// Status is that of HTTP, and Reason the phrase beside a refusal.
	Status int
	Reason string
}

// observe tells the observer of a call. Those that a fault has answered are not
// Proxmox VE's own doing, and are not told.
func (s *Simulator) observe(r *http.Request, status int, reason string) {
	if s.opts.Observe == nil {
		return
	}
	s.opts.Observe(Answer{Caller: claimed(r), Method: r.Method, Path: strings.TrimPrefix(r.URL.Path, apiRoot), Status: status, Reason: reason})
}

// claimed is who a request says to come from.
func claimed(r *http.Request) string {
	if credential, ok := strings.CutPrefix(r.Header.Get("Authorization"), "PVEAPIToken="); ok {
		id, _, _ := strings.Cut(credential, "=")
		return id
	}
	if cookie, err := r.Cookie("PVEAuthCookie"); err == nil {
		if parts := strings.Split(cookie.Value, ":"); len(parts) > 1 {
			return parts[1]
		}
	}
	return ""
}
