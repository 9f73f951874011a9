// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package node is a small kubelet whose pods are sandboxes of this host
// (package sandbox): it registers a Node, runs what the scheduler binds to it,
// and keeps the pods' status as the cluster's controllers expect it.
//
// It serves pods of any owner. What it does: init containers and sidecars,
// restart policies with back-off, startup, readiness and liveness probes (HTTP,
// TCP, exec, gRPC), postStart and preStop hooks, environment from fields,
// ConfigMaps, Secrets and Services, the volumes emptyDir, hostPath (below the
// node's own root folder), configMap, secret, downwardAPI and projected with
// service account tokens, all kept up to date, graceful deletion, events, and
// container logs over the kubelet's API.
//
// What it accepts and does not enforce: resource limits, capabilities, seccomp
// and the like, fsGroup, hostPID, shareProcessNamespace, mount propagation. A
// container has exactly one user, so files need no owner. An emptyDir in memory
// is a folder. Other volume types keep a pod from starting, and an event says so.
package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/network"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

// Images unpacks images; *oci.Store does.
type Images interface {
	Unpack(ctx context.Context, ref string) (*oci.Image, error)
}

// Config says what node to run.
type Config struct {
	// Name is the Node's name.
	Name string
	// Dir holds the pods' volumes and logs. What lies there of pods that are
	// gone is removed.
	Dir string
	// Root is the folder below which hostPath volumes lie; empty means "root" in
	// Dir. A skeleton of a Linux root file system is made in it.
	Root string
	// Client acts as the node: user system:node:NAME of the group system:nodes
	// has all the rights that are needed.
	Client *rest.Config
	// Network connects the pods. Nodes of one cluster share one.
	Network *network.Network
	// Images are where containers come from.
	Images Images
	// PodCIDR is the range of the pods' addresses; invalid means that of the
	// Node object, which controller-manager gives.
	PodCIDR netip.Prefix
	// Address is the node's InternalIP and the address of its hostNetwork pods.
	Address netip.Addr
	// SandboxAddress is the address that hostNetwork pods have in the network
	// namespace that they share. Invalid means Address. It has to differ where
	// Address exists on this host and serves more than these pods.
	SandboxAddress netip.Addr
	// Addresses are further addresses for the Node's status.
	Addresses []corev1.NodeAddress
	// Labels, Annotations and Taints are those of the Node when it registers.
	// The user system:node:NAME may set only some labels (admission plugin
	// NodeRestriction).
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
	// ProviderID is the Node's spec.providerID; empty leaves it to a cloud
	// controller manager.
	ProviderID string
	// KubernetesVersion is the kubelet version that the Node shows ("v1.36.2").
	KubernetesVersion string
	// OSImage is the operating system that the Node shows.
	OSImage string
	// Ready answers why the node's network is not ready, nil when it is; a nil
	// Ready means always. Meanwhile the Node is NotReady and only hostNetwork
	// pods start.
	Ready func() error
	// Capacity replaces parts of what the node offers. Nothing is enforced, so
	// by default it offers more than this machine may have: pods' requests are
	// made for machines that hold more than one set of controllers.
	Capacity corev1.ResourceList
	// Domain is the cluster's DNS domain; empty means "cluster.local".
	Domain string
	// Serving says what certificate the kubelet's API (logs) shows; its zero
	// value means no such API.
	Serving Serving
	// RestartBackoff and MaxRestartBackoff bound the pause before a container
	// starts again. Zero means 1 s and 60 s, the kubelet's values with its
	// feature gate ReduceDefaultCrashLoopBackOffDecay.
	RestartBackoff, MaxRestartBackoff time.Duration
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Name == "" || c.Dir == "":
		return c, errors.New("a node needs a name and a folder")
	case c.Client == nil || c.Network == nil || c.Images == nil:
		return c, errors.New("a node needs a client, a network and images")
	case !c.Address.IsValid():
		return c, errors.New("a node needs an address")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, fmt.Errorf("making %s absolute: %w", c.Dir, err)
	}
	c.Dir = dir
	if c.Root == "" {
		c.Root = filepath.Join(dir, "root")
	}
	if !c.SandboxAddress.IsValid() {
		c.SandboxAddress = c.Address
	}
	if c.Ready == nil {
		c.Ready = func() error { return nil }
	}
	if c.Domain == "" {
		c.Domain = "cluster.local"
	}
	if c.RestartBackoff == 0 {
		c.RestartBackoff = time.Second
	}
	if c.MaxRestartBackoff == 0 {
		c.MaxRestartBackoff = time.Minute
	}
	return c, nil
}

// Node is a running node.
type Node struct {
	cfg      Config
	client   kubernetes.Interface
	recorder record.EventRecorder
	self     *sandbox.Pod // the network namespace of hostNetwork pods
	pods     cache.SharedIndexInformer

	stop    context.CancelFunc // ends what is not a pod
	kill    context.CancelFunc // ends pods at once
	running sync.WaitGroup     // what is not a pod
	working sync.WaitGroup     // the workers

	mu      sync.Mutex
	workers map[types.UID]*worker
	stopped bool
	ready   chan struct{} // replaced when readiness changes
	why     error         // why the network is not ready
	podCIDR netip.Prefix
}

// Start registers the node and runs its pods until [Node.Stop]. ctx bounds the
// registration only.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, workers: map[types.UID]*worker{}, ready: make(chan struct{}), podCIDR: cfg.PodCIDR}
	if err := n.start(ctx); err != nil {
		return nil, fmt.Errorf("starting node %s: %w", cfg.Name, err)
	}
	return n, nil
}

func (n *Node) start(ctx context.Context) (err error) {
	if err := makeSkeleton(n.cfg.Root); err != nil {
		return err
	}
	if err := os.MkdirAll(n.path("pods"), 0o700); err != nil {
		return fmt.Errorf("making the folder of pods: %w", err)
	}
	config := rest.CopyConfig(n.cfg.Client)
	config.QPS = -1 // a node's own limit only delays its pods here
	if n.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("making its client: %w", err)
	}
	n.why = n.cfg.Ready()
	if err := n.register(ctx); err != nil {
		return err
	}
	if n.self, err = sandbox.Start(ctx, sandbox.PodConfig{
		Name: "node/" + n.cfg.Name, Dir: n.path("self"), Hostname: n.cfg.Name, IP: n.cfg.SandboxAddress,
		Outbound: n.cfg.Network.Dial, DNS: n.cfg.Network,
	}); err != nil {
		return fmt.Errorf("making the network of hostNetwork pods: %w", err)
	}
	n.cfg.Network.Attach(n.cfg.SandboxAddress, n.self.Dial)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stop = stop
	var pods context.Context
	pods, n.kill = context.WithCancel(context.WithoutCancel(ctx))

	broadcaster := record.NewBroadcaster(record.WithContext(background))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: n.client.CoreV1().Events("")})
	n.recorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: n.cfg.Name})
	if err := n.serve(background); err != nil {
		return errors.Join(err, n.Stop(ctx))
	}
	n.running.Go(func() { n.beat(background) })
	n.running.Go(func() { n.watchReadiness(background) })
	return n.followPods(background, pods)
}

// followPods starts a worker for each pod that is bound to this node.
func (n *Node) followPods(background, pods context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.cfg.Name).String()
	}))
	n.pods = factory.Core().V1().Pods().Informer()
	if _, err := n.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { n.observe(pods, obj) },
		UpdateFunc: func(_, obj any) { n.observe(pods, obj) },
		DeleteFunc: n.forget,
	}); err != nil {
		return fmt.Errorf("following the node's pods: %w", err)
	}
	factory.Start(background.Done())
	n.running.Go(func() {
		if cache.WaitForCacheSync(background.Done(), n.pods.HasSynced) {
			n.removeLeftovers()
		}
		<-background.Done()
		factory.Shutdown()
	})
	return nil
}

func (n *Node) observe(ctx context.Context, obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped {
		return
	}
	w, ok := n.workers[pod.UID]
	if !ok {
		w = newWorker(n, pod)
		n.workers[pod.UID] = w
		n.working.Go(func() { w.run(ctx) })
	}
	w.update(pod)
}

func (n *Node) forget(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	n.mu.Lock()
	w := n.workers[pod.UID]
	delete(n.workers, pod.UID)
	n.mu.Unlock()
	if w != nil {
		w.vanish()
	}
}

// removeLeftovers removes the folders of pods that went while the node was not
// running.
func (n *Node) removeLeftovers() {
	entries, err := os.ReadDir(n.path("pods"))
	if err != nil {
		return // they do no harm
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, entry := range entries {
		if _, known := n.workers[types.UID(entry.Name())]; !known {
			_ = os.RemoveAll(n.path("pods", entry.Name()))
		}
	}
}

// Listen listens inside the network of the hostNetwork pods, whose 127.0.0.1 is
// theirs alone. The listener ends with the node.
func (n *Node) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return n.self.Listen(ctx, network, address)
}

// Stop ends the pods as their grace periods allow, or at once when ctx ends, and
// leaves the API objects as they are: to the cluster the node looks switched
// off. Started again on the same folder it runs the same pods again.
func (n *Node) Stop(ctx context.Context) error {
	n.mu.Lock()
	n.stopped = true
	for _, w := range n.workers {
		w.powerOff()
	}
	n.mu.Unlock()
	killAtEnd := context.AfterFunc(ctx, n.kill)
	n.working.Wait()
	killAtEnd()
	n.kill()
	n.stop()
	n.running.Wait()
	n.cfg.Network.Release(n.cfg.SandboxAddress)
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sandboxStop)
	defer cancel()
	if err := n.self.Stop(stopCtx); err != nil {
		return fmt.Errorf("stopping node %s: %w", n.cfg.Name, err)
	}
	return nil
}

// sandboxStop bounds the end of a sandbox, which is a matter of milliseconds.
const sandboxStop = 10 * time.Second

func (n *Node) path(elem ...string) string {
	return filepath.Join(append([]string{n.cfg.Dir}, elem...)...)
}

// makeSkeleton makes the folders that hostPath volumes of common pods expect on
// a Linux machine.
func makeSkeleton(root string) error {
	for _, dir := range []string{
		"dev", "etc/cni/net.d", "etc/kubernetes", "lib/modules", "opt/cni/bin", "proc/sys/net", "proc/sys/kernel",
		"run", "sys/fs/bpf", "sys/fs/cgroup", "tmp", "usr/libexec/kubernetes/kubelet-plugins", "var/lib/kubelet", "var/log", "var/run",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("making the node's root folder: %w", err)
		}
	}
	return nil
}

// CNIConfigured answers a rule for [Config.Ready]: a network configuration has
// to lie in etc/cni/net.d of the node's root folder. The error's text is that of
// a kubelet with containerd.
func CNIConfigured(root string) func() error {
	return func() error {
		for _, pattern := range []string{"*.conf", "*.conflist", "*.json"} {
			if found, err := filepath.Glob(filepath.Join(root, "etc/cni/net.d", pattern)); err == nil && len(found) > 0 {
				return nil
			}
		}
		return errors.New("container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized")
	}
}
