// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// fakeRuntime is a runtime of one cluster, somebody else's control plane.
type fakeRuntime struct {
	status     Status
	kubeconfig []byte
	fails      error
	calls      []string
}

func (r *fakeRuntime) Ensure(context.Context, Cluster, progress.Reporter) ([]byte, error) {
	r.calls = append(r.calls, "ensure")
	r.status = Running
	return r.kubeconfig, r.fails
}

func (r *fakeRuntime) Status(context.Context, string) (Status, error) { return r.status, r.fails }

func (r *fakeRuntime) Kubeconfig(_ context.Context, name string) ([]byte, error) {
	if r.status == NotHere {
		return nil, fmt.Errorf("%s: %w", name, kube.ErrAbsent)
	}
	return r.kubeconfig, r.fails
}

func (r *fakeRuntime) Delete(context.Context, string) error {
	r.calls = append(r.calls, "delete")
	r.status = NotHere
	return nil
}

func spec() Spec {
	return Spec{Name: "boot", Runtime: Local, KubernetesVersion: "v1.36.2", Providers: []capi.Provider{
		{Type: capi.Infrastructure, Name: "proxmox", Version: "v0.9.0", Credentials: &capi.ProxmoxCredentials{Secret: "s3cret"}},
		{Type: capi.Core, Name: "cluster-api", Version: "v1.14.2"},
	}}
}

func TestSpecGoesThroughAnAccessObjectAndBack(t *testing.T) {
	ephemeral, err := spec().Ephemeral()
	if err != nil {
		t.Fatal(err)
	}
	turned := spec()
	slices.Reverse(turned.Providers)
	same, err := turned.Ephemeral()
	if err != nil || string(same.Spec) != string(ephemeral.Spec) {
		t.Errorf("another order of providers gives another specification: %v", err)
	}
	back, err := SpecOf(*ephemeral)
	if err != nil || len(back.Providers) != 2 || back.Providers[1].Credentials.Secret != "s3cret" {
		t.Errorf("got %v, %v", back, err)
	}
	for name, change := range map[string]func(e *kube.Ephemeral){
		"without a specification": func(e *kube.Ephemeral) { e.Spec = nil },
		"of another cluster":      func(e *kube.Ephemeral) { e.Name = "other" },
		"that is broken":          func(e *kube.Ephemeral) { e.Spec = []byte(`{"name": "s3cret`) },
	} {
		changed := *ephemeral
		change(&changed)
		if _, err := SpecOf(changed); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("an access object %s: error is %v", name, err)
		}
	}
}

func TestRetireOfWhatIsNotHereIsDone(t *testing.T) {
	runtime := &fakeRuntime{status: NotHere}
	if err := (Manager{Local: runtime}).Retire(t.Context(), kube.Ephemeral{Name: "boot", Runtime: Local}, nil); err != nil || len(runtime.calls) > 0 {
		t.Errorf("got %v after %v", err, runtime.calls)
	}
	if err := (Manager{}).Retire(t.Context(), kube.Ephemeral{Name: "boot", Runtime: "kind"}, nil); err == nil || !strings.Contains(err.Error(), "kind") {
		t.Errorf("a runtime that is not there: %v", err)
	}
}

func TestRetireNeverDeletesWhatItCannotAsk(t *testing.T) {
	runtime := &fakeRuntime{status: Running, fails: errors.New("the lock is held")}
	if err := (Manager{Local: runtime}).Retire(t.Context(), kube.Ephemeral{Name: "boot", Runtime: Local}, nil); err == nil || slices.Contains(runtime.calls, "delete") {
		t.Errorf("got %v after %v", err, runtime.calls)
	}
}

func TestMarkAndClustersProtectAnEphemeralCluster(t *testing.T) {
	p := plane.Start(t)
	c, err := kube.NewClient(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	runtime := &fakeRuntime{status: Running, kubeconfig: p.Kubeconfig}
	manager := Manager{Local: runtime}
	e := kube.Ephemeral{Name: "boot", Runtime: Local}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "clusters.cluster.x-k8s.io", "annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, a test"}},
		"spec": map[string]any{
			"group": "cluster.x-k8s.io", "scope": "Namespaced", "names": map[string]any{"kind": "Cluster", "plural": "clusters"},
			"versions": []any{map[string]any{"name": "v1beta2", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}}
	if err := c.Create(t.Context(), definition); err != nil {
		t.Fatal(err)
	}
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": map[string]any{"namespace": "default", "name": "kmgt"},
	}}
	if err := kube.Wait(t.Context(), "the kind Cluster", func(ctx context.Context) (bool, string, error) {
		err := c.Create(ctx, cluster.DeepCopy())
		return err == nil, "", err
	}); err != nil {
		t.Fatal(err)
	}

	if err := writeMark(t.Context(), c, mark{owner: "first", finished: true}); err != nil {
		t.Fatal(err)
	}
	if err := claim(t.Context(), c, "second"); !errors.Is(err, ErrForeign) {
		t.Errorf("a finished cluster of another owner in use is claimed: %v", err)
	}
	if err := claim(t.Context(), c, "first"); err != nil {
		t.Errorf("the owner cannot claim it: %v", err)
	}
	if err := claim(t.Context(), c, "second"); err != nil {
		t.Errorf("an unfinished one cannot be taken over: %v", err)
	}
	if err := manager.RetireOwned(t.Context(), e, "first", nil); !errors.Is(err, ErrForeign) {
		t.Errorf("a former owner may delete it: %v", err)
	}
	var owned *OwnedError
	if err := manager.RetireOwned(t.Context(), e, "second", nil); !errors.As(err, &owned) || !slices.Equal(owned.Clusters, []string{"default/kmgt"}) {
		t.Errorf("one that holds a Cluster is deleted: %v", err)
	}
	if slices.Contains(runtime.calls, "delete") {
		t.Fatal("it was deleted")
	}
	if err := c.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	if err := writeMark(t.Context(), c, mark{owner: "second", finished: true}); err != nil {
		t.Fatal(err)
	}
	if err := claim(t.Context(), c, "third"); err != nil {
		t.Errorf("a finished one without Clusters cannot be taken over: %v", err)
	}
	if owner, err := manager.Owner(t.Context(), e); err != nil || owner != "third" {
		t.Errorf("the owner is %q, %v", owner, err)
	}
	if err := manager.RetireOwned(t.Context(), e, "third", nil); err != nil || !slices.Contains(runtime.calls, "delete") {
		t.Errorf("got %v after %v", err, runtime.calls)
	}
}
