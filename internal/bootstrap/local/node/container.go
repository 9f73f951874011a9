// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

// container is one container of a pod, over all its restarts.
type container struct {
	w    *worker
	spec *corev1.Container
	init bool
	// everStarted is closed once the container has started for the first time,
	// its startup probe included.
	everStarted chan struct{}

	// Guarded by the worker's mutex.
	state    corev1.ContainerState
	last     corev1.ContainerState
	ready    bool
	started  bool
	restarts int32
	image    string
	imageID  string
	id       string
	running  *sandbox.Container
	attempt  int // counts starts of this object: names logs
}

// newContainer takes over what an earlier life of the node left in the pod's
// status: what was running then has ended.
func newContainer(w *worker, spec *corev1.Container, init bool, before []corev1.ContainerStatus) *container {
	c := &container{w: w, spec: spec, init: init, image: spec.Image, everStarted: make(chan struct{})}
	c.state = waiting("PodInitializing", "")
	if init || len(w.pod.Spec.InitContainers) == 0 {
		c.state = waiting("ContainerCreating", "")
	}
	for _, old := range before {
		if old.Name != spec.Name || old.ContainerID == "" {
			continue
		}
		c.last, c.restarts, c.imageID, c.id = old.LastTerminationState, old.RestartCount, old.ImageID, old.ContainerID
		c.attempt = int(old.RestartCount) + 1
		switch {
		case old.State.Terminated != nil:
			c.state = old.State
		case old.State.Running != nil:
			c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The node was switched off while the container ran",
				StartedAt: old.State.Running.StartedAt, FinishedAt: metav1.Now(), ContainerID: old.ContainerID,
			}}
		}
	}
	return c
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func (c *container) sidecar() bool {
	return c.init && c.spec.RestartPolicy != nil && *c.spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// set changes the container's state under the worker's mutex and has the status
// written.
func (c *container) set(change func()) {
	c.w.mu.Lock()
	change()
	c.w.mu.Unlock()
	c.w.touch()
}

// waitStarted waits until the container has started for the first time, and
// answers false when the pod ends before.
func (c *container) waitStarted(alive context.Context) bool {
	select {
	case <-c.everStarted:
		return true
	case <-alive.Done():
		return false
	}
}

// keep runs the container again and again as its restart policy says. It
// answers whether its last run succeeded; when alive ends, the container is
// stopped first.
func (c *container) keep(ctx, alive context.Context) bool {
	if done, ok := c.doneBefore(); done {
		return ok
	}
	backoff := c.w.node.cfg.RestartBackoff
	for {
		began := time.Now()
		exit, ran := c.once(ctx, alive)
		if alive.Err() != nil {
			return false
		}
		if ran && !c.restartAfter(exit) {
			return exit.Code == 0
		}
		// The kubelet forgets the back-off after twice its longest.
		if time.Since(began) > 2*c.w.node.cfg.MaxRestartBackoff {
			backoff = c.w.node.cfg.RestartBackoff
		}
		if ran {
			c.awaitRestart(backoff)
		}
		if !sleep(alive, backoff) {
			return false
		}
		backoff = min(2*backoff, c.w.node.cfg.MaxRestartBackoff)
		if ran {
			c.set(func() { c.restarts++ })
		}
	}
}

// doneBefore says whether an earlier life of the node has seen the container's
// end, and whether that was a success.
func (c *container) doneBefore() (done, success bool) {
	c.w.mu.Lock()
	terminated := c.state.Terminated
	c.w.mu.Unlock()
	if terminated == nil {
		return false, false
	}
	if c.restartAfter(sandbox.Exit{Code: int(terminated.ExitCode)}) {
		c.set(func() {
			c.last = c.state
			c.state = waiting("ContainerCreating", "")
			c.restarts++
		})
		return false, false
	}
	return true, terminated.ExitCode == 0
}

// restartAfter says whether the container runs again after such an end.
func (c *container) restartAfter(exit sandbox.Exit) bool {
	policy := c.w.object().Spec.RestartPolicy
	switch {
	case c.sidecar():
		return true
	case c.init && policy == corev1.RestartPolicyAlways:
		policy = corev1.RestartPolicyOnFailure
	case !c.init && c.spec.RestartPolicy != nil:
		policy = corev1.RestartPolicy(*c.spec.RestartPolicy)
	}
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && exit.Code != 0
}

func (c *container) awaitRestart(backoff time.Duration) {
	pod := c.w.object()
	message := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", backoff, c.spec.Name, pod.Name, pod.Namespace, pod.UID)
	c.set(func() {
		c.last = c.state
		c.state = waiting("CrashLoopBackOff", message)
	})
	c.w.event(corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container "+c.spec.Name)
}

// once starts the container and waits until it has ended. ran is false when it
// never started for a reason that may pass.
func (c *container) once(ctx, alive context.Context) (exit sandbox.Exit, ran bool) {
	image, err := c.w.node.cfg.Images.Unpack(alive, c.spec.Image)
	if err != nil {
		c.cannotPull(alive, err)
		return exit, false
	}
	config, err := c.config(alive, image)
	if err != nil {
		if alive.Err() == nil {
			c.set(func() { c.state = waiting("CreateContainerConfigError", err.Error()) })
			c.w.event(corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
		}
		return exit, false
	}
	pod := c.w.sandbox()
	if pod == nil {
		return exit, false
	}
	began := metav1.Now()
	running, err := pod.StartContainer(alive, *config)
	if err != nil {
		if alive.Err() != nil || errors.Is(err, sandbox.ErrNotRunning) {
			return exit, false
		}
		c.cannotStart(began, err)
		return sandbox.Exit{Code: startErrorCode}, true
	}
	c.hasStarted(image, running)
	exit = c.watch(ctx, alive, running)
	c.hasEnded(exit)
	return exit, true
}

// startErrorCode is the exit code of a container whose command cannot be
// executed, as container runtimes report it.
const startErrorCode = 128

func (w *worker) sandbox() *sandbox.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.boxed
}

func (c *container) cannotPull(alive context.Context, err error) {
	if alive.Err() != nil {
		return
	}
	c.set(func() {
		reason := "ErrImagePull"
		if old := c.state.Waiting; old != nil && (old.Reason == "ErrImagePull" || old.Reason == "ImagePullBackOff") {
			reason = "ImagePullBackOff"
		}
		c.state = waiting(reason, err.Error())
	})
	c.w.event(corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", c.spec.Image, err))
}

func (c *container) cannotStart(began metav1.Time, err error) {
	c.set(func() {
		c.attempt++
		c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: startErrorCode, Reason: "StartError", Message: err.Error(), StartedAt: began, FinishedAt: metav1.Now(),
		}}
	})
	c.w.event(corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
}

func (c *container) hasStarted(image *oci.Image, running *sandbox.Container) {
	c.set(func() {
		c.running = running
		c.id = fmt.Sprintf("process://%s.%s.%d", c.w.pod.UID, c.spec.Name, c.attempt)
		c.attempt++
		c.imageID = image.Digest
		c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		c.ready, c.started = false, false
	})
	c.w.event(corev1.EventTypeNormal, "Started", "Started container "+c.spec.Name)
}

func (c *container) hasEnded(exit sandbox.Exit) {
	message := c.terminationMessage(exit)
	reason := "Completed"
	if exit.Code != 0 {
		reason = "Error"
	}
	c.set(func() {
		state := &corev1.ContainerStateTerminated{
			ExitCode: int32(exit.Code), Reason: reason, Message: message, ContainerID: c.id,
			FinishedAt: metav1.NewTime(exit.FinishedAt),
		}
		if c.state.Running != nil {
			state.StartedAt = c.state.Running.StartedAt
		}
		c.state = corev1.ContainerState{Terminated: state}
		c.ready, c.started, c.running = false, false, nil
	})
}

// watch probes a running container and waits for its end; when alive ends, or
// liveness fails, it stops the container.
func (c *container) watch(ctx, alive context.Context, running *sandbox.Container) sandbox.Exit {
	probing, endProbes := context.WithCancel(alive)
	defer endProbes()
	unwell := make(chan string, 3)
	go func() {
		if !c.afterStart(probing, running, unwell) {
			return
		}
		c.probe(probing, running, unwell)
	}()
	select {
	case <-running.Done():
	case why := <-unwell:
		c.w.event(corev1.EventTypeNormal, "Killing", fmt.Sprintf("Container %s %s, will be restarted", c.spec.Name, why))
		endProbes()
		c.stop(ctx, running, c.ownGrace())
	case <-alive.Done():
		c.w.event(corev1.EventTypeNormal, "Killing", "Stopping container "+c.spec.Name)
		endProbes()
		c.stop(ctx, running, c.w.grace())
	}
	exit, err := running.Wait(context.WithoutCancel(ctx))
	if err != nil { // the pod's shim is gone, and the container with it
		exit = sandbox.Exit{Code: 137, FinishedAt: time.Now()}
	}
	return exit
}

// ownGrace is how long a container may take to end when its probe failed.
func (c *container) ownGrace() time.Duration {
	if p := c.spec.LivenessProbe; p != nil && p.TerminationGracePeriodSeconds != nil {
		return time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
	}
	return c.w.grace()
}

// stop runs the preStop hook and ends the container, all within the grace
// period; at once when ctx ends.
func (c *container) stop(ctx context.Context, running *sandbox.Container, grace time.Duration) {
	deadline := time.Now().Add(grace)
	c.beforeStop(ctx, running, grace)
	// However little the hook left, the container gets two seconds to end, as
	// with the kubelet.
	left := max(time.Until(deadline), 2*time.Second)
	if _, err := running.Stop(ctx, left); err != nil {
		_ = running.Signal(killSignal) // ctx has ended; nothing else is left to do
	}
}

// terminationMessage reads what the container left as its last word.
func (c *container) terminationMessage(exit sandbox.Exit) string {
	const most = 4096 // the kubelet's limit
	text := ""
	if data, err := os.ReadFile(c.messageFile()); err == nil {
		text = string(data)
	}
	if text == "" && exit.Code != 0 && c.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		text = lastLines(c.logPath(c.attempt-1), 80, 2048)
	}
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

func (c *container) messageFile() string {
	return filepath.Join(c.w.dir, "messages", c.spec.Name)
}

func (c *container) logPath(attempt int) string {
	return filepath.Join(c.w.logs, c.spec.Name, strconv.Itoa(attempt)+".log")
}
