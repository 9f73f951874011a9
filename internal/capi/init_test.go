// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
)

// withCertManagerKinds creates cert-manager's definitions without its webhooks,
// so that it seems to work: a plane runs no pods.
func withCertManagerKinds(t *testing.T, c *kube.Client, repository string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "cert-manager", "v1.21.0", "cert-manager.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := kube.ParseDocuments(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		if _, err := c.ApplyObject(t.Context(), object, kube.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.EnsureNamespace(t.Context(), "cert-manager"); err != nil {
		t.Fatal(err)
	}
}

// initUntilPods runs Init on a plane, where it must come as far as waiting for
// pods that no node runs.
func initUntilPods(t *testing.T, p *plane.Plane, options InitOptions) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	late := fmt.Errorf("waited long enough for pods")
	err := Init(ctx, p.Config, options, func(_ context.Context, phase, message string) {
		t.Log(phase, message)
		if phase == "waiting-for-providers" {
			time.AfterFunc(3*time.Second, func() { cancel(late) })
		}
	})
	if err == nil || !strings.Contains(err.Error(), "pods available") || !strings.Contains(err.Error(), late.Error()) {
		t.Fatalf("error is %v, want one that waits for pods", err)
	}
	if !strings.Contains(err.Error(), "not scheduled") {
		t.Errorf("the error does not say what the pods wait for: %v", err)
	}
}

func TestInitOnARealAPIServer(t *testing.T) {
	p := plane.Start(t)
	c, err := kube.NewClient(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	withCertManagerKinds(t, c, p.Artifacts.Repository)
	providers := talosOnProxmox()
	providers[0].Credentials = &ProxmoxCredentials{URL: "https://pve.example:8006", Token: "capi@pve!capi-token", Secret: "first-secret", CA: "an authority"}
	options := InitOptions{
		Providers:   providers,
		CertManager: CertManager{Version: "v1.21.0"},
		Source:      Source{Repository: "file://" + p.Artifacts.Repository},
	}
	initUntilPods(t, p, options)

	t.Run("the inventory names all providers", func(t *testing.T) {
		found, err := Inventory(t.Context(), p.Config)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range providers {
			if !slices.ContainsFunc(found, func(i Installed) bool {
				return i.Label() == want.Label() && i.Version == want.Version && i.Method == Clusterctl
			}) {
				t.Errorf("%s is not in %v", want, found)
			}
		}
		if err := Ready(t.Context(), p.Config, providers); err != nil {
			t.Error(err)
		}
	})
	t.Run("a second run changes nothing", func(t *testing.T) {
		before := generations(t, c)
		initUntilPods(t, p, options)
		if after := generations(t, c); before != after {
			t.Errorf("Deployments changed from %s to %s", before, after)
		}
	})
	t.Run("a new secret reaches the manager and restarts it", func(t *testing.T) {
		before := generations(t, c)
		providers[0].Credentials.Secret = "second-secret"
		initUntilPods(t, p, options)
		secret := &corev1.Secret{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "capmox-system", Name: "capmox-manager-credentials"}, secret); err != nil {
			t.Fatal(err)
		}
		if string(secret.Data["secret"]) != "second-secret" {
			t.Error("the Secret holds the old one")
		}
		if after := generations(t, c); before == after {
			t.Error("no Deployment changed")
		}
	})
	t.Run("clusterctl's client for a move reads the same inventory", func(t *testing.T) {
		moving, err := ClusterClient(t.Context(), p.Config)
		if err != nil {
			t.Fatal(err)
		}
		list, err := moving.ProviderInventory().List(t.Context())
		if err != nil || len(list.Items) != len(providers) {
			t.Errorf("its inventory is %v, %v", list, err)
		}
	})
	t.Run("there are no Clusters", func(t *testing.T) {
		if names, err := Clusters(t.Context(), p.Config); err != nil || len(names) != 0 {
			t.Errorf("got %v, %v", names, err)
		}
	})
}

// generations tells one state of all Deployments from another.
func generations(t *testing.T, c *kube.Client) string {
	t.Helper()
	list := &appsv1.DeploymentList{}
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, d := range list.Items {
		text = append(text, fmt.Sprintf("%s@%d", d.Name, d.Generation))
	}
	slices.Sort(text)
	return strings.Join(text, " ")
}
