// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// The names of the example's charts.
const (
	chartCilium = "cilium"
	chartCCM    = "talos-cloud-controller-manager"
)

// owner owns the releases of this file's tests.
var owner = uuid.NewString()

// install installs or upgrades a chart of the example with its values and more.
func (c *testCluster) install(chart string, more ...string) {
	c.t.Helper()
	file := map[string]string{chartCilium: "cilium.yaml", chartCCM: "cloud-controller-manager.yaml"}[chart]
	example, err := os.ReadFile(filepath.Join("..", "..", "..", "examples", "talos-proxmox", file))
	if err != nil {
		c.t.Fatal(err)
	}
	values, err := helm.MergeValues(append([]string{string(example)}, more...))
	if err != nil {
		c.t.Fatal(err)
	}
	client, err := kube.NewClient(c.admin)
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = helm.Engine{}.Ensure(c.t.Context(), client, helm.Spec{
		Name: chart, Namespace: metav1.NamespaceSystem, Chart: helm.Chart{Ref: c.set.Charts[chart]}, Values: values, Owner: owner,
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// pod finds the first pod of an application.
func podOf(ctx context.Context, kube *kubernetes.Clientset, selector string) (*corev1.Pod, error) {
	list, err := kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no pod %s", selector)
	}
	return &list.Items[0], nil
}

func nodeIs(ctx context.Context, kube *kubernetes.Clientset, name string) (ready, initialized bool, err error) {
	n, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, false, err
	}
	for _, c := range n.Status.Conditions {
		ready = ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "node.cloudprovider.kubernetes.io/uninitialized" })
	return ready, !tainted && n.Spec.ProviderID != "", nil
}

// TestNodeGetsReadyOnlyThroughPodsThatHaveTheirRights takes from Cilium and from
// the cloud controller manager what they need, one after the other, and gives it
// back.
func TestNodeGetsReadyOnlyThroughPodsThatHaveTheirRights(t *testing.T) {
	t.Parallel()
	control, set := realControl(t)
	c := newTestCluster(t, control)
	c.set = set
	// the Secret of the cloud controller manager lies in another namespace
	c.namespace = "elsewhere"
	_, g, kube, _ := c.bootstrap()
	name := g.vm.Name

	// an agent that is not there
	c.install(chartCilium, `image: {override: "quay.io/cilium/cilium:nonesuch"}`)
	eventually(t, 2*time.Minute, "see that the agent's image is missing", func(ctx context.Context) error {
		p, err := podOf(ctx, kube, "k8s-app=cilium")
		if err != nil {
			return err
		}
		for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if w := s.State.Waiting; w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff") {
				return nil
			}
		}
		return fmt.Errorf("status is %+v", p.Status)
	})
	c.notReady(kube, name)

	// an agent that may read nothing
	c.install(chartCilium, "rbac: {create: false}")
	eventually(t, 3*time.Minute, "see the agent fail without its rights", func(ctx context.Context) error {
		p, err := podOf(ctx, kube, "k8s-app=cilium")
		if err != nil {
			return err
		}
		for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if s.RestartCount > 0 || s.LastTerminationState.Terminated != nil {
				return nil
			}
		}
		return fmt.Errorf("status is %+v", p.Status)
	})
	c.notReady(kube, name)

	c.install(chartCilium)
	eventually(t, 3*time.Minute, "see the Node ready with the agent's rights", func(ctx context.Context) error {
		ready, _, err := nodeIs(ctx, kube, name)
		if err == nil && !ready {
			err = errors.New("not ready")
		}
		return err
	})

	// a cloud controller manager without the Talos API
	c.install(chartCCM)
	eventually(t, 2*time.Minute, "see the cloud controller manager wait for its talosconfig", func(ctx context.Context) error {
		p, err := podOf(ctx, kube, "app.kubernetes.io/name="+chartCCM)
		if err != nil {
			return err
		}
		if p.Spec.NodeName == "" || p.Status.Phase != corev1.PodPending {
			return fmt.Errorf("status is %+v", p.Status)
		}
		return nil
	})
	if _, initialized, err := nodeIs(t.Context(), kube, name); err != nil || initialized {
		t.Errorf("without the Talos API the Node is initialized (%v)", err)
	}
}

// notReady checks that the Node stays as it is.
func (c *testCluster) notReady(kube *kubernetes.Clientset, name string) {
	c.t.Helper()
	ready, initialized, err := nodeIs(c.t.Context(), kube, name)
	if err != nil || ready || initialized {
		c.t.Errorf("ready %v, initialized %v (%v)", ready, initialized, err)
	}
}
