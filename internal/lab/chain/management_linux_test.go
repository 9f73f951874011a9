// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package chain

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/controlplane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/network"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/node"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
)

// kubernetesVersion is the release of the bootstrap cluster and of kmgt.
const kubernetesVersion = "v1.36.2"

// startManagement starts a bootstrap cluster out of the parts of the runtime
// "local", inside this process, and answers its administrator's configuration.
func startManagement(ctx context.Context, t *testing.T, store *oci.Store, dir string, addr netip.Addr) *rest.Config {
	t.Helper()
	binaries, err := controlplane.ImagesOf(kubernetesVersion).Binaries(ctx, func(ctx context.Context, ref string) (string, error) {
		image, err := store.Unpack(ctx, ref)
		if err != nil {
			return "", err
		}
		return image.Root, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "egress.sock")
	plane, err := controlplane.Start(ctx, controlplane.Config{
		Dir: filepath.Join(dir, "plane"), Address: addr, Binaries: binaries, EgressSocket: socket, Etcd: controlplane.Etcd{NoFsync: true},
		AuditLog: filepath.Join(dir, "audit.log"),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, plane.Stop) })
	client := func(user string, groups ...string) *rest.Config {
		config, err := plane.ClientConfig(user, groups...)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	pods, err := network.Start(ctx, network.Config{
		Client: client("system:kube-proxy"), APIServer: plane.Endpoint, PodCIDR: controlplane.DefaultPodCIDR,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pods.Stop)
	egress, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- pods.ServeEgress(ctx, egress) }()
	t.Cleanup(func() {
		_ = egress.Close()
		if err := <-served; err != nil {
			t.Errorf("serve the API server's way to pods: %v", err)
		}
	})
	running, err := node.Start(ctx, node.Config{
		Name: "bootstrap", Dir: filepath.Join(dir, "node"), Client: client("system:node:bootstrap", "system:nodes"), Network: pods, Images: store,
		Address: netip.MustParseAddr("192.0.2.10"), KubernetesVersion: kubernetesVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, running.Stop) })
	config, err := plane.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	return config
}

func stop(t *testing.T, end func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := end(ctx); err != nil {
		t.Error(err)
	}
}
