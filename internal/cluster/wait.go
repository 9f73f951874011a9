// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// StableFor is how long an API server must have answered without a break before
// it counts as up: right after its start, or while a virtual address settles, it
// comes and goes.
const StableFor = 5 * time.Second

// WaitInitialized waits until the control plane is initialized, the kubeconfig
// exists and the API that it names has answered for [StableFor] unbroken. It
// cannot wait for more: Ready nodes need a CNI and a cloud controller manager,
// which are installed afterwards.
func (h Home) WaitInitialized(ctx context.Context) (Credentials, error) {
	last := ""
	err := wait.PollUntilContextCancel(ctx, h.poll(), true, func(ctx context.Context) (bool, error) {
		cluster, err := h.Cluster(ctx)
		if kube.IsAbsent(err) {
			return false, err
		}
		if err != nil {
			h.say(ctx, &last, "waiting-for-control-plane", err.Error())
			return false, nil
		}
		if ptr.Deref(cluster.Spec.Paused, false) {
			h.say(ctx, &last, "waiting-for-control-plane", "the Cluster is paused: nothing goes on until somebody sets spec.paused to false")
			return false, nil
		}
		if ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
			return true, nil
		}
		h.say(ctx, &last, "waiting-for-control-plane", h.summary(ctx, cluster))
		return false, nil
	})
	if err != nil {
		return Credentials{}, h.explain(ctx, "waiting for the control plane of cluster "+h.key("").String()+" to be initialized", err)
	}
	return h.waitAnswering(ctx)
}

func (h Home) say(ctx context.Context, last *string, phase, message string) {
	if *last != message {
		*last = message
		h.Report.Report(ctx, phase, message)
	}
}

func (h Home) waitAnswering(ctx context.Context) (Credentials, error) {
	h.Report.Report(ctx, "waiting-for-api", "the control plane is initialized; waiting for its API to answer steadily")
	var credentials Credentials
	var since time.Time
	var last error
	err := wait.PollUntilContextCancel(ctx, min(h.poll(), 500*time.Millisecond), true, func(ctx context.Context) (bool, error) {
		found, err := h.Credentials(ctx)
		if err == nil {
			err = Answers(ctx, found.Kubeconfig)
		}
		if err != nil {
			since, last = time.Time{}, err
			return false, nil
		}
		credentials = found
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= StableFor, nil
	})
	if err != nil {
		return Credentials{}, h.explain(ctx, "waiting for the API of cluster "+h.key("").String()+" to answer", errors.Join(err, last))
	}
	return credentials, nil
}

// Answers asks the API server that a kubeconfig names for its version, for 5 s at
// most.
func Answers(ctx context.Context, kubeconfig []byte) error {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.Timeout = 5 * time.Second
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of the kubeconfig: %w", err)
	}
	if err := d.RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err != nil {
		return fmt.Errorf("asking %s for its version: %w", config.Host, err)
	}
	return nil
}

// WaitAvailable waits until the Cluster is Available, every one of its Machines
// has a node and addresses, and its control plane is Ready: only then may it be
// moved, and only then has its new manager taken it up after a move, which
// carries no status.
func (h Home) WaitAvailable(ctx context.Context) error {
	last := ""
	err := wait.PollUntilContextCancel(ctx, h.poll(), true, func(ctx context.Context) (bool, error) {
		cluster, err := h.Cluster(ctx)
		if kube.IsAbsent(err) {
			return false, err
		}
		if err != nil {
			h.say(ctx, &last, "waiting-for-nodes", err.Error())
			return false, nil
		}
		machines, err := h.Machines(ctx)
		if err != nil {
			h.say(ctx, &last, "waiting-for-nodes", err.Error())
			return false, nil
		}
		var missing []string
		for _, m := range machines {
			if !m.HasNode || !m.HasAddress {
				missing = append(missing, m.Name)
			}
		}
		if len(missing) > 0 || len(machines) == 0 {
			h.say(ctx, &last, "waiting-for-nodes", fmt.Sprintf("%d of %d machines have a node and addresses; without: %s", len(machines)-len(missing), len(machines), strings.Join(missing, ", ")))
			return false, nil
		}
		available := condition(cluster.Status.Conditions, clusterv1.ClusterAvailableCondition)
		if available == nil || available.Status != metav1.ConditionTrue {
			h.say(ctx, &last, "waiting-for-available", h.summary(ctx, cluster))
			return false, nil
		}
		unready, err := h.controlPlaneUnready(ctx, cluster)
		if err != nil {
			unready = err.Error()
		}
		if unready != "" {
			h.say(ctx, &last, "waiting-for-control-plane", unready)
		}
		return unready == "", nil
	})
	if err != nil {
		return h.explain(ctx, "waiting for cluster "+h.key("").String()+" to be available with a node for each machine", err)
	}
	return nil
}

// controlPlaneUnready answers why the control plane object is not Ready, or
// nothing. Control planes of the contract v1beta1 have a condition Ready (Talos
// v0.5); one without it is judged by the Cluster's own conditions.
func (h Home) controlPlaneUnready(ctx context.Context, cluster *clusterv1.Cluster) (string, error) {
	if !cluster.Spec.ControlPlaneRef.IsDefined() {
		return "", nil
	}
	plane, err := external.GetObjectFromContractVersionedRef(ctx, h.Client, cluster.Spec.ControlPlaneRef, cluster.Namespace)
	if err != nil {
		return "", fmt.Errorf("reading the control plane: %w", err)
	}
	conditions, _, err := unstructured.NestedSlice(plane.Object, "status", "conditions")
	if err != nil {
		return "", fmt.Errorf("reading the control plane's conditions: %w", err)
	}
	for _, item := range conditions {
		c, _ := item.(map[string]any)
		if c["type"] == "Ready" && c["status"] != "True" {
			return fmt.Sprintf("%s is not Ready: %v %v", refOf(plane), c["reason"], c["message"]), nil
		}
	}
	return "", nil
}

func (h Home) waitGone(ctx context.Context) error {
	last := ""
	err := wait.PollUntilContextCancel(ctx, h.poll(), true, func(ctx context.Context) (bool, error) {
		cluster, err := h.Cluster(ctx)
		if kube.IsAbsent(err) {
			return true, nil
		}
		if err != nil {
			h.say(ctx, &last, "deleting", err.Error())
			return false, nil
		}
		h.say(ctx, &last, "deleting", h.summary(ctx, cluster))
		return false, nil
	})
	if err != nil {
		return h.explain(ctx, "waiting for cluster "+h.key("").String()+" to be gone", err)
	}
	return nil
}

// summary is one line on how far a Cluster has come.
func (h Home) summary(ctx context.Context, cluster *clusterv1.Cluster) string {
	machines, err := h.Machines(ctx)
	if err != nil {
		return err.Error()
	}
	var parts []string
	if c := condition(cluster.Status.Conditions, clusterv1.ClusterAvailableCondition); c != nil && c.Message != "" {
		parts = append(parts, strings.Join(strings.Fields(c.Message), " "))
	}
	for _, m := range machines {
		parts = append(parts, fmt.Sprintf("machine %s: %s", m.Name, m.Phase))
	}
	if len(parts) == 0 {
		return "the controllers have not written a status yet"
	}
	return strings.Join(parts, "; ")
}

func condition(conditions []metav1.Condition, kind string) *metav1.Condition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// explain adds the condition tree and the last warnings to the error of a wait.
func (h Home) explain(ctx context.Context, what string, err error) error {
	// The context of the wait is over, and the tree is wanted all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	text := h.Tree(ctx)
	if events := h.warnings(ctx); events != "" {
		text += "\nLast warnings:\n" + events
	}
	return fmt.Errorf("%s: %w\n%s", what, err, text)
}

// warnings lists the last five warning events of the namespace, oldest first.
func (h Home) warnings(ctx context.Context) string {
	events, err := h.events(ctx)
	if err != nil {
		return "  (cannot be read: " + err.Error() + ")"
	}
	return strings.Join(events, "\n")
}
