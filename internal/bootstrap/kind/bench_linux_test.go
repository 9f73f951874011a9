// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kind

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// BenchmarkFromNothingToFiveProviders makes an ephemeral cluster with the five
// providers of a Talos cluster on Proxmox VE by either runtime, out of the same
// OCI layout: nothing is there before but the layout, and kind's node image.
func BenchmarkFromNothingToFiveProviders(b *testing.B) {
	set, err := artifacts.Ensure(b.Context(), func(_ context.Context, _, message string) { b.Log(message) })
	if err != nil {
		b.Fatal(err)
	}
	providers := fiveProviders(b)
	state := b.TempDir()
	manager := bootstrap.Manager{bootstrap.Local: local.Runtime{State: state}, bootstrap.Kind: Runtime{State: state}}
	for _, runtime := range []string{bootstrap.Local, bootstrap.Kind} {
		b.Run(runtime, func(b *testing.B) {
			spec := bootstrap.Spec{
				Name: fmt.Sprintf("capi-bench-%d", os.Getpid()), Runtime: runtime, KubernetesVersion: artifacts.KubernetesVersion,
				Images: []string{"oci-layout:" + set.ImageLayout}, Repository: "file://" + set.Repository,
				CertManager: capi.CertManager{Version: artifacts.CertManagerVersion}, Providers: providers,
			}
			if runtime == bootstrap.Kind {
				spec.Kind.NodeImage = os.Getenv(imageVariable)
				realEngine(b)
			}
			for b.Loop() {
				if _, err := manager.Ensure(b.Context(), spec, nil); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := manager[runtime].Delete(context.Background(), spec.Name); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// fiveProviders are those of the article; CAPMOX finds a Proxmox VE at an address
// that containers reach as well.
func fiveProviders(b *testing.B) []capi.Provider {
	b.Helper()
	// No packet is sent: this asks for the address that this machine has outside.
	connection, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		b.Skip("this machine has no address but its own: ", err)
	}
	host := connection.LocalAddr().(*net.UDPAddr).IP.String()
	if err := connection.Close(); err != nil {
		b.Fatal(err)
	}
	s, err := pvesim.Start(b.Context(), pvesim.Options{Address: net.JoinHostPort(host, "0")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	secret, err := s.CreateToken("root@pam", "capi-token", false)
	if err != nil {
		b.Fatal(err)
	}
	return []capi.Provider{
		{Type: capi.Core, Name: "cluster-api", Version: artifacts.ClusterAPIVersion},
		{Type: capi.Bootstrap, Name: "talos", Version: artifacts.CABPTVersion},
		{Type: capi.ControlPlane, Name: "talos", Version: artifacts.CACPPTVersion},
		{Type: capi.IPAM, Name: "in-cluster", Version: artifacts.IPAMVersion},
		{Type: capi.Infrastructure, Name: "proxmox", Version: artifacts.ProxmoxVersion, Credentials: &capi.ProxmoxCredentials{
			URL: s.URL(), Token: "root@pam!capi-token", Secret: secret, CA: string(s.CA()),
		}},
	}
}
