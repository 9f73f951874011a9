// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// watched is what the agent lists before it does anything: Kubernetes' own
// kinds, and then Cilium's, for whose CRDs it waits
// (cilium v1.19.6, pkg/k8s/synced/crd.go, agentCRDResourceNames).
var watched = struct{ kubernetes, cilium []schema.GroupVersionResource }{
	kubernetes: []schema.GroupVersionResource{
		{Version: "v1", Resource: "nodes"},
		{Version: "v1", Resource: "namespaces"},
		{Version: "v1", Resource: "services"},
		{Version: "v1", Resource: "pods"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
		{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	},
	cilium: []schema.GroupVersionResource{
		ciliumNodes,
		{Group: ciliumGroup, Version: "v2", Resource: "ciliumidentities"},
		{Group: ciliumGroup, Version: "v2", Resource: "ciliumendpoints"},
		{Group: ciliumGroup, Version: "v2", Resource: "ciliumnetworkpolicies"},
		{Group: ciliumGroup, Version: "v2", Resource: "ciliumclusterwidenetworkpolicies"},
		{Group: ciliumGroup, Version: "v2", Resource: "ciliumcidrgroups"},
		{Group: ciliumGroup, Version: "v2alpha1", Resource: "ciliumpodippools"},
		{Group: ciliumGroup, Version: "v2", Resource: "ciliumloadbalancerippools"},
		{Group: ciliumGroup, Version: "v2alpha1", Resource: "ciliuml2announcementpolicies"},
	},
}

const ciliumGroup = "cilium.io"

var ciliumNodes = schema.GroupVersionResource{Group: ciliumGroup, Version: "v2", Resource: "ciliumnodes"}

// agent is one node's cilium-agent.
type agent struct {
	settings settings
	kube     kubernetes.Interface
	dynamic  dynamic.Interface
	// checked is when the API server last answered, in nanoseconds since 1970.
	checked atomic.Int64
	ready   atomic.Bool
}

// Answers from the API server that are older than this count for nothing.
const checkEvery, checkValid = 5 * time.Second, 30 * time.Second

func runAgent(ctx context.Context, args []string) error {
	settings, err := readSettings(args)
	if err != nil {
		return err
	}
	config, err := connection()
	if err != nil {
		return err
	}
	a := &agent{settings: settings}
	if a.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if a.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", settings.get("agent-health-port", "9879"))
	wait, err := serve(ctx, address, "/healthz", a.health)
	if err != nil {
		return err
	}
	if err := a.start(ctx); err != nil {
		return err
	}
	go a.watchAPI(ctx)
	return wait()
}

// start does the agent's work in Cilium's order.
func (a *agent) start(ctx context.Context) error {
	for _, kind := range watched.kubernetes {
		if err := a.list(ctx, kind); err != nil {
			return err
		}
	}
	for _, kind := range watched.cilium {
		if err := a.list(ctx, kind); err != nil {
			return err
		}
	}
	var node *corev1.Node
	err := until(ctx, "the node's pod range", func(ctx context.Context) (bool, error) {
		var err error
		node, err = a.kube.CoreV1().Nodes().Get(ctx, nodeName(), metav1.GetOptions{})
		return err == nil && (node.Spec.PodCIDR != "" || a.settings.get("ipam", "") != "kubernetes"), err
	})
	if err != nil {
		return err
	}
	if err := until(ctx, "making the CiliumNode", func(ctx context.Context) (bool, error) {
		return true, a.register(ctx, node)
	}); err != nil {
		return err
	}
	if err := a.configureCNI(); err != nil {
		return fmt.Errorf("writing the CNI configuration: %w", err)
	}
	a.checked.Store(time.Now().UnixNano())
	a.ready.Store(true)
	slog.Info("the agent is ready", "node", node.Name)
	return nil
}

// list asks for one object of a kind, for which the rights to all are needed.
func (a *agent) list(ctx context.Context, kind schema.GroupVersionResource) error {
	return until(ctx, "listing "+kind.GroupResource().String(), func(ctx context.Context) (bool, error) {
		_, err := a.dynamic.Resource(kind).List(ctx, metav1.ListOptions{Limit: 1})
		return true, err
	})
}

// register makes the node's CiliumNode, or brings it up to date.
func (a *agent) register(ctx context.Context, node *corev1.Node) error {
	var addresses []any
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP || address.Type == corev1.NodeExternalIP {
			addresses = append(addresses, map[string]any{"type": string(address.Type), "ip": address.Address})
		}
	}
	wanted := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": ciliumNodes.GroupVersion().String(),
		"kind":       "CiliumNode",
		"metadata": map[string]any{
			"name": node.Name,
			"ownerReferences": []any{map[string]any{
				"apiVersion": "v1", "kind": "Node", "name": node.Name, "uid": string(node.UID),
			}},
		},
		"spec": map[string]any{
			"addresses": addresses,
			"ipam":      map[string]any{"podCIDRs": []any{node.Spec.PodCIDR}},
		},
	}}
	_, err := a.dynamic.Resource(ciliumNodes).Create(ctx, wanted, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	current, err := a.dynamic.Resource(ciliumNodes).Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	current.Object["spec"] = wanted.Object["spec"]
	_, err = a.dynamic.Resource(ciliumNodes).Update(ctx, current, metav1.UpdateOptions{})
	return err
}

// configureCNI writes the CNI configuration where the chart says, and puts
// other plugins' aside where Cilium is to be the only one.
func (a *agent) configureCNI() error {
	file := a.settings.get("write-cni-conf-when-ready", "")
	if file == "" || a.settings.get("custom-cni-conf", "false") == "true" {
		return nil
	}
	if a.settings.get("cni-exclusive", "true") == "true" {
		if err := setAside(filepath.Dir(file), filepath.Base(file)); err != nil {
			return err
		}
	}
	content, err := json.MarshalIndent(map[string]any{
		"cniVersion": "0.3.1",
		"name":       "cilium",
		"plugins": []any{map[string]any{
			"type":         "cilium-cni",
			"enable-debug": a.settings.get("debug", "false") == "true",
			"log-file":     a.settings.get("cni-log-file", "/var/run/cilium/cilium-cni.log"),
		}},
	}, "", "  ")
	if err != nil {
		return err
	}
	draft := file + ".new"
	if err := os.WriteFile(draft, append(content, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(draft, file)
}

func setAside(dir, keep string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		extension := filepath.Ext(name)
		if name == keep || entry.IsDir() || strings.Contains(name, "cilium") ||
			(extension != ".conf" && extension != ".conflist" && extension != ".json") {
			continue
		}
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, name+".cilium_bak")); err != nil {
			return err
		}
	}
	return nil
}

// watchAPI keeps asking whether the API server answers.
func (a *agent) watchAPI(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := a.kube.CoreV1().Nodes().Get(ctx, nodeName(), metav1.GetOptions{}); err != nil {
			slog.Warn("the API server does not answer", "error", err)
			continue
		}
		a.checked.Store(time.Now().UnixNano())
	}
}

// health answers the chart's probes: startup and readiness need the API server,
// and liveness says by a header that it does not.
func (a *agent) health(r *http.Request) error {
	if !a.ready.Load() {
		return errors.New("the agent is not ready")
	}
	if r.Header.Get("require-k8s-connectivity") != "false" && time.Since(time.Unix(0, a.checked.Load())) > checkValid {
		return errors.New("the API server does not answer")
	}
	return nil
}
