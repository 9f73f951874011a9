// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

// realControl runs control planes and pods out of the lab's images.
func realControl(t *testing.T) (*LocalControl, *artifacts.Set) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds Kubernetes and etcd")
	}
	set, err := artifacts.Ensure(t.Context(), func(_ context.Context, phase, message string) { t.Logf("%s: %s", phase, message) })
	if err != nil {
		t.Fatal(err)
	}
	cache, err := artifacts.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return NewLocalControl(oci.NewStore(filepath.Join(cache, "roots"), oci.Layout{Path: set.ImageLayout, IgnoreDigest: true})), set
}

// bootstrapped is a cluster of one control plane node whose API answers.
func bootstrapped(t *testing.T, patches ...string) (*testCluster, *guest, *kubernetes.Clientset, dynamic.Interface) {
	t.Helper()
	control, set := realControl(t)
	c := newTestCluster(t, control)
	c.set = set
	return c.bootstrap(patches...)
}

// bootstrap makes the first control plane node of a cluster.
func (c *testCluster) bootstrap(patches ...string) (*testCluster, *guest, *kubernetes.Clientset, dynamic.Interface) {
	t := c.t
	t.Helper()
	addr := loopback(t)
	g := c.boot(c.vm(c.config(machine.TypeControlPlane, patches...), addr)).(*guest)
	eventually(t, 10*time.Second, "bootstrap", func(ctx context.Context) error {
		return c.client(addr).Bootstrap(ctx, &machineapi.BootstrapRequest{})
	})
	var kube *kubernetes.Clientset
	var dyn dynamic.Interface
	eventually(t, 2*time.Minute, "read through the virtual IP with the kubeconfig of the machine API", func(ctx context.Context) error {
		raw, err := c.client(addr).Kubeconfig(ctx)
		if err != nil {
			return err
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(raw)
		c.admin = config
		if err != nil {
			return err
		}
		if kube, err = kubernetes.NewForConfig(config); err != nil {
			return err
		}
		if dyn, err = dynamic.NewForConfig(config); err != nil {
			return err
		}
		_, err = kube.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
		return err
	})
	return c, g, kube, dyn
}

func TestBootstrappedNodeIsAsTalosLeavesIt(t *testing.T) {
	t.Parallel()
	c, g, kube, dyn := bootstrapped(t)
	name, addr := g.vm.Name, g.current().address()
	var node *corev1.Node
	eventually(t, time.Minute, "see the Node with its role", func(ctx context.Context) (err error) {
		if node, err = kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if _, ok := node.Labels["node-role.kubernetes.io/control-plane"]; !ok {
			return errors.New("no role yet")
		}
		return nil
	})
	if node.Spec.ProviderID != "" {
		t.Errorf("providerID is %q", node.Spec.ProviderID)
	}
	if !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == "node.cloudprovider.kubernetes.io/uninitialized" && taint.Effect == corev1.TaintEffectNoSchedule
	}) {
		t.Errorf("taints are %v", node.Spec.Taints)
	}
	if slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == "node-role.kubernetes.io/control-plane" }) {
		t.Error("it is tainted although scheduling on control planes is allowed")
	}
	if node.Annotations["alpha.kubernetes.io/provided-node-ip"] != addr.String() {
		t.Errorf("annotations are %v", node.Annotations)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionFalse {
			t.Errorf("without a CNI configuration it is ready: %+v", condition)
		}
	}
	eventually(t, time.Minute, "see one approved client certificate and one waiting serving certificate", func(ctx context.Context) error {
		list, err := kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		issued := map[string]bool{}
		for _, r := range list.Items {
			issued[r.Spec.SignerName] = len(r.Status.Certificate) > 0
		}
		if !issued[certificatesv1.KubeAPIServerClientKubeletSignerName] || len(issued) != 2 || issued[certificatesv1.KubeletServingSignerName] {
			return fmt.Errorf("issued: %v", issued)
		}
		return nil
	})
	eventually(t, time.Minute, "see every service healthy and the boot sequence done", func(ctx context.Context) error {
		list, err := c.client(addr).ServiceList(ctx)
		if err != nil {
			return err
		}
		for _, s := range list.Messages[0].Services {
			if s.GetState() != stateRunning || !s.GetHealth().GetHealthy() {
				return fmt.Errorf("service %s is %s", s.GetId(), s.GetState())
			}
		}
		if started, stopped := bootSequence(t, c.client(addr), addr); !started || !stopped {
			return errors.New("still in the boot sequence")
		}
		return nil
	})
	testServiceAccounts(t, kube, dyn)
}

// testServiceAccounts checks the Talos API access for Kubernetes.
func testServiceAccounts(t *testing.T, kube *kubernetes.Clientset, dyn dynamic.Interface) {
	t.Helper()
	account := func(namespace, name, role string) {
		t.Helper()
		eventually(t, time.Minute, "create a Talos service account", func(ctx context.Context) error {
			_, err := dyn.Resource(accountGVR).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "talos.dev/v1alpha1", "kind": "ServiceAccount",
				"metadata": map[string]any{"name": name}, "spec": map[string]any{"roles": []any{role}},
			}}, metav1.CreateOptions{})
			return ignoreExists(err)
		})
	}
	account("kube-system", "reader", "os:reader")
	account("kube-system", "admin", "os:admin")
	account("default", "elsewhere", "os:reader")
	eventually(t, time.Minute, "get a talosconfig that works", func(ctx context.Context) error {
		secret, err := kube.CoreV1().Secrets("kube-system").Get(ctx, "reader", metav1.GetOptions{})
		if err != nil {
			return err
		}
		cfg, err := clientconfig.FromBytes(secret.Data["config"])
		if err != nil {
			return err
		}
		if got := cfg.Contexts[cfg.Context].Endpoints; !slices.Equal(got, []string{"talos.default"}) {
			return fmt.Errorf("endpoints are %v", got)
		}
		nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		api := newClient(t, cfg, nodes.Items[0].Status.Addresses[0].Address)
		_, err = api.Version(ctx)
		return err
	})
	for name, want := range map[string]string{"kube-system/admin": "Roles not allowed: [os:admin]", "default/elsewhere": "Namespace is not allowed: default"} {
		namespace, object, _ := strings.Cut(name, "/")
		eventually(t, time.Minute, "read the refusal of "+name, func(ctx context.Context) error {
			obj, err := dyn.Resource(accountGVR).Namespace(namespace).Get(ctx, object, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if reason, _, _ := unstructured.NestedString(obj.Object, "status", "failureReason"); reason != want {
				return fmt.Errorf("failureReason is %q", reason)
			}
			_, err = kube.CoreV1().Secrets(namespace).Get(ctx, object, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("the Secret: %w", err)
			}
			return nil
		})
	}
	slices, err := kube.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "talos-ipv4", metav1.GetOptions{})
	if err != nil || len(slices.Endpoints) != 1 {
		t.Errorf("endpoints of Service talos: %v, %v", slices, err)
	}
}

func TestWithoutTalosAPIAccessThereIsNoServiceAccountKind(t *testing.T) {
	t.Parallel()
	_, g, kube, dyn := bootstrapped(t, "machine: {features: {kubernetesTalosAPIAccess: {enabled: false}}}")
	eventually(t, time.Minute, "see the Node", func(ctx context.Context) error {
		_, err := kube.CoreV1().Nodes().Get(ctx, g.vm.Name, metav1.GetOptions{})
		return err
	})
	if _, err := dyn.Resource(accountGVR).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("list of Talos service accounts: %v", err)
	}
	if _, err := kube.CoreV1().Services("default").Get(t.Context(), "talos", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("Service talos: %v", err)
	}
}

func TestSecondControlPlaneNodeJoinsAndTheFirstLeaves(t *testing.T) {
	t.Parallel()
	c, first, kube, _ := bootstrapped(t)
	a := first.current().address()
	b := loopback(t)
	second := c.boot(c.vm(c.config(machine.TypeControlPlane), b)).(*guest)
	members := func(want int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			r, err := c.client(b).EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
			if err != nil {
				return err
			}
			for _, m := range r.Messages[0].Members {
				if m.IsLearner || m.Hostname == "" {
					return fmt.Errorf("member %s learns", m)
				}
			}
			if len(r.Messages[0].Members) != want {
				return fmt.Errorf("members are %v", r.Messages[0].Members)
			}
			return nil
		}
	}
	eventually(t, 2*time.Minute, "see two voting members", members(2))
	eventually(t, 2*time.Minute, "see two Nodes", func(ctx context.Context) error {
		nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil || len(nodes.Items) != 2 {
			return fmt.Errorf("%d nodes (%w)", len(nodes.Items), err)
		}
		return nil
	})
	// what gracefulEtcdLeave of CACPPT does
	api := c.client(a)
	if _, err := api.EtcdForfeitLeadership(t.Context(), &machineapi.EtcdForfeitLeadershipRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := api.EtcdLeaveCluster(t.Context(), &machineapi.EtcdLeaveClusterRequest{}); err != nil {
		t.Fatal(err)
	}
	info, err := api.ServiceInfo(t.Context(), "etcd")
	if err != nil || info[0].Service.GetState() != stateFinished {
		t.Errorf("etcd after leaving: %v, %v", info, err)
	}
	eventually(t, time.Minute, "see one member", members(1))
	eventually(t, time.Minute, "read through the virtual IP, which moved", func(ctx context.Context) error {
		if first.booter.fabric.holder(second.current(), c.vip) != second.current() {
			return errors.New("the second does not hold it")
		}
		_, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})
	if err := c.client(b).EtcdLeaveCluster(t.Context(), &machineapi.EtcdLeaveClusterRequest{}); err == nil || client.StatusCode(err) == 0 {
		t.Errorf("the last member left: %v", err)
	}
}

func TestWorkerJoinsByTLSBootstrap(t *testing.T) {
	t.Parallel()
	c, _, kube, _ := bootstrapped(t)
	addr := loopback(t)
	vm := c.vm(c.config(machine.TypeWorker, "machine: {nodeTaints: {dedicated: \"lab:NoSchedule\"}}"), addr)
	g := c.boot(vm)
	var node *corev1.Node
	eventually(t, 2*time.Minute, "see the worker's Node", func(ctx context.Context) (err error) {
		node, err = kube.CoreV1().Nodes().Get(ctx, vm.Name, metav1.GetOptions{})
		return err
	})
	if _, ok := node.Labels["node-role.kubernetes.io/control-plane"]; ok {
		t.Errorf("its labels are %v", node.Labels)
	}
	if !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == "dedicated" && taint.Value == "lab" && taint.Effect == corev1.TaintEffectNoSchedule
	}) {
		t.Errorf("its taints are %v", node.Spec.Taints)
	}
	eventually(t, time.Minute, "see its kubelet run and no etcd", func(ctx context.Context) error {
		list, err := c.client(addr).ServiceList(ctx)
		if err != nil {
			return err
		}
		states := map[string]string{}
		for _, s := range list.Messages[0].Services {
			states[s.GetId()] = s.GetState()
		}
		if states["kubelet"] != stateRunning || states["etcd"] != "" {
			return fmt.Errorf("services are %v", states)
		}
		return nil
	})
	if err := g.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPoweredOffControlPlaneKeepsItsObjects(t *testing.T) {
	t.Parallel()
	c, g, kube, _ := bootstrapped(t)
	_, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g.Kill()
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := kube.CoreV1().ConfigMaps("default").Get(short, "kept", metav1.GetOptions{}); err == nil {
		t.Fatal("the API answers without power")
	}
	c.boot(g.vm)
	eventually(t, time.Minute, "read the object again", func(ctx context.Context) error {
		_, err := kube.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
		return err
	})
}
