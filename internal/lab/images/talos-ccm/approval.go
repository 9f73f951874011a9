// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	cloudapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"
)

// approver decides about kubelets' requests for serving certificates.
type approver struct {
	client kubernetes.Interface
}

const (
	retryWatch  = 10 * time.Second
	userPrefix  = "system:node:"
	nodesGroup  = "system:nodes"
	watchLength = 300 // seconds
)

// run watches until the context ends.
func (a *approver) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := a.watch(ctx); err != nil {
			klog.ErrorS(err, "Failed to watch certificate signing requests")
		}
	}, retryWatch)
}

func (a *approver) watch(ctx context.Context) error {
	timeout := int64(watchLength)
	watcher, err := a.client.CertificatesV1().CertificateSigningRequests().Watch(ctx, metav1.ListOptions{TimeoutSeconds: &timeout})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-watcher.ResultChan():
			if !open {
				return nil
			}
			if request, ok := event.Object.(*certificatesv1.CertificateSigningRequest); ok && undecided(request) {
				if err := a.decide(ctx, request.DeepCopy()); err != nil {
					klog.ErrorS(err, "Failed to decide about a certificate signing request", "name", request.Name)
				}
			}
		}
	}
}

func undecided(request *certificatesv1.CertificateSigningRequest) bool {
	return request.Spec.SignerName == certificatesv1.KubeletServingSignerName &&
		strings.HasPrefix(request.Spec.Username, userPrefix) &&
		len(request.Status.Conditions) == 0 && request.Status.Certificate == nil
}

// decide approves a request of a node for its own addresses, and denies one
// that no kubelet makes. About a node that is not there yet nothing is decided.
func (a *approver) decide(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	parsed, err := parse(request.Spec.Request)
	if err != nil {
		return err
	}
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now(),
		Reason:  "Approved by TalosCloudControllerManager",
		Message: "This CSR was approved by Talos Cloud Controller Manager",
	}
	if reason := refuse(parsed, request.Spec.Usages); reason != nil {
		condition.Type = certificatesv1.CertificateDenied
		condition.Reason = "Denied by TalosCloudControllerManager"
		condition.Message = "This CSR was denied by Talos Cloud Controller Manager, Reason: " + reason.Error()
	} else if err := a.checkAddresses(ctx, parsed); err != nil {
		return err
	}
	request.Status.Conditions = append(request.Status.Conditions, condition)
	_, err = a.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{})
	if err == nil {
		klog.InfoS("Decided about a certificate signing request", "name", request.Name, "decision", condition.Type)
	}
	return err
}

func parse(request []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("it holds no certificate request")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// refuse says what in a request no kubelet asks for, by the rules of the signer
// kubernetes.io/kubelet-serving.
func refuse(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	allowed := []certificatesv1.KeyUsage{certificatesv1.UsageKeyEncipherment, certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	unexpected := func(u certificatesv1.KeyUsage) bool { return !slices.Contains(allowed, u) }
	reserved := func(name string) bool { return name == "kubernetes" || strings.HasPrefix(name, "kubernetes.") }
	switch {
	case len(request.DNSNames) == 0 && len(request.IPAddresses) == 0:
		return errors.New("DNS or IP subjectAltName is required")
	case slices.ContainsFunc(request.DNSNames, reserved):
		return errors.New("DNS subjectAltNames are not allowed")
	case len(request.EmailAddresses) > 0:
		return errors.New("email subjectAltNames are not allowed")
	case len(request.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	case !slices.Equal(request.Subject.Organization, []string{nodesGroup}):
		return errors.New("subject organization is not system:nodes")
	case !strings.HasPrefix(request.Subject.CommonName, userPrefix):
		return errors.New("subject common name does not begin with system:node: ")
	case slices.ContainsFunc(usages, unexpected),
		!slices.Contains(usages, certificatesv1.UsageServerAuth), !slices.Contains(usages, certificatesv1.UsageDigitalSignature):
		return errors.New("key usage does not match")
	}
	return nil
}

// checkAddresses compares the request with what the node says of itself.
func (a *approver) checkAddresses(ctx context.Context, request *x509.CertificateRequest) error {
	name := strings.TrimPrefix(request.Subject.CommonName, userPrefix)
	node, err := a.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading node %s: %w", name, err)
	}
	addresses := strings.Split(node.Annotations[cloudapi.AnnotationAlphaProvidedIPAddr], ",")
	for _, address := range node.Status.Addresses {
		addresses = append(addresses, address.Address)
	}
	foreign := func(ip net.IP) bool { return !slices.Contains(addresses, ip.String()) }
	if i := slices.IndexFunc(request.IPAddresses, foreign); i >= 0 {
		return fmt.Errorf("%s is not an address of node %s", request.IPAddresses[i], name)
	}
	return nil
}
