// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// certificate answers the server's certificate for an address and makes it, and
// the cluster's authority, where they are missing.
func (st *state) certificate(addr net.Addr, now time.Time) (tls.Certificate, error) {
	fail := func(err error) (tls.Certificate, error) {
		return tls.Certificate{}, fmt.Errorf("making the certificate of the Proxmox VE simulator: %w", err)
	}
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return fail(err)
	}
	if pair, err := tls.X509KeyPair(st.Cert, st.Key); err == nil && pair.Leaf.VerifyHostname(host) == nil {
		return pair, nil
	}
	if st.CA == nil {
		if st.CA, st.CAKey, err = newAuthority(now); err != nil {
			return fail(err)
		}
	}
	ca, err := tls.X509KeyPair(st.CA, st.CAKey)
	if err != nil {
		return fail(err)
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(host)}
	ips = slices.DeleteFunc(ips, func(ip net.IP) bool { return ip == nil })
	leaf := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "pve1.lab.invalid", Organization: []string{"Proxmox Virtual Environment"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(2, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: ips, DNSNames: []string{"localhost", "pve1", "pve1.lab.invalid"},
	}
	if st.Cert, st.Key, err = issue(leaf, ca.Leaf, ca.PrivateKey); err != nil {
		return fail(err)
	}
	pair, err := tls.X509KeyPair(st.Cert, st.Key)
	if err != nil {
		return fail(err)
	}
	return pair, nil
}

func newAuthority(now time.Time) (cert, key []byte, err error) {
	return issue(&x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Proxmox Virtual Environment"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}, nil, nil)
}

// issue signs a certificate with a new key; without a parent it signs itself.
func issue(template, parent *x509.Certificate, signer any) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

func serial() *big.Int { return new(big.Int).SetBytes(randomBytes(16)) }
