// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package local

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

func provider(kind clusterctlv1.ProviderType, name, version string) capi.Provider {
	return capi.Provider{Type: kind, Name: name, Version: version}
}

// proxmox answers CAPMOX with an API that it can talk to: it asks for its
// version when it starts. The address is none of a pod's own 127.0.0.1.
func proxmox(t *testing.T) capi.Provider {
	t.Helper()
	s, err := pvesim.Start(t.Context(), pvesim.Options{Address: "127.0.0.2:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	secret, err := s.CreateToken("root@pam", "capi-token", false)
	if err != nil {
		t.Fatal(err)
	}
	p := provider(clusterctlv1.InfrastructureProviderType, "proxmox", "v0.9.0")
	p.Credentials = &capi.ProxmoxCredentials{URL: s.URL(), Token: "root@pam!capi-token", Secret: secret, CA: string(s.CA())}
	return p
}

func install(t *testing.T, config *rest.Config, providers ...capi.Provider) {
	t.Helper()
	began := time.Now()
	options := capi.InitOptions{
		Providers: providers, CertManager: capi.CertManager{Version: "v1.21.0"},
		Source: capi.Source{Repository: "file://" + lab(t).Repository},
	}
	if err := capi.Init(t.Context(), config, options, func(_ context.Context, phase, message string) {
		t.Logf("%6.1fs %s: %s", time.Since(began).Seconds(), phase, message)
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%6.1fs all providers work", time.Since(began).Seconds())
}

func TestAllProvidersAreInstalledUnchangedAndTheirWebhooksAnswer(t *testing.T) {
	t.Parallel()
	r, c := newRuntime(t)
	config := ensure(t, r, c)
	install(t, config,
		provider(clusterctlv1.CoreProviderType, "cluster-api", "v1.14.2"),
		proxmox(t),
		provider(clusterctlv1.BootstrapProviderType, "talos", "v0.6.12"),
		provider(clusterctlv1.ControlPlaneProviderType, "talos", "v0.5.13"),
		provider(clusterctlv1.IPAMProviderType, "in-cluster", "v1.1.0"),
		provider(clusterctlv1.BootstrapProviderType, "kubeadm", "v1.14.2"),
		provider(clusterctlv1.ControlPlaneProviderType, "kubeadm", "v1.14.2"),
	)
	checkWebhooks(t, config)
	checkLogs(t, clientOf(t, config))

	c.Name = "c2"
	beside := ensure(t, r, c)
	install(t, beside,
		provider(clusterctlv1.CoreProviderType, "cluster-api", "v1.14.2"),
		provider(clusterctlv1.BootstrapProviderType, "kubeadm", "v1.14.2"),
		provider(clusterctlv1.ControlPlaneProviderType, "kubeadm", "v1.14.2"),
	)
	checkWebhooks(t, beside)
}

// checkWebhooks has Cluster API's defaulting, validating and conversion webhooks
// called.
func checkWebhooks(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	clusters := func(version string) dynamic.ResourceInterface {
		return client.Resource(schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: version, Resource: "clusters"}).Namespace("default")
	}
	object := func(cidr string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster",
			"metadata": map[string]any{"name": "webhooks"},
			"spec": map[string]any{
				"paused":         true,
				"clusterNetwork": map[string]any{"pods": map[string]any{"cidrBlocks": []any{cidr}}},
				"controlPlaneRef": map[string]any{
					"apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "KubeadmControlPlane", "name": "webhooks",
				},
			},
		}}
	}
	if _, err := clusters("v1beta1").Create(t.Context(), object("no range"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "admission webhook") {
		t.Errorf("a Cluster that is not valid: %v", err)
	}
	if _, err := clusters("v1beta1").Create(t.Context(), object("10.0.0.0/16"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("a Cluster in the older version: %v", err)
	}
	converted, err := clusters("v1beta2").Get(t.Context(), "webhooks", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("the Cluster in the newer version: %v", err)
	}
	if got := converted.GetAPIVersion(); got != "cluster.x-k8s.io/v1beta2" {
		t.Errorf("the Cluster came back as %s", got)
	}
}

// checkLogs reads a pod's log through the API server and the kubelet's API.
func checkLogs(t *testing.T, client *kubernetes.Clientset) {
	t.Helper()
	pods, err := client.CoreV1().Pods("capmox-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 1 {
		t.Fatalf("there are %d pods of CAPMOX", len(pods.Items))
	}
	log, err := client.CoreV1().Pods("capmox-system").GetLogs(pods.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "Starting webhook server") {
		t.Errorf("the log of CAPMOX: %s", log)
	}
}
