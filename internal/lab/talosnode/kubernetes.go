// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	stdx509 "crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/siderolabs/crypto/x509"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate/csr"
)

// adminTTL is the lifetime of the administrator's certificates.
const adminTTL = 24 * time.Hour

// kubeConfig is a client configuration for the cluster with the given client
// certificate. It dials like KubePrism.
func (n *node) kubeConfig(crt, key []byte) *rest.Config {
	var ca []byte
	if pair := n.cfg.Cluster().IssuingCA(); pair != nil {
		ca = append(ca, pair.Crt...)
	}
	for _, accepted := range n.cfg.Cluster().AcceptedCAs() {
		ca = append(ca, accepted.Crt...)
	}
	return &rest.Config{
		Host:            "https://localhost",
		TLSClientConfig: rest.TLSClientConfig{CAData: ca, CertData: crt, KeyData: key},
		QPS:             50, Burst: 100,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return n.dialAPI(ctx) },
	}
}

// kubeClientCert signs a client certificate with the Kubernetes CA.
func (n *node) kubeClientCert(commonName string, groups ...string) (*x509.KeyPair, error) {
	pair := n.cfg.Cluster().IssuingCA()
	if pair == nil || len(pair.Key) == 0 {
		return nil, errors.New("the machine configuration has no key of the Kubernetes CA")
	}
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(pair)
	if err != nil {
		return nil, fmt.Errorf("load the Kubernetes CA: %w", err)
	}
	now := time.Now()
	out, err := x509.NewKeyPair(ca, x509.CommonName(commonName), x509.Organization(groups...),
		x509.NotBefore(now.Add(-time.Minute)), x509.NotAfter(now.Add(adminTTL)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature|stdx509.KeyUsageKeyEncipherment),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	if err != nil {
		return nil, fmt.Errorf("sign the client certificate of %s: %w", commonName, err)
	}
	return out, nil
}

// adminConfig is Talos's own access to the cluster, which only control plane
// nodes have.
func (n *node) adminConfig() (*rest.Config, error) {
	pair, err := n.kubeClientCert("talos:admin", "system:masters")
	if err != nil {
		return nil, err
	}
	return n.kubeConfig(pair.CrtPEM, pair.KeyPEM), nil
}

// adminKubeconfig is what `talosctl kubeconfig` gets: it names the cluster's
// endpoint.
func (n *node) adminKubeconfig() ([]byte, error) {
	settings := n.cfg.Cluster().AdminKubeconfig()
	pair, err := n.kubeClientCert(settings.CommonName(), settings.CertOrganization())
	if err != nil {
		return nil, err
	}
	cluster := n.cfg.Cluster().Name()
	user := "admin@" + cluster
	c := clientcmdapi.NewConfig()
	c.Clusters[cluster] = &clientcmdapi.Cluster{
		Server: n.cfg.Cluster().Endpoint().String(), CertificateAuthorityData: n.cfg.Cluster().IssuingCA().Crt,
	}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.CrtPEM, ClientKeyData: pair.KeyPEM}
	c.Contexts[user] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: user}
	c.CurrentContext = user
	return clientcmd.Write(*c)
}

// kubeletConfig is the kubelet's identity. The first time it is asked for from
// the cluster with the bootstrap token (TLS bootstrap), as every kubelet does;
// controller-manager approves and signs it. Later boots find it on the disk.
func (n *node) kubeletConfig(ctx context.Context) (*rest.Config, error) {
	path := filepath.Join(n.root(), filepath.FromSlash(kubeletPath), "pki", "kubelet-client-current.pem")
	if pem, err := os.ReadFile(path); err == nil && usable(pem) {
		return n.kubeConfig(pem, pem), nil
	}
	token := n.cfg.Cluster().Token()
	config := n.kubeConfig(nil, nil)
	config.BearerToken = token.ID() + "." + token.Secret()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the kubelet's bootstrap client: %w", err)
	}
	name := "system:node:" + n.nodeName()
	crt, key, err := requestCertificate(ctx, client, stdx509.CertificateRequest{
		Subject: pkix.Name{CommonName: name, Organization: []string{"system:nodes"}},
	}, certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth)
	if err != nil {
		return nil, fmt.Errorf("bootstrap the kubelet's certificate %s: %w", name, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the kubelet's folder: %w", err)
	}
	if err := os.WriteFile(path, append(crt, key...), 0o600); err != nil {
		return nil, fmt.Errorf("write the kubelet's certificate: %w", err)
	}
	return n.kubeConfig(crt, key), nil
}

// usable says whether a file with certificate and key holds a valid one.
func usable(pemBytes []byte) bool {
	pair, err := tls.X509KeyPair(pemBytes, pemBytes)
	return err == nil && pair.Leaf != nil && time.Now().Add(time.Hour).Before(pair.Leaf.NotAfter)
}

// requestCertificate makes a key, asks a cluster's signer for its certificate
// and waits until it is issued.
func requestCertificate(ctx context.Context, client kubernetes.Interface, template stdx509.CertificateRequest, signerName string, usage certificatesv1.KeyUsage) (crt, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := stdx509.CreateCertificateRequest(rand.Reader, &template, crypto.Signer(private))
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate request: %w", err)
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "", signerName, nil,
		[]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}, private)
	if err != nil {
		return nil, nil, fmt.Errorf("send a certificate request: %w", err)
	}
	if crt, err = csr.WaitForCertificate(ctx, client, name, uid); err != nil {
		return nil, nil, fmt.Errorf("wait for the certificate request %s: %w", name, err)
	}
	encoded, err := stdx509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return crt, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}), nil
}
