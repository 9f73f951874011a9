// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// reported has each new state of a wait told as progress of the given phase.
func (h Home) reported(phase string, check kube.Check) kube.Check {
	last := ""
	return func(ctx context.Context) (bool, string, error) {
		done, now, err := check(ctx)
		told := now
		if err != nil {
			told = err.Error()
		}
		if !done && told != "" && told != last {
			last = told
			h.Report.Report(ctx, phase, told)
		}
		return done, now, err
	}
}

// wait is [kube.Wait] with progress, whose error shows the state of the Cluster.
func (h Home) wait(ctx context.Context, phase, what string, check kube.Check) error {
	if err := kube.Wait(ctx, what, h.reported(phase, check)); err != nil {
		return h.explain(ctx, err)
	}
	return nil
}

// liveCluster reads the Cluster for a wait, which its absence ends.
func (h Home) liveCluster(ctx context.Context) (*clusterv1.Cluster, error) {
	cluster, err := h.Cluster(ctx)
	if kube.IsAbsent(err) {
		return nil, kube.Fatal(err)
	}
	return cluster, err
}

const pausedNow = "the Cluster is paused: nothing goes on until somebody sets spec.paused to false"

// WaitInitialized waits until the control plane is initialized, the kubeconfig
// exists and the API that it names has answered for [StableFor] unbroken. It
// cannot wait for more: Ready nodes need a CNI and a cloud controller manager,
// which are installed afterwards.
func (h Home) WaitInitialized(ctx context.Context) (Credentials, error) {
	err := h.wait(ctx, "waiting-for-control-plane", "the control plane of cluster "+h.key("").String()+" to be initialized", func(ctx context.Context) (bool, string, error) {
		cluster, err := h.liveCluster(ctx)
		switch {
		case err != nil:
			return false, "", err
		case ptr.Deref(cluster.Spec.Paused, false):
			return false, pausedNow, nil
		case ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false):
			return true, "", nil
		}
		return false, h.summary(ctx, cluster), nil
	})
	if err != nil {
		return Credentials{}, err
	}
	return h.waitAnswering(ctx)
}

func (h Home) waitAnswering(ctx context.Context) (Credentials, error) {
	h.Report.Report(ctx, "waiting-for-api", "the control plane is initialized; waiting for its API to answer steadily")
	var credentials Credentials
	err := kube.WaitUnbroken(ctx, "the API of cluster "+h.key("").String()+" to answer", cmp.Or(h.Stable, StableFor), func(ctx context.Context) (bool, string, error) {
		found, err := h.Credentials(ctx)
		if err == nil {
			err = Answers(ctx, found.Kubeconfig)
		}
		if err == nil {
			credentials = found
		}
		return err == nil, "", err
	})
	if err != nil {
		return Credentials{}, h.explain(ctx, err)
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
	return h.wait(ctx, "waiting-for-available", "cluster "+h.key("").String()+" to be available with a node for each machine", func(ctx context.Context) (bool, string, error) {
		cluster, err := h.liveCluster(ctx)
		if err != nil {
			return false, "", err
		}
		machines, err := h.Machines(ctx)
		if err != nil {
			return false, "", err
		}
		var missing []string
		for _, m := range machines {
			if !m.HasNode || !m.HasAddress {
				missing = append(missing, m.Name)
			}
		}
		if len(missing) > 0 || len(machines) == 0 {
			return false, fmt.Sprintf("%d of %d machines have a node and addresses; without: %s", len(machines)-len(missing), len(machines), strings.Join(missing, ", ")), nil
		}
		available := condition(cluster.Status.Conditions, clusterv1.ClusterAvailableCondition)
		if available == nil || available.Status != metav1.ConditionTrue {
			return false, h.summary(ctx, cluster), nil
		}
		unready, err := h.controlPlaneUnready(ctx, cluster)
		return err == nil && unready == "", unready, err
	})
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
	if status, message := conditionOf(plane, "Ready"); status != "" && status != "True" {
		return refOf(plane) + " is not Ready: " + message, nil
	}
	return "", nil
}

func (h Home) waitGone(ctx context.Context) error {
	return h.wait(ctx, "deleting", "cluster "+h.key("").String()+" to be gone", func(ctx context.Context) (bool, string, error) {
		cluster, err := h.Cluster(ctx)
		if kube.IsAbsent(err) {
			return true, "", nil
		}
		if err != nil {
			return false, "", err
		}
		return false, h.summary(ctx, cluster), nil
	})
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
