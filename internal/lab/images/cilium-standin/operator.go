// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/yaml"
)

const (
	// crdDir holds Cilium's own CRDs in the operator's image.
	crdDir = "/usr/share/cilium/crds"
	// The names are Cilium's (v1.19.6, operator/cmd/root.go and operator/watchers/node_taint.go).
	operatorLock  = "cilium-operator-resource-lock"
	agentLabel    = "k8s-app=cilium"
	upReason      = "CiliumIsUp"
	upMessage     = "Cilium is running on this node"
	defaultTaint  = "node.cilium.io/agent-not-ready"
	nodesInterval = time.Second
)

// operator is the cluster's cilium-operator.
type operator struct {
	settings settings
	kube     kubernetes.Interface
	crds     clientset.Interface
}

func runOperator(ctx context.Context, args []string) error {
	settings, err := readSettings(args)
	if err != nil {
		return err
	}
	config, err := connection()
	if err != nil {
		return err
	}
	o := &operator{settings: settings}
	if o.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if o.crds, err = clientset.NewForConfig(config); err != nil {
		return err
	}
	if _, err := serve(ctx, settings.get("operator-api-serve-addr", "127.0.0.1:9234"), "/healthz", o.health); err != nil {
		return err
	}
	return o.lead(ctx)
}

// health is that of the connection to the API server.
func (o *operator) health(r *http.Request) error {
	_, err := o.kube.Discovery().ServerVersion()
	return err
}

// lead works as long as it is the leader; losing the lease ends the program.
func (o *operator) lead(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, namespace(), operatorLock,
		o.kube.CoreV1(), o.kube.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s-%d", host, os.Getpid())})
	if err != nil {
		return err
	}
	// The elector keeps trying when the API server refuses; the real
	// operator's own start ends then, since it lists what it watches first.
	if _, err := o.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1}); refused(err) {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan error, 1)
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				result <- o.work(ctx)
				cancel()
			},
			OnStoppedLeading: func() {},
		},
	})
	select {
	case err := <-result:
		return err
	default:
		return errors.Join(ctx.Err(), errors.New("lost the leader's lease"))
	}
}

func (o *operator) work(ctx context.Context) error {
	if err := o.makeCRDs(ctx); err != nil {
		return err
	}
	for {
		if err := o.markNodes(ctx); refused(err) {
			return err
		} else if err != nil {
			slog.Warn("nodes are not marked", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(nodesInterval):
		}
	}
}

func (o *operator) makeCRDs(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(crdDir, "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("there are no CRDs in %s", crdDir)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(content, &crd); err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		if err := until(ctx, "making CRD "+crd.Name, func(ctx context.Context) (bool, error) {
			_, err := o.crds.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, &crd, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				err = nil
			}
			return true, err
		}); err != nil {
			return err
		}
	}
	slog.Info("made the CRDs", "count", len(files))
	return nil
}

// markNodes taints nodes whose agents are not ready, and frees the others.
func (o *operator) markNodes(ctx context.Context) error {
	pods, err := o.kube.CoreV1().Pods(namespace()).List(ctx, metav1.ListOptions{LabelSelector: agentLabel})
	if err != nil {
		return err
	}
	agents := map[string]bool{} // by node: is it ready?
	for _, pod := range pods.Items {
		if pod.Spec.NodeName != "" {
			agents[pod.Spec.NodeName] = agents[pod.Spec.NodeName] || podReady(&pod)
		}
	}
	nodes, err := o.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		ready, scheduled := agents[node.Name]
		if !scheduled {
			continue
		}
		if err := o.mark(ctx, &node, ready); err != nil {
			return fmt.Errorf("marking node %s: %w", node.Name, err)
		}
	}
	return nil
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (o *operator) mark(ctx context.Context, node *corev1.Node, ready bool) error {
	key := o.settings.get("agent-not-ready-taint-key", defaultTaint)
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == key })
	if !ready && o.settings.get("set-cilium-node-taints", "false") == "true" {
		taints = append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	if len(taints) != len(node.Spec.Taints) {
		// As Cilium does it: only if nobody else has changed the taints meanwhile.
		patch := []map[string]any{
			{"op": "test", "path": "/spec/taints", "value": node.Spec.Taints},
			{"op": "replace", "path": "/spec/taints", "value": taints},
		}
		if len(node.Spec.Taints) == 0 {
			patch = []map[string]any{{"op": "add", "path": "/spec/taints", "value": taints}}
		}
		if err := o.patch(ctx, node.Name, types.JSONPatchType, patch); err != nil {
			return err
		}
	}
	if !ready || o.settings.get("set-cilium-is-up-condition", "false") != "true" || isUp(node) {
		return nil
	}
	now := metav1.Now()
	return o.patch(ctx, node.Name, types.StrategicMergePatchType, map[string]any{
		"status": map[string]any{"conditions": []corev1.NodeCondition{{
			Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
			Reason: upReason, Message: upMessage, LastTransitionTime: now, LastHeartbeatTime: now,
		}}},
	}, "status")
}

func isUp(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse && c.Reason == upReason
	})
}

func (o *operator) patch(ctx context.Context, node string, kind types.PatchType, patch any, subresources ...string) error {
	content, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = o.kube.CoreV1().Nodes().Patch(ctx, node, kind, content, metav1.PatchOptions{}, subresources...)
	return err
}
