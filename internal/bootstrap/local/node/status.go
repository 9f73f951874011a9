// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// writeStatuses writes the pod's status whenever that is due, until ctx ends.
func (w *worker) writeStatuses(ctx context.Context) {
	for {
		select {
		case <-w.statusDue:
		case <-ctx.Done():
			return
		}
		_ = retry(ctx, func() error { return w.writeStatus(ctx) }) // ends with ctx only
	}
}

// writeStatus writes the pod's status as it is now, unless the API server has it
// already. It patches, since others write conditions of their own.
func (w *worker) writeStatus(ctx context.Context) error {
	w.mu.Lock()
	if w.off || w.isGone {
		w.mu.Unlock()
		return nil
	}
	before := w.written
	after := before.DeepCopy()
	w.fillStatus(&after.Status)
	w.mu.Unlock()
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return nil
	}
	patch, err := statusPatch(before, after)
	if err != nil {
		return err
	}
	written, err := w.node.client.CoreV1().Pods(after.Namespace).Patch(ctx, after.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or another pod of the same name
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing the status of pod %s/%s: %w", after.Namespace, after.Name, err)
	}
	w.mu.Lock()
	w.written = written
	w.mu.Unlock()
	return nil
}

// statusPatch answers a patch that applies to this very pod only.
func statusPatch(before, after *corev1.Pod) ([]byte, error) {
	old, updated := &corev1.Pod{Status: before.Status}, &corev1.Pod{Status: after.Status}
	patch, err := twoWayPatch(old, updated)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, fmt.Errorf("reading a patch back: %w", err)
	}
	fields["metadata"] = map[string]any{"uid": before.UID}
	return json.Marshal(fields)
}

// fillStatus changes what the node knows about in the pod's status. It is called
// with the worker's mutex held.
func (w *worker) fillStatus(s *corev1.PodStatus) {
	s.Phase, s.Reason, s.Message = w.phase(), w.failed, w.message
	if isFinal(s.Phase) && w.sandboxed { // a sidecar may still run
		s.Phase = w.written.Status.Phase
	}
	s.StartTime = &w.started
	s.ObservedGeneration = w.pod.Generation
	s.HostIP = w.node.cfg.Address.String()
	s.HostIPs = []corev1.HostIP{{IP: s.HostIP}}
	if w.ip.IsValid() {
		s.PodIP = w.ip.String()
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	s.QOSClass = w.pod.Status.QOSClass // the API server sets it
	s.InitContainerStatuses, s.ContainerStatuses = nil, nil
	for _, c := range w.containers {
		if c.init {
			s.InitContainerStatuses = append(s.InitContainerStatuses, c.status())
		} else {
			s.ContainerStatuses = append(s.ContainerStatuses, c.status())
		}
	}
	w.fillConditions(s)
}

func (c *container) status() corev1.ContainerStatus {
	started := c.started
	s := corev1.ContainerStatus{
		Name: c.spec.Name, State: c.state, LastTerminationState: c.last, Ready: c.ready && c.state.Running != nil,
		RestartCount: c.restarts, Image: c.image, ImageID: c.imageID, ContainerID: c.id, Started: &started,
	}
	if c.init && !c.sidecar() {
		s.Ready = c.state.Terminated != nil && c.state.Terminated.ExitCode == 0
	}
	return s
}

func (w *worker) fillConditions(s *corev1.PodStatus) {
	var unready []string
	for _, c := range w.containers {
		if (!c.init || c.sidecar()) && (!c.ready || c.state.Running == nil) {
			unready = append(unready, c.spec.Name)
		}
	}
	finished := isFinal(s.Phase)
	containersReady := w.condition(corev1.ContainersReady, len(unready) == 0 && w.readyInit && !finished)
	switch {
	case s.Phase == corev1.PodSucceeded:
		containersReady.Reason = "PodCompleted"
	case s.Phase == corev1.PodFailed:
		containersReady.Reason = "PodFailed"
	case containersReady.Status == corev1.ConditionFalse:
		containersReady.Reason = "ContainersNotReady"
		containersReady.Message = fmt.Sprintf("containers with unready status: %v", unready)
	}
	ready := containersReady
	ready.Type = corev1.PodReady
	if missing := w.missingGates(); len(missing) > 0 && ready.Status == corev1.ConditionTrue {
		ready.Status, ready.Reason = corev1.ConditionFalse, "ReadinessGatesNotReady"
		ready.Message = fmt.Sprintf("the status of pod readiness gates is not \"True\": %v", missing)
	}
	initialized := w.condition(corev1.PodInitialized, w.readyInit || s.Phase == corev1.PodSucceeded)
	if initialized.Status == corev1.ConditionFalse {
		initialized.Reason = "ContainersNotInitialized"
	}
	for _, c := range []corev1.PodCondition{
		w.condition(corev1.PodReadyToStartContainers, w.sandboxed),
		initialized, ready, containersReady,
		w.condition(corev1.PodScheduled, true),
	} {
		s.Conditions = setPodCondition(s.Conditions, c)
	}
}

func (w *worker) condition(kind corev1.PodConditionType, holds bool) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, ObservedGeneration: w.pod.Generation}
	if holds {
		c.Status = corev1.ConditionTrue
	}
	return c
}

// isFinal says whether a pod of this phase never runs again.
func isFinal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// missingGates answers the readiness gates that do not hold.
func (w *worker) missingGates() []corev1.PodConditionType {
	var missing []corev1.PodConditionType
	for _, gate := range w.pod.Spec.ReadinessGates {
		if !slices.ContainsFunc(w.pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		}) {
			missing = append(missing, gate.ConditionType)
		}
	}
	return missing
}

// setPodCondition replaces a condition and keeps its transition time while its
// status stays.
func setPodCondition(conditions []corev1.PodCondition, c corev1.PodCondition) []corev1.PodCondition {
	c.LastTransitionTime = metav1.Now().Rfc3339Copy()
	for i, old := range conditions {
		if old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			conditions[i] = c
			return conditions
		}
	}
	return append(conditions, c)
}

// phase follows getPhase of the kubelet (pkg/kubelet/kubelet_pods.go of
// k8s.io/kubernetes v1.36).
func (w *worker) phase() corev1.PodPhase {
	if w.failed != "" {
		return corev1.PodFailed
	}
	if old := w.written.Status.Phase; isFinal(old) {
		return old
	}
	policy := w.pod.Spec.RestartPolicy
	if phase, decided := w.initPhase(policy); decided {
		return phase
	}
	var waiting, running, stopped, succeeded int
	for _, c := range w.containers {
		switch {
		case c.init:
		case c.state.Running != nil:
			running++
		case c.state.Terminated != nil:
			stopped++
			if c.state.Terminated.ExitCode == 0 {
				succeeded++
			}
		case c.last.Terminated != nil: // waits for its restart
			stopped++
		default:
			waiting++
		}
	}
	ending := w.isDeleting && !w.sandboxed
	switch {
	case waiting > 0 && !ending:
		return corev1.PodPending
	case running > 0:
		return corev1.PodRunning
	case policy == corev1.RestartPolicyAlways && !ending:
		return corev1.PodRunning
	case stopped > 0 && stopped == succeeded:
		return corev1.PodSucceeded
	case policy == corev1.RestartPolicyNever || ending:
		return corev1.PodFailed
	}
	return corev1.PodRunning
}

func (w *worker) initPhase(policy corev1.RestartPolicy) (corev1.PodPhase, bool) {
	for _, c := range w.containers {
		if !c.init || c.sidecar() {
			continue
		}
		switch t := c.state.Terminated; {
		case t != nil && t.ExitCode == 0:
		case t != nil && policy == corev1.RestartPolicyNever:
			return corev1.PodFailed, true
		case w.isDeleting && !w.sandboxed:
			return corev1.PodFailed, true
		default:
			return corev1.PodPending, true
		}
	}
	return "", false
}
