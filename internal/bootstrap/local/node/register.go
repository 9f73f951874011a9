// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

const (
	// leaseDuration and heartbeat are the kubelet's (nodeLeaseDurationSeconds
	// 40, renewed at a quarter of it).
	leaseDuration = 40 * time.Second
	heartbeat     = 10 * time.Second
	// statusRefresh is how often an unchanged status is written all the same.
	statusRefresh = time.Minute
	// readinessInterval is how often the node's network is looked at.
	readinessInterval = 500 * time.Millisecond
	kubeletPort       = 10250
)

// register makes the Node, or takes over the one that is there.
func (n *Node) register(ctx context.Context) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.cfg.Name, Labels: n.labels(), Annotations: n.cfg.Annotations},
		Spec:       corev1.NodeSpec{Taints: n.cfg.Taints, ProviderID: n.cfg.ProviderID},
	}
	node.Status = n.status(nil)
	_, err := n.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return n.writeNodeStatus(ctx)
	}
	if err != nil {
		return fmt.Errorf("registering it: %w", err)
	}
	return nil
}

func (n *Node) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname:    n.cfg.Name,
		corev1.LabelOSStable:    "linux",
		corev1.LabelArchStable:  runtime.GOARCH,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": runtime.GOARCH,
	}
	for key, value := range n.cfg.Labels {
		labels[key] = value
	}
	return labels
}

// status answers the node's status now; conditions keep their transition times
// from before.
func (n *Node) status(before []corev1.NodeCondition) corev1.NodeStatus {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("32"),
		corev1.ResourceMemory:           resource.MustParse("128Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("256Gi"),
		corev1.ResourcePods:             resource.MustParse("250"),
	}
	for name, quantity := range n.cfg.Capacity {
		capacity[name] = quantity
	}
	addresses := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: n.cfg.Address.String()},
		{Type: corev1.NodeHostName, Address: n.cfg.Name},
	}
	return corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Conditions: n.conditions(before),
		Addresses:  append(addresses, n.cfg.Addresses...),
		DaemonEndpoints: corev1.NodeDaemonEndpoints{
			KubeletEndpoint: corev1.DaemonEndpoint{Port: kubeletPort},
		},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: n.cfg.Name, SystemUUID: n.cfg.Name, BootID: n.cfg.Name,
			KernelVersion: kernelVersion(), OSImage: n.cfg.OSImage, OperatingSystem: "linux", Architecture: runtime.GOARCH,
			ContainerRuntimeVersion: "process://1", KubeletVersion: n.cfg.KubernetesVersion,
		},
	}
}

func (n *Node) conditions(before []corev1.NodeCondition) []corev1.NodeCondition {
	now := metav1.Now()
	healthy := func(kind corev1.NodeConditionType, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	if why := n.notReady(); why != nil {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "KubeletNotReady", why.Error()
	}
	conditions := []corev1.NodeCondition{
		healthy(corev1.NodeMemoryPressure, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		healthy(corev1.NodeDiskPressure, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		healthy(corev1.NodePIDPressure, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		ready,
	}
	for i := range conditions {
		conditions[i].LastHeartbeatTime, conditions[i].LastTransitionTime = now, now
		for _, old := range before {
			if old.Type == conditions[i].Type && old.Status == conditions[i].Status {
				conditions[i].LastTransitionTime = old.LastTransitionTime
			}
		}
	}
	return conditions
}

// notReady answers why the node's network is not ready.
func (n *Node) notReady() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.why
}

// waitReady waits until the node's network is ready.
func (n *Node) waitReady(ctx context.Context) error {
	for {
		n.mu.Lock()
		why, changed := n.why, n.ready
		n.mu.Unlock()
		if why == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watchReadiness looks at the node's network, and writes the status at once when
// it changes.
func (n *Node) watchReadiness(ctx context.Context) {
	ticker := time.NewTicker(readinessInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		why := n.cfg.Ready()
		n.mu.Lock()
		changed := (why == nil) != (n.why == nil)
		n.why = why
		if changed {
			close(n.ready)
			n.ready = make(chan struct{})
		}
		n.mu.Unlock()
		if changed {
			_ = n.writeNodeStatus(ctx) // else the next heartbeat does
		}
	}
}

// beat renews the node's lease, and writes its status when it has changed.
func (n *Node) beat(ctx context.Context) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	written := time.Now()
	for {
		// A failure shows by itself: the cluster sees the node as gone after
		// 40 s, and as back after the next success.
		_ = n.renewLease(ctx)
		if err := n.writeNodeStatusIf(ctx, time.Since(written) >= statusRefresh); err == nil && time.Since(written) >= statusRefresh {
			written = time.Now()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) renewLease(ctx context.Context) error {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now, seconds := metav1.NowMicro(), int32(leaseDuration/time.Second)
	lease, err := leases.Get(ctx, n.cfg.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: n.cfg.Name, Namespace: corev1.NamespaceNodeLease},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &n.cfg.Name, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{})
		return err
	case err != nil:
		return err
	}
	lease = lease.DeepCopy()
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &n.cfg.Name, &seconds, &now
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

func (n *Node) writeNodeStatus(ctx context.Context) error { return n.writeNodeStatusIf(ctx, true) }

// writeNodeStatusIf writes the node's status when it has changed, or always. It
// patches, since others write addresses and conditions of their own.
func (n *Node) writeNodeStatusIf(ctx context.Context, always bool) error {
	node, err := n.client.CoreV1().Nodes().Get(ctx, n.cfg.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // somebody deleted it; a kubelet registers again only when it starts
		return err
	}
	if err != nil {
		return fmt.Errorf("reading node %s: %w", n.cfg.Name, err)
	}
	updated := node.DeepCopy()
	status := n.status(node.Status.Conditions)
	if !always && sameConditions(node.Status.Conditions, status.Conditions) {
		return nil
	}
	updated.Status.Capacity, updated.Status.Allocatable = status.Capacity, status.Allocatable
	updated.Status.NodeInfo, updated.Status.DaemonEndpoints = status.NodeInfo, status.DaemonEndpoints
	if !hasExternalAddresses(node) {
		updated.Status.Addresses = status.Addresses
	}
	for _, condition := range status.Conditions {
		updated.Status.Conditions = setCondition(updated.Status.Conditions, condition)
	}
	patch, err := twoWayPatch(node, updated)
	if err != nil {
		return err
	}
	if _, err := n.client.CoreV1().Nodes().Patch(ctx, n.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("writing the status of node %s: %w", n.cfg.Name, err)
	}
	return nil
}

// hasExternalAddresses says whether a cloud controller manager looks after the
// node's addresses, which it does once it has set the provider id.
func hasExternalAddresses(node *corev1.Node) bool {
	return node.Spec.ProviderID != "" && len(node.Status.Addresses) > 0
}

func sameConditions(have, want []corev1.NodeCondition) bool {
	for _, w := range want {
		same := false
		for _, h := range have {
			h.LastHeartbeatTime, w.LastHeartbeatTime = metav1.Time{}, metav1.Time{}
			same = same || equality.Semantic.DeepEqual(h, w)
		}
		if !same {
			return false
		}
	}
	return true
}

func setCondition(conditions []corev1.NodeCondition, condition corev1.NodeCondition) []corev1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type == condition.Type {
			conditions[i] = condition
			return conditions
		}
	}
	return append(conditions, condition)
}

func twoWayPatch[T any](before, after *T) ([]byte, error) {
	old, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("marshalling: %w", err)
	}
	updated, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("marshalling: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, updated, *new(T))
	if err != nil {
		return nil, fmt.Errorf("making a patch: %w", err)
	}
	return patch, nil
}

// podRange answers the range of the pods' addresses, and waits for it where
// controller-manager gives it.
func (n *Node) podRange(ctx context.Context) (netip.Prefix, error) {
	n.mu.Lock()
	known := n.podCIDR
	n.mu.Unlock()
	if known.IsValid() {
		return known, nil
	}
	var found netip.Prefix
	err := retry(ctx, func() error {
		node, err := n.client.CoreV1().Nodes().Get(ctx, n.cfg.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found, err = netip.ParsePrefix(strings.TrimSpace(node.Spec.PodCIDR))
		return err
	})
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("waiting for the node's range of pod addresses: %w", err)
	}
	n.mu.Lock()
	n.podCIDR = found
	n.mu.Unlock()
	return found, nil
}
