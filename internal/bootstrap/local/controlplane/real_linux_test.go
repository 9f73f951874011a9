// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

// realBinaries answers the programs out of the lab's images.
func realBinaries(t *testing.T) Binaries {
	t.Helper()
	set, err := artifacts.Ensure(t.Context(), func(_ context.Context, phase, message string) { t.Log(phase, message) })
	if err != nil {
		t.Fatal(err)
	}
	store := oci.NewStore(t.TempDir(), oci.Layout{Path: set.ImageLayout})
	binaries, err := ImagesOf("v1.36.2").Binaries(t.Context(), func(ctx context.Context, ref string) (string, error) {
		image, err := store.Unpack(ctx, ref)
		if err != nil {
			return "", err
		}
		return image.Root, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return binaries
}

func startReal(t *testing.T, cfg Config) (*ControlPlane, *kubernetes.Clientset) {
	t.Helper()
	c, err := Start(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	return c, clientFor(t, config)
}

func clientFor(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestControlPlaneContinuesFromItsDataAtAnotherAddress(t *testing.T) {
	t.Parallel()
	audit := filepath.Join(t.TempDir(), "audit.log")
	cfg := Config{
		Dir: t.TempDir(), Address: netip.MustParseAddr("127.0.0.1"), Binaries: realBinaries(t),
		Etcd: Etcd{NoFsync: true}, AuditLog: audit,
	}
	first, client := startReal(t, cfg)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mark"}, StringData: map[string]string{"key": "hunter2"}}
	if _, err := client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The controllers are at work.
	eventually(t, "the default service account is there", func() bool {
		_, err := client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	kubernetes, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || kubernetes.Spec.ClusterIP != first.ServiceIP().String() {
		t.Errorf("the service kubernetes: %v %v, want the address %s", kubernetes, err, first.ServiceIP())
	}
	// A kubelet may not do what an administrator may.
	kubelet, err := first.ClientConfig("system:node:n1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clientFor(t, kubelet).CoreV1().Secrets("default").Get(t.Context(), "mark", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet reads a secret of no pod of its: %v", err)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}

	cfg.Address = netip.MustParseAddr("127.0.0.7")
	second, client := startReal(t, cfg)
	if got := second.Endpoint().Addr(); got != cfg.Address {
		t.Errorf("it listens at %s", got)
	}
	if _, err := client.CoreV1().Secrets("default").Get(t.Context(), "mark", metav1.GetOptions{}); err != nil {
		t.Errorf("the object of before: %v", err)
	}
	log, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), `"name":"mark"`) || strings.Contains(string(log), "hunter2") {
		t.Error("the audit log does not tell of the secret's creation, or tells the secret")
	}
}
