// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Timeouts bound how long Proxmox VE may be silent. There is none for a whole
// call, which would cut the upload of an image.
type Timeouts struct {
	// Connect is for the connection and for its TLS; zero means 10 seconds.
	Connect time.Duration
	// Response is for the first byte of an answer; zero means one minute, since
	// Proxmox VE itself gives up a call that it forwards to another node after
	// 30 seconds.
	Response time.Duration
	// Retry is how long the waits between the attempts of one call last
	// together; zero means 16 times [Config.PollInterval].
	Retry time.Duration
}

// newTransport makes the HTTP transport. HTTP/2 is off, because Proxmox VE older
// than 8.4 says what is wrong in the reason phrase only, which HTTP/2 drops.
func newTransport(config Config, seen *peer) (http.RoundTripper, error) {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: config.Insecure} //nolint:gosec // the user's own choice, off by default
	if config.CAPEM != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(config.CAPEM)) {
			return nil, errors.New("the certificate authority for Proxmox VE holds no certificate in PEM form")
		}
		tlsConfig.RootCAs = pool
	}
	if config.Fingerprint != "" {
		want, err := parseFingerprint(config.Fingerprint)
		if err != nil {
			return nil, err
		}
		if config.CAPEM == "" {
			tlsConfig.InsecureSkipVerify = true // the fingerprint takes the authority's place
		}
		tlsConfig.VerifyConnection = func(state tls.ConnectionState) error { return seen.check(state, want) }
	}
	orElse := func(d, otherwise time.Duration) time.Duration {
		if d > 0 {
			return d
		}
		return otherwise
	}
	connect := orElse(config.Timeouts.Connect, 10*time.Second)
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       tlsConfig,
		TLSHandshakeTimeout:   connect,
		ResponseHeaderTimeout: orElse(config.Timeouts.Response, time.Minute),
		IdleConnTimeout:       30 * time.Second,
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
	}, nil
}

// peer remembers the certificate that has the expected fingerprint.
type peer struct {
	leaf atomic.Pointer[x509.Certificate]
}

// fingerprintError is the refusal of a certificate that is not the expected one.
type fingerprintError struct{ want, got string }

func (e *fingerprintError) Error() string {
	return fmt.Sprintf("the certificate has the SHA-256 fingerprint %s, not %s", e.got, e.want)
}

func (p *peer) check(state tls.ConnectionState, want [sha256.Size]byte) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server shows no certificate")
	}
	leaf := state.PeerCertificates[0]
	if got := sha256.Sum256(leaf.Raw); got != want {
		return &fingerprintError{want: showFingerprint(want), got: showFingerprint(got)}
	}
	p.leaf.Store(leaf)
	return nil
}

// parseFingerprint reads a SHA-256 fingerprint in the notations that are about:
// with and without colons, upper and lower case, after "sha256:".
func parseFingerprint(text string) (sum [sha256.Size]byte, err error) {
	plain := strings.ToLower(strings.TrimSpace(text))
	plain = strings.TrimPrefix(strings.TrimPrefix(plain, "sha256"), ":")
	plain = strings.TrimPrefix(strings.TrimPrefix(plain, " fingerprint"), "=") // as openssl prints it
	raw, err := hex.DecodeString(strings.NewReplacer(":", "", " ", "").Replace(plain))
	if err != nil || len(raw) != sha256.Size {
		return sum, fmt.Errorf("%q is no SHA-256 fingerprint: 32 pairs of hexadecimal digits with colons between them, as Proxmox VE shows it "+
			"under the node's certificates (pve-ssl.pem)", text)
	}
	return [sha256.Size]byte(raw), nil
}

// CheckFingerprint refuses what is no SHA-256 fingerprint.
func CheckFingerprint(text string) error {
	_, err := parseFingerprint(text)
	return err
}

// showFingerprint writes a fingerprint as Proxmox VE does: "AB:CD:...".
func showFingerprint(sum [sha256.Size]byte) string {
	pairs := make([]string, len(sum))
	for i, b := range sum {
		pairs[i] = strings.ToUpper(hex.EncodeToString([]byte{b}))
	}
	return strings.Join(pairs, ":")
}

// HasFingerprint says whether the first certificate of a PEM text has this
// fingerprint.
func HasFingerprint(certificates, fingerprint string) bool {
	want, err := parseFingerprint(fingerprint)
	block, _ := pem.Decode([]byte(certificates))
	return err == nil && block != nil && sha256.Sum256(block.Bytes) == want
}

// TrustedCertificates answers the certificates, PEM, that others can check the
// API's against as this client does: [Config.CAPEM], or with a fingerprint alone
// the certificate that has it; empty where the system's authorities count.
func (c *Client) TrustedCertificates(ctx context.Context) (string, error) {
	if c.config.CAPEM != "" || c.config.Fingerprint == "" {
		return strings.TrimSpace(c.config.CAPEM), nil
	}
	if c.peer.leaf.Load() == nil {
		if _, err := c.Version(ctx); err != nil {
			return "", err
		}
	}
	leaf := c.peer.leaf.Load()
	if leaf == nil {
		return "", errors.New("the API's certificate was not seen")
	}
	return strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}))), nil
}
