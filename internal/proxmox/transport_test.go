// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// fingerprint is the one of the simulator's certificate.
func (r *rig) fingerprint() string {
	r.t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(r.sim.URL(), "https://"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // to see the certificate
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return showFingerprint(sha256.Sum256(conn.ConnectionState().PeerCertificates[0].Raw))
}

func TestTheCertificateIsCheckedAsAsked(t *testing.T) {
	r := newRig(t)
	fingerprint := r.fingerprint()
	other := "AA" + fingerprint[2:]
	if other == fingerprint {
		other = "BB" + fingerprint[2:]
	}
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string // of the error
	}{
		{"by an authority", func(*Config) {}, ""},
		{"by a fingerprint", func(c *Config) { c.CAPEM, c.Fingerprint = "", fingerprint }, ""},
		{"by a fingerprint in small letters", func(c *Config) {
			c.CAPEM, c.Fingerprint = "", strings.ToLower(strings.ReplaceAll(fingerprint, ":", ""))
		}, ""},
		{"by both", func(c *Config) { c.Fingerprint = fingerprint }, ""},
		{"not at all", func(c *Config) { c.CAPEM, c.Insecure = "", true }, ""},
		{"by another fingerprint", func(c *Config) { c.CAPEM, c.Fingerprint = "", other }, "has the SHA-256 fingerprint " + fingerprint},
		{"by the authority and another fingerprint", func(c *Config) { c.Fingerprint = other }, "is not the expected one"},
		{"by the system's authorities, which do not know it", func(c *Config) { c.CAPEM = "" }, "as ca_pem, or the certificate's fingerprint as fingerprint_sha256, which is " + fingerprint},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := r.client(test.change).Version(t.Context())
			if test.want == "" && err != nil {
				t.Fatal(err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestOthersCanCheckTheCertificateAsThisClientDoes(t *testing.T) {
	r := newRig(t)
	for name, change := range map[string]func(*Config){
		"authority":   func(*Config) {},
		"fingerprint": func(c *Config) { c.CAPEM, c.Fingerprint = "", r.fingerprint() },
	} {
		t.Run(name, func(t *testing.T) {
			trusted, err := r.client(change).TrustedCertificates(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.client(func(c *Config) { c.CAPEM = trusted }).Version(t.Context()); err != nil {
				t.Errorf("with %q: %v", trusted, err)
			}
			if name == "fingerprint" && !HasFingerprint(trusted, r.fingerprint()) {
				t.Error("the certificate has not the fingerprint")
			}
		})
	}
	trusted, err := r.client(func(c *Config) { c.CAPEM, c.Insecure = "", true }).TrustedCertificates(t.Context())
	if err != nil || trusted != "" {
		t.Errorf("with the system's authorities: %q, %v", trusted, err)
	}
}

// stranger answers in Proxmox VE's place.
func stranger(t *testing.T, handler http.HandlerFunc) (c *Client) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	c, err := New(Config{
		Endpoint: server.URL, TokenID: "root@pam!terraform", TokenSecret: "s", PollInterval: time.Microsecond,
		CAPEM: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Whoever else answers in Proxmox VE's place proves nothing about a user: the
// state must keep what it has.
func TestAStrangersAnswerProvesNoAbsence(t *testing.T) {
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"a 404":  {http.NotFound, "there is no API of Proxmox VE"},
		"a page": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>please log in</html>")) }, "is not the API of Proxmox VE"},
		"a bad gateway": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "upstream not found", http.StatusBadGateway)
		}, "no answer from Proxmox VE"},
		"half an answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"data":`))
		}, "the answer got lost"},
		"too many calls": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "not found, slow down", http.StatusTooManyRequests)
		}, "429"},
		"a teapot's text": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such user", http.StatusTeapot) }, "418"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := stranger(t, test.handler).ReadAccount(t.Context(), accountSpec())
			if err == nil || missing(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q that proves nothing", err, test.want)
			}
		})
	}
}

func TestAServerWithoutTLSIsRecognised(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	c, err := New(Config{Endpoint: strings.TrimPrefix(server.URL, "http://"), TokenID: "root@pam!terraform", TokenSecret: "s", PollInterval: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Version(t.Context()); err == nil || errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "does not speak TLS") {
		t.Errorf("error is %v", err)
	}
}
