// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"fmt"
	"net/http"
	"strings"
)

// refusal is an answer of status 400 or higher. The reason phrase on the wire is
// the first line of the message.
type refusal struct {
	status  int
	message string
	// params are the answers for single parameters (status 400).
	params map[string]string
	// bare leaves the body empty.
	bare bool
}

func (r *refusal) Error() string {
	if len(r.params) == 0 {
		return r.message
	}
	return fmt.Sprintf("%s %v", r.message, r.params)
}

// reason is what stands in the status line.
func (r *refusal) reason() string {
	line, _, _ := strings.Cut(r.message, "\n")
	return line
}

// die is Proxmox VE's answer to nearly every failure: a 500 with a text.
func die(format string, args ...any) error {
	return &refusal{status: http.StatusInternalServerError, message: fmt.Sprintf(format, args...)}
}

const verificationFailed = "Parameter verification failed."

// invalid refuses one parameter.
func invalid(name, format string, args ...any) error {
	return &refusal{
		status: http.StatusBadRequest, message: verificationFailed,
		params: map[string]string{name: fmt.Sprintf(format, args...)},
	}
}

// forbidden is a failed permission check; what may be empty.
func forbidden(what string) error {
	msg := "Permission check failed"
	if what != "" {
		msg += " (" + what + ")"
	}
	return &refusal{status: http.StatusForbidden, message: msg}
}

// unauthorized is a 401, which is held back before it is sent.
func unauthorized(reason string) error {
	return &refusal{status: http.StatusUnauthorized, message: reason, bare: true}
}

// notImplemented is a 501.
func notImplemented(format string, args ...any) error {
	return &refusal{status: http.StatusNotImplemented, message: fmt.Sprintf(format, args...)}
}
