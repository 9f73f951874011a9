// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/config"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/repository"
)

func TestClusterctlReadsEveryProvider(t *testing.T) {
	set := wholeSet(t)
	for _, p := range Providers() {
		t.Run(p.Label, func(t *testing.T) {
			reader := config.NewMemoryReader()
			if err := reader.Init(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			// CAPMOX's components name these without a default.
			for _, name := range []string{"PROXMOX_URL", "PROXMOX_TOKEN", "PROXMOX_SECRET"} {
				reader.Set(name, "x")
			}
			if _, err := reader.AddProvider(p.Name, clusterctlv1.ProviderType(p.Type), set.ComponentsURL(p.Label)); err != nil {
				t.Fatal(err)
			}
			settings, err := config.New(t.Context(), "", config.InjectReader(reader))
			if err != nil {
				t.Fatal(err)
			}
			provider, err := settings.Providers().Get(p.Name, clusterctlv1.ProviderType(p.Type))
			if err != nil {
				t.Fatal(err)
			}
			if got := provider.ManifestLabel(); got != p.Label {
				t.Errorf("its label is %s", got)
			}
			client, err := repository.New(t.Context(), provider, settings)
			if err != nil {
				t.Fatal(err)
			}
			components, err := client.Components().Get(t.Context(), repository.ComponentsOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if components.Version() != p.Version || len(components.Objs()) < 10 {
				t.Errorf("it has version %s and %d objects", components.Version(), len(components.Objs()))
			}
			metadata, err := client.Metadata(p.Version).Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if series := metadata.GetReleaseSeriesForVersion(version.MustParseSemantic(p.Version)); series == nil {
				t.Errorf("its metadata does not know %s", p.Version)
			}
		})
	}
}
