// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// PKI holds a cluster's authorities. Certificates for servers and clients are
// made from them at every start.
type PKI struct {
	// CA signs the API server, its clients and the kubelets.
	CA KeyPair
	// EtcdCA signs etcd's servers, peers and clients.
	EtcdCA KeyPair
	// FrontProxyCA signs the client of aggregated API servers.
	FrontProxyCA KeyPair
	// ServiceAccountKey is the private key (PEM) that signs service account
	// tokens.
	ServiceAccountKey []byte
}

// KeyPair is a certificate and its private key, both PEM. The key may be
// PKCS#8, PKCS#1 or SEC 1.
type KeyPair struct {
	Cert, Key []byte
}

const (
	caLifetime = 10 * 365 * 24 * time.Hour
	// leafLifetime is a year, as kubeadm has it: leaves are made again at every
	// start.
	leafLifetime = 365 * 24 * time.Hour
	// clockSkew is how far the clocks of client and server may differ.
	clockSkew = 5 * time.Minute
)

// NewPKI makes the authorities of a new cluster (ECDSA P-256).
func NewPKI() (*PKI, error) {
	var p PKI
	for name, pair := range map[string]*KeyPair{"kubernetes": &p.CA, "etcd-ca": &p.EtcdCA, "front-proxy-ca": &p.FrontProxyCA} {
		made, err := newCA(name)
		if err != nil {
			return nil, fmt.Errorf("making the authority %s: %w", name, err)
		}
		*pair = made
	}
	_, key, err := newKey()
	if err != nil {
		return nil, fmt.Errorf("making the service account key: %w", err)
	}
	p.ServiceAccountKey = key
	return &p, nil
}

func (p *PKI) files() map[string]*[]byte {
	return map[string]*[]byte{
		"ca.crt": &p.CA.Cert, "ca.key": &p.CA.Key,
		"etcd-ca.crt": &p.EtcdCA.Cert, "etcd-ca.key": &p.EtcdCA.Key,
		"front-proxy-ca.crt": &p.FrontProxyCA.Cert, "front-proxy-ca.key": &p.FrontProxyCA.Key,
		"sa.key": &p.ServiceAccountKey,
	}
}

// loadPKI reads the authorities in dir; it answers fs.ErrNotExist when there
// are none, or not all.
func loadPKI(dir string) (*PKI, error) {
	var p PKI
	for name, content := range p.files() {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("reading the cluster's authorities: %w", err)
		}
		*content = data
	}
	return &p, nil
}

func (p *PKI) save(dir string) error {
	for name, content := range p.files() {
		if err := writeFile(filepath.Join(dir, name), *content); err != nil {
			return err
		}
	}
	return nil
}

// ensurePKI answers the given authorities, else those in dir, else new ones,
// and has them in dir afterwards.
func ensurePKI(given *PKI, dir string) (*PKI, error) {
	p := given
	if p == nil {
		var err error
		if p, err = loadPKI(dir); errors.Is(err, fs.ErrNotExist) {
			p, err = NewPKI()
		}
		if err != nil {
			return nil, err
		}
	}
	return p, p.save(dir)
}

// authority is a loaded KeyPair that can sign.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func (k KeyPair) load(what string) (*authority, error) {
	block, _ := pem.Decode(k.Cert)
	if block == nil {
		return nil, fmt.Errorf("%s: no PEM certificate", what)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: parsing its certificate: %w", what, err)
	}
	key, err := parseKey(k.Key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return &authority{cert: cert, key: key}, nil
}

func parseKey(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM private key")
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		// The parser's own words may quote what it read.
		return nil, errors.New("the private key is neither SEC 1, PKCS#1 nor PKCS#8")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T cannot sign", key)
	}
	return signer, nil
}

// leaf says what a certificate is for.
type leaf struct {
	name   string
	groups []string
	// sans make it a server's certificate too.
	sans []string
}

// issue makes a certificate that the authority signs.
func (a *authority) issue(l leaf) (KeyPair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return KeyPair{}, fmt.Errorf("making a key for %s: %w", l.name, err)
	}
	template, err := newTemplate(l.name, leafLifetime)
	if err != nil {
		return KeyPair{}, err
	}
	template.Subject.Organization = l.groups
	template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(l.sans) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, san := range l.sans {
		if ip := net.ParseIP(san); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, san)
		}
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("signing the certificate of %s: %w", l.name, err)
	}
	return KeyPair{Cert: certPEM(der), Key: keyPEM}, nil
}

func newCA(name string) (KeyPair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return KeyPair{}, err
	}
	template, err := newTemplate(name, caLifetime)
	if err != nil {
		return KeyPair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign
	template.BasicConstraintsValid = true
	template.IsCA = true
	template.DNSNames = []string{name}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{Cert: certPEM(der), Key: keyPEM}, nil
}

func newTemplate(name string, lifetime time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(lifetime),
	}, nil
}

func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// writeFile writes a file that may be secret, whole or not at all.
func writeFile(path string, data []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, os.Remove(temp.Name())))
	}
	return nil
}
