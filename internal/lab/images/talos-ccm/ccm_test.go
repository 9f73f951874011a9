// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	cloudapi "k8s.io/cloud-provider/api"
)

// signingRequest makes a kubelet's request for a serving certificate.
func signingRequest(t *testing.T, template x509.CertificateRequest, usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeletServingSignerName,
			Username:   "system:node:n1",
			Usages:     usages,
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}
}

func TestRequestsAreDecidedByTheNodesAddresses(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{cloudapi.AnnotationAlphaProvidedIPAddr: "127.0.9.160"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.9.161"}}},
	}
	subject := pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}
	serving := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	request := func(address string) x509.CertificateRequest {
		return x509.CertificateRequest{Subject: subject, DNSNames: []string{"n1"}, IPAddresses: []net.IP{net.ParseIP(address)}}
	}
	foreign := request("127.0.9.160")
	foreign.DNSNames = []string{"kubernetes.default"}
	stranger := request("127.0.9.160")
	stranger.Subject.Organization = []string{"system:masters"}
	for name, test := range map[string]struct {
		template x509.CertificateRequest
		usages   []certificatesv1.KeyUsage
		decision certificatesv1.RequestConditionType // empty: none
	}{
		"the address that the kubelet was given is approved": {request("127.0.9.160"), serving, certificatesv1.CertificateApproved},
		"an address of the node's status is approved":        {request("127.0.9.161"), serving, certificatesv1.CertificateApproved},
		"another machine's address is not decided about":     {request("127.0.9.170"), serving, ""},
		"the API server's name is denied":                    {foreign, serving, certificatesv1.CertificateDenied},
		"another group is denied":                            {stranger, serving, certificatesv1.CertificateDenied},
		"a client certificate is denied":                     {request("127.0.9.160"), []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}, certificatesv1.CertificateDenied},
	} {
		t.Run(name, func(t *testing.T) {
			csr := signingRequest(t, test.template, test.usages...)
			if !undecided(csr) {
				t.Fatal("the request counts as decided")
			}
			client := fake.NewClientset(node, csr)
			err := (&approver{client: client}).decide(t.Context(), csr.DeepCopy())
			if (err != nil) != (test.decision == "") {
				t.Errorf("got %v", err)
			}
			found, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), csr.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var decision certificatesv1.RequestConditionType
			for _, condition := range found.Status.Conditions {
				decision = condition.Type
			}
			if decision != test.decision {
				t.Errorf("the decision is %q, want %q", decision, test.decision)
			}
		})
	}
}

func TestOtherSignersRequestsAreLeftAlone(t *testing.T) {
	csr := &certificatesv1.CertificateSigningRequest{}
	csr.Spec.SignerName, csr.Spec.Username = certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:n1"
	if undecided(csr) {
		t.Error("a request for a client certificate is taken up")
	}
}

func TestANodeWithoutAnExternalCloudProviderIsUnknown(t *testing.T) {
	metadata, err := (&talosCloud{}).InstanceMetadata(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	if err != nil || metadata.ProviderID != "" || len(metadata.NodeAddresses) != 0 {
		t.Errorf("got %v, %v", metadata, err)
	}
}

func TestWithoutATalosConfigurationTheProgramDoesNotStart(t *testing.T) {
	t.Setenv("TALOSCONFIG", t.TempDir()+"/none")
	t.Setenv("TALOS_ENDPOINTS", "")
	if _, err := newCloud(nil); err == nil {
		t.Error("there is a cloud without access to it")
	}
}
