// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
)

// pivotLab is two management clusters without controllers, each behind a proxy that
// can fail, for tests of moves through the real CLI.
type pivotLab struct {
	t     *testing.T
	sides map[string]*pivotLabSide
}

type pivotLabSide struct {
	*kube.Client
	*plane.Proxy
	// kubeconfig leads through the proxy.
	kubeconfig string
}

func newPivotLab(t *testing.T) *pivotLab {
	t.Helper()
	cliPath(t)
	lab := &pivotLab{t: t, sides: map[string]*pivotLabSide{}}
	for _, name := range []string{"source", "target"} {
		running := plane.Start(t)
		side := &pivotLabSide{Client: running.Client(t), Proxy: running.Proxy(t), kubeconfig: filepath.Join(t.TempDir(), name)}
		running.InstallKinds(t, side.Client, "cluster-api", "infrastructure-proxmox")
		if err := os.WriteFile(side.kubeconfig, side.Proxy.Kubeconfig(), 0o600); err != nil {
			t.Fatal(err)
		}
		lab.sides[name] = side
		lab.attend(side.Client)
	}
	return lab
}

// attend writes the status of every Cluster that is not paused, as its controllers
// do when all is well, until the test ends.
func (lab *pivotLab) attend(c *kube.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	lab.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			// Whatever fails is done at the next turn, as controllers do.
			_ = writeStatus(ctx, c)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
}

func writeStatus(ctx context.Context, c *kube.Client) error {
	clusters, machines := &clusterv1.ClusterList{}, &clusterv1.MachineList{}
	if err := c.List(ctx, clusters); err != nil {
		return err
	}
	if err := c.List(ctx, machines); err != nil {
		return err
	}
	for i := range machines.Items {
		if m := &machines.Items[i]; !m.Status.NodeRef.IsDefined() {
			m.Status.NodeRef = clusterv1.MachineNodeReference{Name: m.Name}
			m.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}}
			if err := c.Status().Update(ctx, m); err != nil {
				return err
			}
		}
	}
	for i := range clusters.Items {
		one := &clusters.Items[i]
		if ptr.Deref(one.Spec.Paused, false) || len(one.Status.Conditions) > 0 {
			continue
		}
		one.Status.Initialization = clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true), ControlPlaneInitialized: ptr.To(true)}
		one.Status.Conditions = []metav1.Condition{{Type: clusterv1.ClusterAvailableCondition, Status: metav1.ConditionTrue, Reason: "Available", LastTransitionTime: metav1.Now()}}
		if err := c.Status().Update(ctx, one); err != nil {
			return err
		}
	}
	return nil
}

// cluster makes a Cluster with a machine and a Secret on the source.
func (lab *pivotLab) cluster(namespace, name string) *clusterv1.Cluster {
	lab.t.Helper()
	source := lab.sides["source"]
	lab.must(source.EnsureNamespace(lab.t.Context(), namespace))
	cluster := lab.copyOf(namespace, name)
	lab.must(source.Create(lab.t.Context(), cluster, client.FieldOwner("kubectl")))
	owner := []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: name, UID: cluster.UID}}
	lab.must(source.Create(lab.t.Context(), &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-0", OwnerReferences: owner, Finalizers: []string{"machine.cluster.x-k8s.io"},
			Labels: map[string]string{clusterv1.ClusterNameLabel: name, clusterv1.MachineControlPlaneLabel: ""}},
		Spec: clusterv1.MachineSpec{
			ClusterName: name, ProviderID: "proxmox://" + namespace + "-" + name, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("data")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "ProxmoxMachine", Name: name + "-0"},
		},
	}))
	lab.must(source.Create(lab.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-ca", OwnerReferences: owner}, Data: map[string][]byte{"tls.key": []byte("x")}}))
	return cluster
}

func (lab *pivotLab) copyOf(namespace, name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: []string{"cluster.cluster.x-k8s.io"}},
		Spec:       clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "ProxmoxCluster", Name: name}},
	}
}

func (lab *pivotLab) must(err error) {
	lab.t.Helper()
	if err != nil {
		lab.t.Fatal(err)
	}
}

// in is the lab for a subtest.
func (lab *pivotLab) in(t *testing.T) *pivotLab { return &pivotLab{t: t, sides: lab.sides} }

// config is the resource with further arguments.
func (lab *pivotLab) config(arguments ...string) string {
	return fmt.Sprintf(`
resource "capi_pivot" "it" {
  source    = { kubeconfig_path = %q }
  target    = { kubeconfig_path = %q }
  prove_for = "0s"
  %s
}
`, lab.sides["source"].kubeconfig, lab.sides["target"].kubeconfig, strings.Join(arguments, "\n  "))
}

// managed fails unless a side alone has the Cluster, un-paused and with its machine.
func (lab *pivotLab) managed(namespace, name, by string) {
	lab.t.Helper()
	for side, c := range lab.sides {
		cluster, machine := &clusterv1.Cluster{}, &clusterv1.Machine{}
		err := c.Get(lab.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, cluster)
		machineErr := c.Get(lab.t.Context(), client.ObjectKey{Namespace: namespace, Name: name + "-0"}, machine)
		switch {
		case side != by && (!kube.IsAbsent(kube.Classify(err)) || !kube.IsAbsent(kube.Classify(machineErr))):
			lab.t.Errorf("%s/%s or its machine is on the %s too (%v, %v)", namespace, name, side, err, machineErr)
		case side == by && (err != nil || machineErr != nil):
			lab.t.Errorf("%s/%s is not on the %s: %v, %v", namespace, name, side, err, machineErr)
		case side == by && ptr.Deref(cluster.Spec.Paused, false):
			lab.t.Errorf("%s/%s is paused on the %s", namespace, name, side)
		}
	}
}
