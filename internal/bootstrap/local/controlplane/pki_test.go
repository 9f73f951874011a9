// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAuthoritiesSurviveARestartAndGivenOnesWin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := ensurePKI(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := ensurePKI(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	if string(first.CA.Cert) != string(second.CA.Cert) || string(first.ServiceAccountKey) != string(second.ServiceAccountKey) {
		t.Error("the second start made new authorities")
	}
	given, err := NewPKI()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ensurePKI(given, dir); err != nil {
		t.Fatal(err)
	}
	kept, err := loadPKI(dir)
	if err != nil {
		t.Fatal(err)
	}
	if string(kept.CA.Cert) != string(given.CA.Cert) {
		t.Error("the given authorities were not kept")
	}
	for name := range kept.files() {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
}

func TestPrivateKeysOfEveryCommonFormAreRead(t *testing.T) {
	t.Parallel()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	must := func(der []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	for name, der := range map[string][]byte{
		"EC, SEC 1":       must(x509.MarshalECPrivateKey(ec)),
		"RSA, PKCS#1":     x509.MarshalPKCS1PrivateKey(rsaKey),
		"EC, PKCS#8":      must(x509.MarshalPKCS8PrivateKey(ec)),
		"RSA, PKCS#8":     must(x509.MarshalPKCS8PrivateKey(rsaKey)),
		"Ed25519, PKCS#8": must(x509.MarshalPKCS8PrivateKey(ed)),
	} {
		if _, err := parseKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := parseKey([]byte("hunter2")); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("what is no key gives %v", err)
	}
}

func TestServerCertificateHoldsNamesAndAddresses(t *testing.T) {
	t.Parallel()
	ca, err := newCA("test")
	if err != nil {
		t.Fatal(err)
	}
	authority, err := ca.load("test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.issue(leaf{name: "server", sans: []string{"kubernetes.default.svc", "10.96.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pair.Cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.cert)
	for _, name := range []string{"kubernetes.default.svc", "10.96.0.1"} {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
}

func TestProgramIsFoundInTheImageAndNeverOutsideIt(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "etcd")
	if err := os.WriteFile(outside, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		make func(root string) error
		want string
	}{
		{"in usr/local/bin", func(r string) error { return os.WriteFile(filepath.Join(r, "usr/local/bin/etcd"), nil, 0o700) }, "usr/local/bin/etcd"},
		{"at the top", func(r string) error { return os.WriteFile(filepath.Join(r, "etcd"), nil, 0o700) }, "etcd"},
		{"not executable", func(r string) error { return os.WriteFile(filepath.Join(r, "etcd"), nil, 0o600) }, ""},
		{"a link that leads out", func(r string) error { return os.Symlink(outside, filepath.Join(r, "etcd")) }, ""},
		{"absent", func(string) error { return nil }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(root, "usr/local/bin"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := tt.make(root); err != nil {
				t.Fatal(err)
			}
			got, err := findProgram(root, "etcd")
			if (err == nil) != (tt.want != "") {
				t.Fatalf("got %q, error %v", got, err)
			}
			if tt.want != "" && got != filepath.Join(root, tt.want) {
				t.Errorf("got %q", got)
			}
		})
	}
}
