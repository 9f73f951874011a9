// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

// world is two real API servers without controllers, with a cluster of one
// machine on the source.
type world struct {
	t              *testing.T
	ctx            context.Context
	source, target *pivot.Side
}

var addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}}

var kinds = []string{"cluster-api", "infrastructure-proxmox"}

func newWorld(t *testing.T) *world {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx}
	for _, side := range []struct {
		name string
		side **pivot.Side
	}{{"source", &w.source}, {"target", &w.target}} {
		running := plane.Start(t)
		c := running.Client(t)
		running.InstallKinds(t, c, kinds...)
		made, err := pivot.NewSide(ctx, c, side.name)
		if err != nil {
			t.Fatal(err)
		}
		*side.side = made
	}
	w.must(w.source.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kmgt"}}))
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// cluster makes a Cluster with one Machine and a Secret, as its controllers leave
// it when all is well.
func (w *world) cluster(side *pivot.Side, name string, paused bool) *clusterv1.Cluster {
	w.t.Helper()
	now := metav1.Now()
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kmgt", Name: name},
		Spec:       clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "ProxmoxCluster", Name: name}},
	}
	if paused {
		cluster.Spec.Paused = ptr.To(true)
	}
	w.must(side.Client.Create(w.ctx, cluster, client.FieldOwner("clusterctl")))
	cluster.Status.Initialization = clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true), ControlPlaneInitialized: ptr.To(true)}
	cluster.Status.Conditions = []metav1.Condition{
		{Type: clusterv1.ClusterAvailableCondition, Status: metav1.ConditionTrue, Reason: "Available", LastTransitionTime: now},
		{Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue, Reason: "Initialized", LastTransitionTime: now},
	}
	w.must(side.Client.Status().Update(w.ctx, cluster))
	owner := []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: name, UID: cluster.UID}}
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kmgt", Name: name + "-0", OwnerReferences: owner, Labels: map[string]string{clusterv1.ClusterNameLabel: name}, Finalizers: []string{"machine.cluster.x-k8s.io"}},
		Spec: clusterv1.MachineSpec{
			ClusterName: name, ProviderID: "proxmox://3f1a7a51-0000-4000-8000-000000000001",
			Bootstrap:         clusterv1.Bootstrap{DataSecretName: ptr.To("data")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "ProxmoxMachine", Name: name + "-0"},
		},
	}
	w.must(side.Client.Create(w.ctx, machine))
	machine.Status.NodeRef = clusterv1.MachineNodeReference{Name: "node"}
	machine.Status.Addresses = addresses
	w.must(side.Client.Status().Update(w.ctx, machine))
	w.must(side.Client.Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kmgt", Name: name + "-ca", OwnerReferences: owner}, Data: map[string][]byte{"tls.key": []byte("x")}}))
	return cluster
}

// statusController does on the target what Cluster API's controllers do after a
// move: it writes the status anew, since a move carries none.
func (w *world) statusController() {
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan struct{})
	w.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			list := &clusterv1.ClusterList{}
			if w.target.Client.List(ctx, list) == nil {
				for i := range list.Items {
					c := &list.Items[i]
					if ptr.Deref(c.Spec.Paused, false) || len(c.Status.Conditions) > 0 {
						continue
					}
					c.Status.Conditions = []metav1.Condition{{Type: clusterv1.ClusterAvailableCondition, Status: metav1.ConditionTrue, Reason: "Available", LastTransitionTime: metav1.Now()}}
					_ = w.target.Client.Status().Update(ctx, c)
					machines := &clusterv1.MachineList{}
					if w.target.Client.List(ctx, machines) == nil {
						for j := range machines.Items {
							machines.Items[j].Status.NodeRef = clusterv1.MachineNodeReference{Name: "node"}
							machines.Items[j].Status.Addresses = addresses
							_ = w.target.Client.Status().Update(ctx, &machines.Items[j])
						}
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
}

func (w *world) count(side *pivot.Side, kind string) int {
	w.t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(clusterv1.GroupVersion.String())
	list.SetKind(kind + "List")
	w.must(side.Client.List(w.ctx, list))
	return len(list.Items)
}

func TestAMoveBetweenTwoRealAPIServers(t *testing.T) {
	w := newWorld(t)
	w.cluster(w.source, "kmgt", false)
	w.statusController()
	result, err := pivot.Move(w.ctx, w.source, w.target, pivot.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Clusters) != 1 || result.Counts["Machine"] != 1 || result.Counts["Secret"] != 1 || len(result.ProviderIDs) != 1 {
		t.Errorf("result %+v", result)
	}
	if left := w.count(w.source, "Cluster") + w.count(w.source, "Machine"); left > 0 {
		t.Errorf("%d objects are left on the source", left)
	}
	cluster := &clusterv1.Cluster{}
	w.must(w.target.Client.Get(w.ctx, client.ObjectKey{Namespace: "kmgt", Name: "kmgt"}, cluster))
	if ptr.Deref(cluster.Spec.Paused, false) {
		t.Error("the Cluster is paused on the target")
	}

	t.Run("is done when it is asked for again", func(t *testing.T) {
		again, err := pivot.Move(w.ctx, w.source, w.target, pivot.Options{})
		if err != nil || len(again.Clusters) != 1 {
			t.Errorf("%+v, %v", again, err)
		}
	})
	t.Run("is done when the source is gone", func(t *testing.T) {
		again, err := pivot.Move(w.ctx, nil, w.target, pivot.Options{})
		if err != nil || len(again.ProviderIDs) != 1 {
			t.Errorf("%+v, %v", again, err)
		}
	})
}

func TestAMoveIsRefused(t *testing.T) {
	w := newWorld(t)
	tests := []struct {
		name    string
		arrange func()
		is      error
		says    string
	}{
		{"when neither side has a Cluster", func() {}, pivot.ErrNothing, ""},
		{"when the source is paused and the target has no copy", func() { w.cluster(w.source, "kmgt", true) }, pivot.ErrHalfDone, "set spec.paused to false on the source"},
		{"when the source is paused and the target has a copy", func() {
			w.must(w.target.Client.Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kmgt"}}))
			w.cluster(w.target, "kmgt", true)
		}, pivot.ErrHalfDone, "Never un-pause a side that lacks Machines"},
		{"when the target has a copy and the source manages it", func() { w.pause(w.source, false) }, pivot.ErrHalfDone, "never un-pause the copy"},
		{"when the source is empty and the target is paused", func() {
			w.must(w.source.Client.DeleteAllOf(w.ctx, &clusterv1.Cluster{}, client.InNamespace("kmgt")))
		}, pivot.ErrHalfDone, "set spec.paused to false on the target"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.arrange()
			_, err := pivot.Move(w.ctx, w.source, w.target, pivot.Options{})
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want %v that says %q", err, test.is, test.says)
			}
		})
	}
}

func (w *world) pause(side *pivot.Side, paused bool) {
	w.t.Helper()
	cluster := &clusterv1.Cluster{}
	w.must(side.Client.Get(w.ctx, client.ObjectKey{Namespace: "kmgt", Name: "kmgt"}, cluster))
	cluster.Spec.Paused = &paused
	w.must(side.Client.Update(w.ctx, cluster, client.FieldOwner("clusterctl")))
}

func TestAMoveThatIsCancelledBeforeItBeginsChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.cluster(w.source, "kmgt", false)
	machine := &clusterv1.Machine{}
	w.must(w.source.Client.Get(w.ctx, client.ObjectKey{Namespace: "kmgt", Name: "kmgt-0"}, machine))
	machine.Status.NodeRef = clusterv1.MachineNodeReference{}
	w.must(w.source.Client.Status().Update(w.ctx, machine))
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	_, err := pivot.Move(ctx, w.source, w.target, pivot.Options{Report: func(_ context.Context, _, message string) {
		if strings.Contains(message, "node") {
			cancel()
		}
	}})
	if err == nil || !strings.Contains(err.Error(), "node") {
		t.Errorf("error %v, want one about the missing node", err)
	}
	if w.count(w.target, "Cluster") > 0 || w.count(w.source, "Machine") != 1 {
		t.Error("something was moved")
	}
	if state, _, err := pivot.Inspect(w.ctx, w.source, w.target, pivot.Scope{}); state != pivot.NotStarted || err != nil {
		t.Errorf("state %v, %v", state, err)
	}
}
