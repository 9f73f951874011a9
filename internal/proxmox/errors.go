// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"

	pve "github.com/luthermonson/go-proxmox"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// ErrUnreachable marks errors after which nobody knows how things stand: the
// API, or the node behind it, did not answer. A refresh keeps its prior state.
var ErrUnreachable = errors.New("no answer from Proxmox VE")

// ErrDenied marks errors of the login (401) and of privileges (403).
var ErrDenied = errors.New("not allowed")

// errAnswerLost marks an error of a call whose answer got lost, so that it may
// have been carried out.
var errAnswerLost = errors.New("the answer got lost")

// explain adds to an error of the API what people need to know about it, and
// marks it for [errors.Is].
func explain(err error, c *Client) error {
	if apiErr, ok := pve.AsAPIError(err); ok {
		switch apiErr.StatusCode {
		case http.StatusUnauthorized:
			return fmt.Errorf("%w: Proxmox VE at %s does not accept the login of %s: check the token's id and secret "+
				"(\"user@realm!name\"), that neither it nor its user is expired or disabled: %w", ErrDenied, c.base, c.Identity(), err)
		case http.StatusForbidden:
			return fmt.Errorf("%w: %s lacks a privilege for %s %s: %w%s", ErrDenied, c.Identity(), apiErr.Method, trimAPI(apiErr.Path), err, c.grantFor(apiErr))
		case pve.StatusNodeConnectFailed:
			return fmt.Errorf("%w: the node that answers at %s cannot reach the node that was asked for: %w", ErrUnreachable, c.base, err)
		case pve.StatusNodeRequestFailed:
			return fmt.Errorf("%w: %w: the node that answers at %s got no answer from the node that was asked for; where it says so for every call, "+
				"the nodes do not accept each other's certificates (pvecm updatecerts): %w", ErrUnreachable, errAnswerLost, c.base, err)
		}
		if judge(err) == answered {
			return fmt.Errorf("%w: %w: %w", ErrUnreachable, errAnswerLost, err)
		}
		return err
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return fmt.Errorf("the certificate of %s is not trusted: give the cluster's own authority (/etc/pve/pve-root-ca.pem) as ca_pem: %w", c.base, err)
	}
	switch judge(err) {
	case unsent:
		return fmt.Errorf("%w at %s: %w", ErrUnreachable, c.base, err)
	case answered:
		return fmt.Errorf("%w at %s: %w: %w", ErrUnreachable, c.base, errAnswerLost, err)
	}
	return err
}

// grantFor turns "Permission check failed (/path, Privilege)" into the command
// that grants the privilege. Checks of alternatives say no more than
// "Permission check failed".
func (c *Client) grantFor(err *pve.APIError) string {
	_, inner, ok := strings.Cut(err.Message, "Permission check failed (")
	if !ok {
		return ""
	}
	inner, _, _ = strings.Cut(inner, ")")
	path, privileges, ok := strings.Cut(inner, ", ")
	if !ok || !strings.HasPrefix(path, "/") {
		return ""
	}
	return ". To grant it: " + c.grantLine(path, strings.ReplaceAll(privileges, "|", " "))
}

// grantLine is the command that gives privileges on a path to whoever works.
func (c *Client) grantLine(path, privileges string) string {
	who := "--users '" + c.Identity() + "'"
	if strings.Contains(c.Identity(), "!") {
		who = "--tokens '" + c.Identity() + "'"
	}
	return fmt.Sprintf("pveum role add TerraformCAPI --privs '%s' (pveum role modify TerraformCAPI --append --privs ..., where it is there already); "+
		"pveum acl modify %s %s --roles TerraformCAPI", privileges, path, who)
}

func trimAPI(path string) string { return strings.TrimPrefix(path, "/api2/json") }

// absent wraps an error that proves absence.
func absent(format string, args ...any) error {
	return fmt.Errorf("%w: %s", kube.ErrAbsent, fmt.Sprintf(format, args...))
}

// missing says whether a call was refused because the thing is not there.
// Proxmox VE has no status for it, only texts.
func missing(err error) bool { return pve.IsNotFound(err) }

// saying says whether an error of the API has this text.
func saying(err error, text string) bool {
	if err == nil {
		return false
	}
	return strings.Contains(err.Error(), text)
}

// isDenied says whether an error is one of login or privileges.
func isDenied(err error) bool { return pve.IsNotAuthorized(err) }
