// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package local

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

// providers are the article's five and the two kubeadm ones.
func providers() []capi.Provider {
	return []capi.Provider{
		{Type: clusterctlv1.CoreProviderType, Name: "cluster-api", Version: "v1.14.2"},
		{Type: clusterctlv1.InfrastructureProviderType, Name: "proxmox", Version: "v0.9.0", Credentials: &capi.ProxmoxCredentials{
			URL: "https://127.0.0.1:1", Token: "capi@pve!capi-token", Secret: "secret", Insecure: true,
		}},
		{Type: clusterctlv1.BootstrapProviderType, Name: "talos", Version: "v0.6.12"},
		{Type: clusterctlv1.ControlPlaneProviderType, Name: "talos", Version: "v0.5.13"},
		{Type: clusterctlv1.IPAMProviderType, Name: "in-cluster", Version: "v1.1.0"},
		{Type: clusterctlv1.BootstrapProviderType, Name: "kubeadm", Version: "v1.14.2"},
		{Type: clusterctlv1.ControlPlaneProviderType, Name: "kubeadm", Version: "v1.14.2"},
	}
}

func install(t *testing.T, set *artifacts.Set, config *rest.Config) {
	t.Helper()
	began := time.Now()
	options := capi.InitOptions{Providers: providers(), CertManager: capi.CertManager{Version: "v1.21.0"}, Source: capi.Source{Repository: "file://" + set.Repository}}
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
	install(t, lab(t), config)
}
