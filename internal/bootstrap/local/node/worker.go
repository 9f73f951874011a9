// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

// worker runs one pod from its binding to this node until its object is gone.
type worker struct {
	node *Node
	dir  string // pods/<uid>
	logs string

	// ending is closed when the pod has to end: it is deleted, gone, failed, or
	// the node is switched off.
	ending    chan struct{}
	endOnce   sync.Once
	statusDue chan struct{} // capacity 1
	deleting  chan struct{} // closed when the object has a deletion time
	gone      chan struct{} // closed when the object is gone
	poweroff  chan struct{} // closed when the node is switched off

	mu         sync.Mutex
	pod        *corev1.Pod // as the API server has it
	written    *corev1.Pod // what the last status patch answered
	off        bool        // the node is switched off: the API keeps what it has
	isDeleting bool
	isGone     bool
	ip         netip.Addr
	sandboxed  bool
	readyInit  bool   // all init containers are done
	failed     string // reason of a pod that failed as a whole, such as DeadlineExceeded
	message    string
	started    metav1.Time
	boxed      *sandbox.Pod
	containers []*container // init containers first, in the order of the pod
	volumes    *volumes
}

// errSandboxLost says that the pod's namespaces are gone though nobody ended
// them.
var errSandboxLost = errors.New("the pod's sandbox is gone")

func newWorker(n *Node, pod *corev1.Pod) *worker {
	w := &worker{
		node: n, pod: pod, written: pod,
		dir:       n.path("pods", string(pod.UID)),
		logs:      n.path("pods", string(pod.UID), "logs"),
		ending:    make(chan struct{}),
		deleting:  make(chan struct{}),
		gone:      make(chan struct{}),
		poweroff:  make(chan struct{}),
		statusDue: make(chan struct{}, 1),
		started:   metav1.Now(),
	}
	if pod.Status.StartTime != nil {
		w.started = *pod.Status.StartTime
	}
	for i := range pod.Spec.InitContainers {
		w.containers = append(w.containers, newContainer(w, &pod.Spec.InitContainers[i], true, pod.Status.InitContainerStatuses))
	}
	for i := range pod.Spec.Containers {
		w.containers = append(w.containers, newContainer(w, &pod.Spec.Containers[i], false, pod.Status.ContainerStatuses))
	}
	w.volumes = newVolumes(w)
	return w
}

// update takes the API server's newest object.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.pod = pod
	deleted := pod.DeletionTimestamp != nil && !w.isDeleting
	w.isDeleting = w.isDeleting || deleted
	w.mu.Unlock()
	if deleted {
		close(w.deleting)
		w.end()
	}
	w.touch()
}

// vanish notes that the object is gone.
func (w *worker) vanish() {
	w.mu.Lock()
	first := !w.isGone
	w.isGone = true
	w.mu.Unlock()
	if first {
		close(w.gone)
	}
	w.end()
}

// powerOff ends the pod without a word to the API server.
func (w *worker) powerOff() {
	w.mu.Lock()
	first := !w.off
	w.off = true
	w.mu.Unlock()
	if first {
		close(w.poweroff)
	}
	w.end()
}

func (w *worker) end() { w.endOnce.Do(func() { close(w.ending) }) }

func (w *worker) object() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

func (w *worker) hostNetwork() bool { return w.object().Spec.HostNetwork }

// run is the pod's life. ctx ends when everything has to go at once.
func (w *worker) run(ctx context.Context) {
	var writing sync.WaitGroup
	writer, stopWriter := context.WithCancel(ctx)
	writing.Go(func() { w.writeStatuses(writer) })
	if !isFinal(w.object().Status.Phase) {
		w.live(ctx)
	}
	stopWriter()
	writing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-w.poweroff:
			cancel()
		case <-ctx.Done():
		}
	}()
	_ = retry(ctx, func() error { return w.writeStatus(ctx) }) // ends with ctx only
	select {
	case <-w.deleting:
		w.deleteObject(ctx)
	case <-w.gone:
	case <-ctx.Done():
		return
	}
	select {
	case <-w.gone:
		_ = os.RemoveAll(w.dir) // else the next start of the node does
	case <-ctx.Done():
	}
}

// live starts the pod and keeps it until it is done or has to end; afterwards
// none of its processes is left.
func (w *worker) live(ctx context.Context) {
	life, endLife := context.WithCancel(ctx)
	defer endLife()
	go func() {
		select {
		case <-w.ending:
			endLife()
		case <-life.Done():
		}
	}()
	if deadline := w.object().Spec.ActiveDeadlineSeconds; deadline != nil {
		until := w.started.Add(time.Duration(*deadline) * time.Second)
		timer := time.AfterFunc(time.Until(until), func() {
			w.fail("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
		})
		defer timer.Stop()
	}
	for {
		err := w.startAndKeep(ctx, life)
		w.stopSandbox(ctx)
		if !errors.Is(err, errSandboxLost) || life.Err() != nil {
			return
		}
		w.event(corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
}

// fail ends the pod as a whole.
func (w *worker) fail(reason, message string) {
	w.mu.Lock()
	w.failed, w.message = reason, message
	w.mu.Unlock()
	w.event(corev1.EventTypeWarning, reason, message)
	w.end()
}

func (w *worker) startAndKeep(ctx, life context.Context) error {
	if err := w.prepare(life); err != nil {
		return err
	}
	lost := make(chan struct{})
	alive, endAlive := context.WithCancelCause(life)
	defer endAlive(nil)
	go func() {
		select {
		case <-w.boxed.Done():
			endAlive(errSandboxLost)
		case <-alive.Done():
		}
		close(lost)
	}()
	w.volumes.follow(alive)
	w.keepContainers(ctx, alive)
	cause := context.Cause(alive)
	endAlive(nil)
	<-lost
	w.volumes.wait()
	return cause
}

// prepare makes volumes and sandbox, as often as it takes.
func (w *worker) prepare(life context.Context) error {
	if !w.hostNetwork() {
		if why := w.node.notReady(); why != nil {
			w.event(corev1.EventTypeWarning, "NetworkNotReady", "network is not ready: "+why.Error())
			if err := w.node.waitReady(life); err != nil {
				return err
			}
		}
	}
	if err := retry(life, func() error { return w.reporting("FailedMount", w.volumes.prepare(life)) }); err != nil {
		return err
	}
	return retry(life, func() error { return w.reporting("FailedCreatePodSandBox", w.startSandbox(life)) })
}

// reporting tells an error as an event.
func (w *worker) reporting(reason string, err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		w.event(corev1.EventTypeWarning, reason, err.Error())
	}
	return err
}

func (w *worker) startSandbox(ctx context.Context) error {
	pod := w.object()
	if err := os.MkdirAll(w.logs, 0o700); err != nil {
		return fmt.Errorf("making the folder of logs: %w", err)
	}
	config := sandbox.PodConfig{
		Name: pod.Namespace + "/" + pod.Name, Dir: filepath.Join(w.dir, "sandbox"), Hostname: pod.Spec.Hostname,
		Outbound: w.node.cfg.Network.Dial, DNS: w.node.cfg.Network,
	}
	if config.Hostname == "" {
		config.Hostname = pod.Name
	}
	if len(config.Hostname) > maxHostname {
		config.Hostname = config.Hostname[:maxHostname]
	}
	w.resolving(&config, pod)
	// A hostNetwork pod's address is the one that its network has: that is where
	// probes and Services reach it.
	ip := w.node.cfg.SandboxAddress
	if pod.Spec.HostNetwork {
		config.ShareNetwork, config.Hostname = w.node.self, w.node.cfg.Name
	} else {
		prefix, err := w.node.podRange(ctx)
		if err != nil {
			return err
		}
		if ip, err = w.node.cfg.Network.Allocate(prefix); err != nil {
			return fmt.Errorf("taking an address: %w", err)
		}
		config.IP = ip
	}
	started, err := sandbox.Start(ctx, config)
	if err != nil {
		if !pod.Spec.HostNetwork {
			w.node.cfg.Network.Release(ip)
		}
		return fmt.Errorf("making the pod's namespaces: %w", err)
	}
	if !pod.Spec.HostNetwork {
		w.node.cfg.Network.Attach(ip, started.Dial)
	}
	w.mu.Lock()
	w.boxed, w.ip, w.sandboxed = started, ip, true
	w.mu.Unlock()
	w.touch()
	return nil
}

// maxHostname is the kernel's limit (HOST_NAME_MAX), at which the kubelet cuts.
const maxHostname = 63

// resolving fills in how the pod resolves names.
func (w *worker) resolving(config *sandbox.PodConfig, pod *corev1.Pod) {
	domain := w.node.cfg.Domain
	if policy := pod.Spec.DNSPolicy; policy == corev1.DNSClusterFirst && !pod.Spec.HostNetwork || policy == corev1.DNSClusterFirstWithHostNet || policy == "" {
		config.Search = []string{pod.Namespace + ".svc." + domain, "svc." + domain, domain}
		config.DNSOptions = []string{"ndots:5"}
	}
	if more := pod.Spec.DNSConfig; more != nil {
		config.Search = append(config.Search, more.Searches...)
		for _, option := range more.Options {
			text := option.Name
			if option.Value != nil {
				text += ":" + *option.Value
			}
			config.DNSOptions = append(config.DNSOptions, text)
		}
	}
	for _, alias := range pod.Spec.HostAliases {
		if ip, err := netip.ParseAddr(alias.IP); err == nil {
			config.HostAliases = append(config.HostAliases, sandbox.HostAlias{IP: ip, Hostnames: alias.Hostnames})
		}
	}
}

func (w *worker) stopSandbox(ctx context.Context) {
	w.mu.Lock()
	pod, ip := w.boxed, w.ip
	w.boxed, w.sandboxed = nil, false
	w.mu.Unlock()
	if pod == nil {
		return
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sandboxStop)
	defer cancel()
	if err := pod.Stop(stopCtx); err != nil {
		w.event(corev1.EventTypeWarning, "FailedKillPod", err.Error())
	}
	if !w.hostNetwork() {
		w.node.cfg.Network.Release(ip)
	}
	w.touch()
}

// keepContainers runs the init containers one after the other, then the others
// side by side, until all of those are done or alive ends. Sidecars end last.
func (w *worker) keepContainers(ctx, alive context.Context) {
	sidecars, endSidecars := context.WithCancel(context.WithoutCancel(alive))
	var beside sync.WaitGroup
	defer beside.Wait()
	defer endSidecars()
	for _, c := range w.containers {
		switch {
		case !c.init:
			continue
		case c.sidecar():
			beside.Go(func() { c.keep(ctx, sidecars) })
			if !c.waitStarted(alive) {
				return
			}
		case !c.keep(ctx, alive):
			return
		}
	}
	w.mu.Lock()
	w.readyInit = true
	w.mu.Unlock()
	w.touch()
	var main sync.WaitGroup
	for _, c := range w.containers {
		if !c.init {
			main.Go(func() { c.keep(ctx, alive) })
		}
	}
	main.Wait()
}

// grace is how long containers may take to end.
func (w *worker) grace() time.Duration {
	pod := w.object()
	seconds := int64(30)
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		seconds = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	return time.Duration(max(seconds, 1)) * time.Second
}

// deleteObject tells the API server that the pod has ended, which removes it.
func (w *worker) deleteObject(ctx context.Context) {
	pod := w.object()
	now := int64(0)
	_ = retry(ctx, func() error { // ends with ctx, or when the object is gone
		select {
		case <-w.gone:
			return nil
		default:
		}
		err := w.node.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or another of the same name
			return nil
		}
		return err
	})
}

func (w *worker) event(kind, reason, message string) {
	w.node.recorder.Event(w.object(), kind, reason, message)
}

// touch asks for the status to be written.
func (w *worker) touch() {
	select {
	case w.statusDue <- struct{}{}:
	default:
	}
}

// find answers a container by its name.
func (w *worker) find(name string) *container {
	if i := slices.IndexFunc(w.containers, func(c *container) bool { return c.spec.Name == name }); i >= 0 {
		return w.containers[i]
	}
	return nil
}

const (
	retryFirst = 200 * time.Millisecond
	retryMost  = 5 * time.Second
)

// retry calls f until it succeeds or ctx ends; the error is ctx's then, with
// f's last one.
func retry(ctx context.Context, f func() error) error {
	pause := retryFirst
	for {
		err := f()
		if err == nil {
			return nil
		}
		if !sleep(ctx, pause) {
			return errors.Join(ctx.Err(), err)
		}
		pause = min(2*pause, retryMost)
	}
}

// sleep waits and says whether it could before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
