// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodRunsAndIsDeletedWithItsFolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.create(w.pod("p"))
	pod := w.waitReady("p")
	if pod.Status.Phase != corev1.PodRunning || !strings.HasPrefix(pod.Status.PodIP, "10.244.") || pod.Status.HostIP != w.address.String() || pod.Status.StartTime == nil {
		t.Errorf("unexpected status %v", pod.Status)
	}
	s := pod.Status.ContainerStatuses[0]
	if s.State.Running == nil || !s.Ready || s.Started == nil || !*s.Started || s.ContainerID == "" || s.ImageID != "sha256:0123" {
		t.Errorf("unexpected container status %v", s)
	}
	if err := w.client.CoreV1().Pods(w.name).Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the pod is gone", func(ctx context.Context) (bool, error) {
		_, err := w.client.CoreV1().Pods(w.name).Get(ctx, "p", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

func TestJobCompletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	template := w.pod("job", "exit", "0", "done")
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: w.name},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels}, Spec: template.Spec}},
	}
	if _, err := w.client.BatchV1().Jobs(w.name).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the job is complete", func(ctx context.Context) (bool, error) {
		job, err := w.client.BatchV1().Jobs(w.name).Get(ctx, "job", metav1.GetOptions{})
		return err == nil && job.Status.Succeeded == 1, err
	})
}
