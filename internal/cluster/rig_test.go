// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/contract"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
)

// rig is a real API server with the kinds of all providers and no controllers. Tests share it, each in a namespace of its own.
type rig struct {
	client     *kube.Client
	kubeconfig []byte
}

func newRig(t *testing.T) *rig {
	t.Helper()
	running := plane.Start(t)
	c := running.Client(t)
	running.InstallKinds(t, c, "cluster-api", "infrastructure-proxmox", "bootstrap-talos", "control-plane-talos")
	return &rig{client: c, kubeconfig: running.Kubeconfig}
}

// home is a Cluster named kmgt in a new namespace, and the text of the example for
// it.
func (r *rig) home(t *testing.T, namespace string) Home {
	t.Helper()
	report := func(_ context.Context, phase, message string) { t.Logf("%s: %s", phase, message) }
	return Home{Client: r.client, Namespace: namespace, Name: "kmgt", Report: report, Stable: time.Millisecond, Leases: kube.Leases{Duration: 2 * time.Second, Renewal: 500 * time.Millisecond}}
}

func withWorkers(namespace string) change {
	return func(text string) string {
		return text + replaceAll(workers, "namespace: kmgt", "namespace: "+namespace)
	}
}

// change is one of a manifest's text.
type change func(text string) string

// options is what the example's manifest comes to in the home's namespace.
func (h Home) options(t *testing.T, instance string, changes ...change) ApplyOptions {
	t.Helper()
	text := replaceAll(exampleText(t), "namespace: kmgt", "namespace: "+h.Namespace)
	for _, change := range changes {
		text = change(text)
	}
	manifest, err := Load(text, exampleValues)
	if err != nil {
		t.Fatal(err)
	}
	return ApplyOptions{Instance: instance, Manifest: manifest}
}

// run has providers work in a namespace until the test ends.
func (r *rig) run(t *testing.T, namespace string) *contract.Providers {
	t.Helper()
	return contract.Run(t, r.client, client.ObjectKey{Namespace: namespace, Name: "kmgt"}, r.kubeconfig)
}
