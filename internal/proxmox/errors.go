// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

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
	if errors.Is(err, errSecondFactor) {
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	if apiErr, ok := pve.AsAPIError(err); ok {
		return c.explainAnswer(apiErr, err)
	}
	if distrusted(err) {
		return c.explainDistrust(err)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("%w: what answers at %s is not the API of Proxmox VE; check the endpoint, and whether a proxy stands before it: %w", ErrUnreachable, c.base, err)
	}
	switch judge(err) {
	case unsent:
		return fmt.Errorf("%w at %s: %w%s", ErrUnreachable, c.base, err, dialAdvice(err))
	case answered:
		return fmt.Errorf("%w at %s: %w: %w", ErrUnreachable, c.base, errAnswerLost, err)
	}
	return err
}

// explainAnswer explains a refusal that Proxmox VE, or what stands before it,
// has sent.
func (c *Client) explainAnswer(apiErr *pve.APIError, err error) error {
	call := apiErr.Method + " " + trimAPI(apiErr.Path)
	switch apiErr.StatusCode {
	case http.StatusUnauthorized:
		return fmt.Errorf("%w: Proxmox VE at %s does not accept the login of %s: %s: %w", ErrDenied, c.base, c.Identity(), c.loginAdvice(), err)
	case http.StatusForbidden:
		return fmt.Errorf("%w: %s lacks a privilege for %s: %w%s", ErrDenied, c.Identity(), call, err, c.privilegeAdvice(apiErr))
	case http.StatusNotFound: // Proxmox VE itself never answers that about a thing
		return fmt.Errorf("%w: there is no API of Proxmox VE at %s; check the endpoint, and whether a proxy stands before it: %w", ErrUnreachable, c.base, err)
	case pve.StatusNodeConnectFailed:
		return fmt.Errorf("%w: the node that answers at %s cannot reach the node that was asked for; see whether it is up (pvecm status): %w", ErrUnreachable, c.base, err)
	case pve.StatusNodeRequestFailed:
		return fmt.Errorf("%w: %w: the node that answers at %s got no answer from the node that was asked for; where it says so for every call, "+
			"the nodes do not accept each other's certificates (pvecm updatecerts): %w", ErrUnreachable, errAnswerLost, c.base, err)
	}
	text := apiErr.Error()
	switch judge(err) {
	case answered:
		return fmt.Errorf("%w: %w: %w", ErrUnreachable, errAnswerLost, err)
	case busy:
		return fmt.Errorf("%w%s", err, busyAdvice(text))
	}
	return err
}

func (c *Client) loginAdvice() string {
	if c.config.TokenID != "" {
		return "check the token's id (\"user@realm!name\") and secret, that neither it nor its user is expired or disabled"
	}
	return "check the user's name with its realm (\"root@pam\") and the password, that the user is neither expired, disabled nor locked"
}

// busyAdvice says how what Proxmox VE waited for in vain comes to an end.
func busyAdvice(text string) string {
	switch {
	case hasAny(text, quorumTexts):
		return ". The cluster has no quorum, and changes nothing until it has one again: bring back its other nodes (pvecm status shows them)"
	case hasAny(text, lockTexts):
		return ". Something else holds the lock; see the running tasks, and run this again when they are done"
	case strings.Contains(text, "VM is locked ("):
		return ". A task works on the machine; where none runs any more, take the lock off: qm unlock, with its id"
	}
	return ""
}

// dialAdvice says what usually is behind a connection that does not come about.
func dialAdvice(err error) string {
	var name *net.DNSError
	if errors.As(err, &name) && name.IsNotFound {
		return ". The name is not known here; check the endpoint"
	}
	return ""
}

// explainDistrust explains why whoever answers is not trusted.
func (c *Client) explainDistrust(err error) error {
	var plain tls.RecordHeaderError
	var other *fingerprintError
	var certificate *tls.CertificateVerificationError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &plain), errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("what answers at %s does not speak TLS; check the port (Proxmox VE has %s), and whether a proxy stands before it: %w", c.base, defaultPort, err)
	case errors.As(err, &other):
		return fmt.Errorf("the certificate of %s is not the expected one. Where it was renewed, give the new fingerprint as fingerprint_sha256 after comparing it with "+
			"the one on the node (openssl x509 -noout -fingerprint -sha256 -in /etc/pve/local/pve-ssl.pem); else somebody stands between: %w", c.base, other)
	case errors.As(err, &name):
		return fmt.Errorf("the certificate of %s is for other names: %s. Use one of them in the endpoint, or give fingerprint_sha256: %w", c.base, strings.Join(namesOf(name.Certificate), ", "), err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate of %s is not valid at this time (from %s to %s). Renew it on the node (pvecm updatecerts --force), or set this machine's clock: %w",
			c.base, invalid.Cert.NotBefore.Format(time.DateOnly), invalid.Cert.NotAfter.Format(time.DateOnly), err)
	}
	shown := ""
	if errors.As(err, &certificate) && len(certificate.UnverifiedCertificates) > 0 {
		shown = ", which is " + showFingerprint(sha256.Sum256(certificate.UnverifiedCertificates[0].Raw)) + " here; compare it on the node"
	}
	return fmt.Errorf("the certificate of %s is not trusted: give the cluster's own authority (/etc/pve/pve-root-ca.pem) as ca_pem, or the certificate's "+
		"fingerprint as fingerprint_sha256%s: %w", c.base, shown, err)
}

func namesOf(certificate *x509.Certificate) []string {
	names := slices.Clone(certificate.DNSNames)
	for _, address := range certificate.IPAddresses {
		names = append(names, address.String())
	}
	return names
}

// privilegeAdvice says how the privilege is to be had that a call lacks. What
// Proxmox VE says is "Permission check failed (/path, Privilege)"; checks of
// alternatives say no more than "Permission check failed".
func (c *Client) privilegeAdvice(err *pve.APIError) string {
	_, inner, ok := strings.Cut(err.Message, "Permission check failed (")
	switch {
	case strings.Contains(err.Message, "user != root@pam"):
		return ". Proxmox VE lets root@pam itself do this and nobody else, no API token either: log in with its username and password"
	case strings.Contains(err.Message, "need proper ticket"):
		return ". Proxmox VE takes no API token for this: log in with username and password"
	case !ok:
		return ""
	}
	inner, _, _ = strings.Cut(inner, ")")
	path, privileges, ok := strings.Cut(inner, ", ")
	if !ok || !strings.HasPrefix(path, "/") {
		return ""
	}
	alternatives := strings.Split(privileges, "|") // any of them does
	return ". To grant it: " + strings.Join(grantCommands(c.Identity(), path, alternatives[:1]), "; ")
}

func trimAPI(path string) string { return strings.TrimPrefix(path, apiRoot) }

// absent wraps an error that proves absence.
func absent(format string, args ...any) error {
	return fmt.Errorf("%w: %s", kube.ErrAbsent, fmt.Sprintf(format, args...))
}

// missing says whether a call was refused because the thing is not there.
// Proxmox VE has no status for it, only texts. A 404 proves nothing: it comes
// from something else that answers in its place.
func missing(err error) bool {
	apiErr, ok := pve.AsAPIError(err)
	return ok && apiErr.StatusCode != http.StatusNotFound && pve.IsNotFound(err)
}

// saying says whether an error of the API has this text.
func saying(err error, text string) bool {
	if err == nil {
		return false
	}
	return strings.Contains(err.Error(), text)
}

// isDenied says whether an error is one of login or privileges.
func isDenied(err error) bool { return pve.IsNotAuthorized(err) }
