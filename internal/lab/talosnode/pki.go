// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

// apiCertTTL is the lifetime of a node's own API certificate. Talos renews it
// daily; a lab does not live that long.
const apiCertTTL = 24 * time.Hour

// signer makes certificates of the machine CA. A control plane node has the CA's
// key in its configuration. A worker has only the certificate and asks the
// control plane's trustd with the machine token.
type signer interface {
	sign(token string, opts ...x509.Option) (*x509.KeyPair, error)
}

// caSigner is a control plane node's own signer, which also answers for its
// trustd.
type caSigner struct {
	ca    *x509.CertificateAuthority
	token string
}

var errBadToken = errors.New("trustd: the machine token is not the cluster's")

func newCASigner(cfg config.Provider) (*caSigner, error) {
	pair := cfg.Machine().Security().IssuingCA()
	if pair == nil || len(pair.Key) == 0 {
		return nil, errors.New("the machine configuration has no key of the machine CA")
	}
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(pair)
	if err != nil {
		return nil, fmt.Errorf("load the machine CA: %w", err)
	}
	return &caSigner{ca: ca, token: cfg.Machine().Security().Token()}, nil
}

func (s *caSigner) sign(token string, opts ...x509.Option) (*x509.KeyPair, error) {
	if token != s.token {
		return nil, errBadToken
	}
	now := time.Now()
	pair, err := x509.NewKeyPair(s.ca, append([]x509.Option{
		x509.NotBefore(now.Add(-time.Minute)), x509.NotAfter(now.Add(apiCertTTL)),
	}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate with the machine CA: %w", err)
	}
	return pair, nil
}

// apiPKI is what a node's apid needs: who it is as a server, who it is as a
// client of the other nodes' apid, and whom it trusts.
type apiPKI struct {
	server, client tls.Certificate
	pool           *stdx509.CertPool
}

// newAPIPKI makes a node's API certificates. The names are those of Talos
// (controllers/secrets/api_cert_sans.go): all addresses and names of the node,
// the configured extra ones, and the Service's when Kubernetes may reach the API.
func newAPIPKI(cfg config.Provider, s signer, hostname string, addrs []netip.Addr) (*apiPKI, error) {
	security := cfg.Machine().Security()
	ips, names := []net.IP{}, []string{hostname}
	if short := shortHostname(hostname); short != hostname {
		names = append(names, short)
	}
	for _, a := range addrs {
		ips = append(ips, a.AsSlice())
	}
	for _, san := range security.CertSANs() {
		if a, err := netip.ParseAddr(san); err == nil {
			ips = append(ips, a.AsSlice())
		} else {
			names = append(names, san)
		}
	}
	if access := cfg.Machine().Features().KubernetesTalosAPIAccess(); cfg.Machine().Type().IsControlPlane() && access != nil && access.Enabled() {
		names = append(names, constants.KubernetesTalosAPIServiceName,
			constants.KubernetesTalosAPIServiceName+"."+constants.KubernetesTalosAPIServiceNamespace)
	}
	server, err := s.sign(security.Token(), x509.CommonName(hostname), x509.IPAddresses(ips), x509.DNSNames(names),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}))
	if err != nil {
		return nil, fmt.Errorf("make the API server certificate of %s: %w", hostname, err)
	}
	p := &apiPKI{server: *server.Certificate, pool: stdx509.NewCertPool()}
	if cfg.Machine().Type().IsControlPlane() {
		// only a control plane's apid forwards to other nodes, in the name of its
		// caller: that is the role os:impersonator
		client, err := s.sign(security.Token(), x509.Organization(string(role.Impersonator)),
			x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
		if err != nil {
			return nil, fmt.Errorf("make the API client certificate of %s: %w", hostname, err)
		}
		p.client = *client.Certificate
	}
	if ca := security.IssuingCA(); ca != nil {
		p.pool.AppendCertsFromPEM(ca.Crt)
	}
	for _, ca := range security.AcceptedCAs() {
		p.pool.AppendCertsFromPEM(ca.Crt)
	}
	return p, nil
}

func (p *apiPKI) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{p.server},
		ClientCAs:    p.pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}
}

func (p *apiPKI) clientTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.client}, RootCAs: p.pool}
}
