// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talos

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
)

// talosconfig makes one with a client certificate of the given end.
func talosconfig(t *testing.T, ca string, end time.Time, endpoints ...string) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-2 * 365 * 24 * time.Hour), NotAfter: end}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	crt := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
	config := &clientconfig.Config{Context: "kmgt", Contexts: map[string]*clientconfig.Context{"kmgt": {CA: ca, Crt: crt, Endpoints: endpoints}}}
	content, err := config.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestATalosconfigIsStillGood(t *testing.T) {
	now := time.Now()
	year := 365 * 24 * time.Hour
	fresh := talosconfig(t, "ca", now.Add(year), "10.0.0.1", "10.0.0.2")
	tests := map[string]struct {
		held []byte
		want bool
	}{
		"with another certificate of the same cluster": {talosconfig(t, "ca", now.Add(year-time.Hour), "10.0.0.1", "10.0.0.2"), true},
		"with its endpoints in another order":          {talosconfig(t, "ca", now.Add(year), "10.0.0.2", "10.0.0.1"), true},
		"not with other endpoints":                     {talosconfig(t, "ca", now.Add(year), "10.0.0.1"), false},
		"not with another authority":                   {talosconfig(t, "other", now.Add(year), "10.0.0.1", "10.0.0.2"), false},
		"not near its end":                             {talosconfig(t, "ca", now.Add(60*24*time.Hour), "10.0.0.1", "10.0.0.2"), false},
		"not after its end":                            {talosconfig(t, "ca", now.Add(-time.Hour), "10.0.0.1", "10.0.0.2"), false},
		"not when it cannot be read":                   {[]byte("{"), false},
		"not when there is none":                       {nil, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := TalosconfigStillGood(test.held, fresh, now); got != test.want {
				t.Errorf("still good: %v, want %v", got, test.want)
			}
		})
	}
}
