// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	stdx509 "crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"

	kubelet "github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/node"
)

// kubeletPort is the port of every kubelet's API.
const kubeletPort = 10250

// errNoServingCertificate is what a client of the kubelet's API meets until the
// serving certificate is approved.
var errNoServingCertificate = errors.New("no serving certificate available for the kubelet")

// serving opens the kubelet's API on the node's address. With
// rotate-server-certificates its certificate is asked for from the cluster, and
// nobody but a cloud controller manager approves it; else it is self-signed.
func (k *localKubelet) serving() (kubelet.Serving, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(k.spec.Address, kubeletPort).String())
	if err != nil {
		return kubelet.Serving{}, fmt.Errorf("listen for the kubelet's API: %w", err)
	}
	k.listeners = append(k.listeners, l)
	var current atomic.Pointer[tls.Certificate]
	if k.spec.ServingBySigning {
		k.running.Go(func() { k.requestServing(&current) })
	} else {
		cert, err := k.selfSigned()
		if err != nil {
			return kubelet.Serving{}, err
		}
		current.Store(cert)
	}
	return kubelet.Serving{
		Listener: l, ClientCA: k.spec.Client.CAData,
		Certificate: func() (*tls.Certificate, error) {
			if c := current.Load(); c != nil {
				return c, nil
			}
			return nil, errNoServingCertificate
		},
	}, nil
}

// servingRetry is the pause after a request that was denied or that failed.
const servingRetry = 10 * time.Second

// requestServing asks the signer of kubelet serving certificates until it has one.
func (k *localKubelet) requestServing(current *atomic.Pointer[tls.Certificate]) {
	err := poll(k.ctx, servingRetry, func(ctx context.Context) (bool, error) {
		client, err := kubernetes.NewForConfig(k.spec.Client)
		if err != nil {
			return true, fmt.Errorf("make the kubelet's client: %w", err)
		}
		crt, key, err := requestCertificate(ctx, client, stdx509.CertificateRequest{
			Subject:     pkix.Name{CommonName: "system:node:" + k.spec.Name, Organization: []string{"system:nodes"}},
			DNSNames:    []string{k.spec.Name},
			IPAddresses: []net.IP{k.spec.Address.AsSlice()},
		}, certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth)
		if err != nil {
			return false, err
		}
		pair, err := tls.X509KeyPair(crt, key)
		if err != nil {
			return false, fmt.Errorf("read the kubelet's serving certificate: %w", err)
		}
		current.Store(&pair)
		k.spec.Logf("kubelet: serving certificate issued")
		return true, nil
	})
	if err != nil && k.ctx.Err() == nil {
		k.spec.Logf("kubelet: serving certificate: %v", err)
	}
}

// selfSigned is the certificate that a kubelet makes when nothing is configured.
func (k *localKubelet) selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the kubelet's serving key: %w", err)
	}
	now := time.Now()
	template := &stdx509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: k.spec.Name + "@" + fmt.Sprint(now.Unix())},
		NotBefore:    now.Add(-time.Minute), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: stdx509.KeyUsageDigitalSignature, ExtKeyUsage: []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth},
		DNSNames: []string{k.spec.Name}, IPAddresses: []net.IP{k.spec.Address.AsSlice()},
	}
	der, err := stdx509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the kubelet's serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
