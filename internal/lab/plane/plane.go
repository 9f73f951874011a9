// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package plane gives tests a real Kubernetes control plane without nodes:
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler. Pods stay
// Pending in it, everything else is real.
package plane

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/controlplane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// KubernetesVersion is the release that the planes run.
const KubernetesVersion = "v1.36.2"

// Plane is a running control plane.
type Plane struct {
	// Config is a client configuration of an administrator.
	Config *rest.Config
	// Kubeconfig is a kubeconfig of an administrator.
	Kubeconfig []byte
	// Artifacts are the lab's images, provider repository and charts.
	Artifacts *artifacts.Set
}

// Start starts a control plane on a free port of 127.0.0.1 and stops it, and
// removes its data, when the test ends. A failed test's log ends with where the
// programs' logs were.
func Start(t testing.TB) *Plane {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	t.Cleanup(cancel)
	report := progress.Reporter(func(_ context.Context, phase, message string) { t.Logf("%s: %s", phase, message) })
	set, err := artifacts.Ensure(ctx, report)
	if err != nil {
		t.Fatal(err)
	}
	return start(ctx, t, set, report)
}

func start(ctx context.Context, t testing.TB, set *artifacts.Set, report progress.Reporter) *Plane {
	t.Helper()
	binaries, err := programs(ctx, set)
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: its name holds the test's, and etcd's socket paths are short.
	dir, err := os.MkdirTemp("", "plane")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	running, err := controlplane.Start(ctx, controlplane.Config{Dir: dir, Address: netip.MustParseAddr("127.0.0.1"), Binaries: binaries}, report)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stopping, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := running.Stop(stopping); err != nil {
			t.Errorf("stopping the control plane: %v", err)
		}
	})
	config, err := running.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	return &Plane{Config: config, Kubeconfig: running.Kubeconfig(), Artifacts: set}
}

// programs unpacks the control plane's images into the lab's cache.
func programs(ctx context.Context, set *artifacts.Set) (controlplane.Binaries, error) {
	cache, err := artifacts.CacheDir()
	if err != nil {
		return controlplane.Binaries{}, err
	}
	store := oci.NewStore(filepath.Join(cache, "roots"), oci.Layout{Path: set.ImageLayout})
	return controlplane.ImagesOf(KubernetesVersion).Binaries(ctx, func(ctx context.Context, ref string) (string, error) {
		image, err := store.Unpack(ctx, ref)
		if err != nil {
			return "", err
		}
		return image.Root, nil
	})
}
