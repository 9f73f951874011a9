// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// servingIssued tells whether the kubelet has a certificate for serving.
func servingIssued(ctx context.Context, kube *kubernetes.Clientset) error {
	list, err := kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, r := range list.Items {
		if r.Spec.SignerName == certificatesv1.KubeletServingSignerName && len(r.Status.Certificate) > 0 {
			return nil
		}
	}
	return fmt.Errorf("%d requests, and none for serving is issued", len(list.Items))
}

func TestEachControllerOfTheCloudControllerManagerDoesItsPart(t *testing.T) {
	t.Parallel()
	c, g, kube, _ := bootstrapped(t)
	name := g.vm.Name
	c.install(chartCilium)
	c.install(chartCCM, "enabledControllers: [node-csr-approval]")
	eventually(t, 3*time.Minute, "see the Node ready and its serving certificate issued", func(ctx context.Context) error {
		ready, _, err := nodeIs(ctx, kube, name)
		if err == nil && !ready {
			err = errors.New("not ready")
		}
		return errors.Join(err, servingIssued(ctx, kube))
	})
	if _, initialized, err := nodeIs(t.Context(), kube, name); err != nil || initialized {
		t.Fatalf("the Node is initialized without the controller cloud-node (%v)", err)
	}

	c.install(chartCCM)
	eventually(t, 3*time.Minute, "see the Node initialized", func(ctx context.Context) error {
		_, initialized, err := nodeIs(ctx, kube, name)
		if err == nil && !initialized {
			err = errors.New("not initialized")
		}
		return err
	})
	node, err := kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(node.Spec.ProviderID, "proxmox://") {
		t.Errorf("its provider id is %q", node.Spec.ProviderID)
	}
	own := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: g.current().address().String()}
	if !slices.Contains(node.Status.Addresses, own) {
		t.Errorf("its addresses are %v", node.Status.Addresses)
	}
	if got := node.Labels["node.cloudprovider.kubernetes.io/platform"]; got != "nocloud" {
		t.Errorf("its platform is %q", got)
	}
}

func TestACrashingAgentLeavesTheNodeNotReady(t *testing.T) {
	t.Parallel()
	c, g, kube, _ := bootstrapped(t)
	c.install(chartCilium, "extraConfig: {agent-health-port: '99999'}") // is no port
	eventually(t, 3*time.Minute, "see the agent restart after its error", func(ctx context.Context) error {
		p, err := podOf(ctx, kube, "k8s-app=cilium")
		if err != nil {
			return err
		}
		for _, s := range p.Status.ContainerStatuses {
			if last := s.LastTerminationState.Terminated; last != nil && strings.Contains(last.Message, "invalid port") && s.RestartCount > 0 {
				return nil
			}
		}
		return fmt.Errorf("status is %+v", p.Status)
	})
	c.notReady(kube, g.vm.Name)
	eventually(t, time.Minute, "see the operator taint the Node", func(ctx context.Context) error {
		node, err := kube.CoreV1().Nodes().Get(ctx, g.vm.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == "node.cilium.io/agent-not-ready" }) {
			return fmt.Errorf("taints are %v", node.Spec.Taints)
		}
		return nil
	})
}
