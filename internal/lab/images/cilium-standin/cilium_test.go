// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// configured writes a configuration folder.
func configured(t *testing.T, values map[string]string) settings {
	t.Helper()
	dir := t.TempDir()
	for key, value := range values {
		if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return settings{dir}
}

func testNode(taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.0.0/24", Taints: taints},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.9.160"}}},
	}
}

func newTestAgent(t *testing.T, values map[string]string, node *corev1.Node) *agent {
	t.Helper()
	t.Setenv("K8S_NODE_NAME", "n1")
	lists := map[schema.GroupVersionResource]string{ciliumNodes: "CiliumNodeList"}
	for _, kind := range append(watched.kubernetes, watched.cilium...) {
		if kind != ciliumNodes {
			lists[kind] = "List"
		}
	}
	return &agent{
		settings: configured(t, values),
		kube:     fake.NewClientset(node),
		dynamic:  dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists),
	}
}

func TestTheAgentWritesTheCNIConfigurationAndThenIsHealthy(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"10-flannel.conflist", "README"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(folder, "05-cilium.conflist")
	a := newTestAgent(t, map[string]string{"write-cni-conf-when-ready": file, "cni-exclusive": "true", "ipam": "kubernetes"}, testNode())
	request, err := http.NewRequest(http.MethodGet, "http://127.0.0.1/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.health(request); err == nil {
		t.Error("it is healthy before it has done anything")
	}
	if err := a.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(content), `"type": "cilium-cni"`) {
		t.Errorf("the configuration is %q (%v)", content, err)
	}
	if _, err := os.Stat(filepath.Join(folder, "10-flannel.conflist.cilium_bak")); err != nil {
		t.Error("the other plugin's configuration was not put aside:", err)
	}
	if err := a.health(request); err != nil {
		t.Error("it is not healthy:", err)
	}
	node, err := a.dynamic.Resource(ciliumNodes).Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || node.GetOwnerReferences()[0].UID != "u1" {
		t.Errorf("its CiliumNode is %v (%v)", node, err)
	}
}

func TestTheAgentsReadinessNeedsTheAPIServerAndItsLivenessDoesNot(t *testing.T) {
	a := &agent{}
	a.ready.Store(true)
	a.checked.Store(time.Now().Add(-2 * checkValid).UnixNano())
	request, err := http.NewRequest(http.MethodGet, "http://127.0.0.1/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.health(request); err == nil {
		t.Error("it is ready without the API server")
	}
	request.Header.Set("require-k8s-connectivity", "false")
	if err := a.health(request); err != nil {
		t.Error("it is not alive:", err)
	}
}

func TestTheAgentWaitsForItsPodRange(t *testing.T) {
	node := testNode()
	node.Spec.PodCIDR = ""
	file := filepath.Join(t.TempDir(), "05-cilium.conflist")
	a := newTestAgent(t, map[string]string{"write-cni-conf-when-ready": file, "ipam": "kubernetes"}, node)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := a.start(ctx); err == nil || !strings.Contains(err.Error(), "pod range") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("it wrote the CNI configuration")
	}
}

func TestTheAgentEndsAtWhatTheAPIServerRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "05-cilium.conflist")
	a := newTestAgent(t, map[string]string{"write-cni-conf-when-ready": file}, testNode())
	a.dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "", nil)
	})
	if err := a.start(t.Context()); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("it wrote the CNI configuration")
	}
}

func TestTheOperatorMarksNodesByTheirAgents(t *testing.T) {
	other := corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoSchedule}
	taint := corev1.Taint{Key: defaultTaint, Effect: corev1.TaintEffectNoSchedule}
	pod := func(ready corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "cilium-x", Namespace: "kube-system", Labels: map[string]string{"k8s-app": "cilium"}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	for name, test := range map[string]struct {
		node   *corev1.Node
		pod    *corev1.Pod
		taints int
		up     bool
	}{
		"an agent that is not ready taints its node":     {testNode(other), pod(corev1.ConditionFalse), 2, false},
		"the first taint is added to none":               {testNode(), pod(corev1.ConditionFalse), 1, false},
		"a ready agent frees its node and says it is up": {testNode(other, taint), pod(corev1.ConditionTrue), 1, true},
		"a free node with a ready agent stays as it is":  {testNode(other), pod(corev1.ConditionTrue), 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CILIUM_K8S_NAMESPACE", "kube-system")
			o := &operator{
				settings: configured(t, map[string]string{"set-cilium-node-taints": "true", "set-cilium-is-up-condition": "true"}),
				kube:     fake.NewClientset(test.node, test.pod),
			}
			for range 2 { // the second time changes nothing
				if err := o.markNodes(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			node, err := o.kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(node.Spec.Taints) != test.taints || isUp(node) != test.up {
				t.Errorf("taints %v, up %v", node.Spec.Taints, isUp(node))
			}
		})
	}
}

func TestEnvoyOpensItsListeners(t *testing.T) {
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := probe.Addr().(*net.TCPAddr).Port
	if err := probe.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bootstrap.json")
	text := `{"staticResources":{"listeners":[{"name":"health","address":{"socketAddress":{"address":"127.0.0.1","portValue":` + strconv.Itoa(port) + `}}}]}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runEnvoy(ctx, []string{"--", "-c " + file, "--base-id 0"}) }()
	err = until(t.Context(), "the listener", func(context.Context) (bool, error) {
		answer, err := http.Get("http://127.0.0.1:" + strconv.Itoa(port) + "/healthz")
		if err != nil {
			return false, err
		}
		return answer.StatusCode == http.StatusOK, answer.Body.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("it ended without a reason")
	}
}
