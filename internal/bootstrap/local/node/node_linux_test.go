// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
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

func TestPodThatDoesNotTolerateTheNodesTaintStaysPending(t *testing.T) {
	t.Parallel()
	taint := corev1.Taint{Key: "example.com/reserved", Value: "yes", Effect: corev1.TaintEffectNoSchedule}
	w := newWorld(t, func(c *Config) { c.Taints = []corev1.Taint{taint} })
	w.create(w.pod("stranger"))
	guest := w.pod("guest")
	guest.Spec.Tolerations = []corev1.Toleration{{Key: taint.Key, Operator: corev1.TolerationOpExists}}
	w.create(guest)
	w.waitReady("guest")
	w.waitFor("stranger", "is refused by the scheduler", func(pod *corev1.Pod) bool {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "untolerated taint") {
				return pod.Status.Phase == corev1.PodPending && pod.Spec.NodeName == ""
			}
		}
		return false
	})
}

func TestNodeIsReadyOnceANetworkConfigurationLiesInItsRoot(t *testing.T) {
	t.Parallel()
	var root string
	w := newWorld(t, func(c *Config) {
		root = filepath.Join(c.Dir, "root")
		c.Root, c.Ready = root, CNIConfigured(root)
	})
	ready := func(ctx context.Context, want corev1.ConditionStatus) (bool, error) {
		node, err := w.client.CoreV1().Nodes().Get(ctx, w.name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == want, nil
			}
		}
		return false, nil
	}
	w.eventually("the node is not ready", func(ctx context.Context) (bool, error) { return ready(ctx, corev1.ConditionFalse) })
	everything := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	plain := w.pod("plain")
	plain.Spec.Tolerations = everything
	w.create(plain)
	// As a CNI plugin's DaemonSet does it: a pod of the node's network writes the
	// configuration through a hostPath.
	plugin := w.pod("plugin", "touch", "/host/net.d/05-test.conflist")
	plugin.Spec.HostNetwork, plugin.Spec.Tolerations, plugin.Spec.RestartPolicy = true, everything, corev1.RestartPolicyNever
	kind := corev1.HostPathDirectoryOrCreate
	plugin.Spec.Volumes = []corev1.Volume{{Name: "cni", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/cni", Type: &kind}}}}
	plugin.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "cni", MountPath: "/host"}}
	w.waitFor("plain", "waits for the network", func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodPending && pod.Status.PodIP == ""
	})
	w.create(plugin)
	done := w.waitPhase("plugin", corev1.PodSucceeded)
	if done.Status.PodIP != w.address.String() {
		t.Errorf("a hostNetwork pod has the address %s, want the node's %s", done.Status.PodIP, w.address)
	}
	w.eventually("the node is ready", func(ctx context.Context) (bool, error) { return ready(ctx, corev1.ConditionTrue) })
	w.waitReady("plain")
	if _, err := os.Stat(filepath.Join(root, "etc/cni/net.d/05-test.conflist")); err != nil {
		t.Error(err)
	}
}

func TestFailingContainerIsRestartedWithBackOffAndTellsItsLastWord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.create(w.pod("p", "exit", "3", "no way"))
	pod := w.waitFor("p", "is in a crash loop", func(pod *corev1.Pod) bool {
		s := pod.Status.ContainerStatuses
		return len(s) == 1 && s[0].RestartCount >= 2 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated
	if pod.Status.Phase != corev1.PodRunning || last == nil || last.ExitCode != 3 || last.Reason != "Error" || last.Message != "no way" {
		t.Errorf("phase %s, last state %v", pod.Status.Phase, last)
	}
	if log := w.logs("p", &corev1.PodLogOptions{Previous: true}); log != "no way\n" {
		t.Errorf("the log of the run before: %q", log)
	}
}

func TestContainerWaitsForWhatItsConfigurationNeeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	byEnv, byVolume := w.pod("env"), w.pod("volume", "show", "/etc/secret/key")
	byEnv.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{
		SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "key"},
	}}}
	byVolume.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
	byVolume.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "s", MountPath: "/etc/secret"}}
	noImage := w.pod("image")
	noImage.Spec.Containers[0].Image = "example.com/absent:v1"
	for _, pod := range []*corev1.Pod{byEnv, byVolume, noImage} {
		w.create(pod)
	}
	waits := func(reasons ...string) func(*corev1.Pod) bool {
		return func(pod *corev1.Pod) bool {
			s := pod.Status.ContainerStatuses
			return len(s) == 1 && s[0].State.Waiting != nil && slices.Contains(reasons, s[0].State.Waiting.Reason)
		}
	}
	w.waitFor("env", "waits for its secret", waits("CreateContainerConfigError"))
	w.waitFor("image", "waits for its image", waits("ImagePullBackOff"))
	w.eventually("an event tells of the volume", func(ctx context.Context) (bool, error) {
		events, err := w.client.CoreV1().Events(w.name).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedMount,involvedObject.name=volume"})
		return err == nil && len(events.Items) > 0, err
	})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "value"}}
	if _, err := w.client.CoreV1().Secrets(w.name).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitReady("env")
	w.waitReady("volume")
	if log := w.logs("volume", &corev1.PodLogOptions{}); !strings.HasPrefix(log, "/etc/secret/key=value <nil>\n") {
		t.Errorf("the pod saw %s", log)
	}
}

func TestPodSeesItsServiceAccountItsFieldsAndTheAPIServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	pod := w.pod("p", "show", account+"namespace", account+"token", account+"ca.crt", "/etc/podinfo/labels", "$(GREETING)")
	uid := int64(1234)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &uid}
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "IP", ValueFrom: field("status.podIP")}, {Name: "NAME", ValueFrom: field("metadata.name")},
		{Name: "LABEL", ValueFrom: field("metadata.labels['app']")}, {Name: "GREETING", Value: "/$(NAME)/$$(NAME)"},
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}},
	}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "info", MountPath: "/etc/podinfo"}}
	w.create(pod)
	ready := w.waitReady("p")
	log := w.logs("p", &corev1.PodLogOptions{})
	for _, want := range []string{
		account + "namespace=" + w.name + " <nil>", account + "token=ey", account + "ca.crt=-----BEGIN CERTIFICATE-----",
		`/etc/podinfo/labels=app="p" <nil>`, "/p/$(NAME)=",
		"IP=" + ready.Status.PodIP, "NAME=p", "LABEL=p", "FROM_IMAGE=yes", "uid 1234",
		"KUBERNETES_SERVICE_HOST=" + w.c.control.ServiceIP().String(), "KUBERNETES_SERVICE_PORT=443",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the pod does not see %q; it saw:\n%s", want, log)
		}
	}
}

func TestServiceLeadsToReadyPodsByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	server := w.pod("server", "serve", ":8080")
	server.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	server.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	server.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/hello", Port: intstr.FromInt32(8080)},
	}}
	w.create(server)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "server"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	if _, err := w.client.CoreV1().Services(w.name).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitReady("server")
	for i, url := range []string{"http://web/hello", "http://web." + w.name + ".svc/hello", "http://web." + w.name + ".svc.cluster.local./hello"} {
		name := fmt.Sprintf("client-%d", i)
		client := w.pod(name, "get", url)
		client.Spec.RestartPolicy = corev1.RestartPolicyOnFailure // the endpoint may come a moment later
		w.create(client)
		w.waitPhase(name, corev1.PodSucceeded)
		if log := w.logs(name, &corev1.PodLogOptions{}); log != "hello from \n" && log != "hello from server\n" {
			t.Errorf("%s answered %q", url, log)
		}
	}
}

func TestLivenessProbeRestartsAndReadinessProbeOnlyTakesOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	exists := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/app", "exists", path}}}
	}
	data := []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}}}
	mount := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod := w.pod("p")
	pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = data, mount
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: exists("/data/ready"), PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 20}
	pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: exists("/data/alive"), PeriodSeconds: 1, FailureThreshold: 2, InitialDelaySeconds: 1, TimeoutSeconds: 20}
	dir := filepath.Join(w.dir, "root", "data")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := func(name string, there bool) {
		t.Helper()
		path := filepath.Join(dir, name)
		err := os.Remove(path)
		if there {
			err = os.WriteFile(path, nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	file("alive", true)
	w.create(pod)
	w.waitFor("p", "runs and is not ready", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning && !isReady(pod) })
	file("ready", true)
	w.waitReady("p")
	file("ready", false)
	w.waitFor("p", "is taken out", func(pod *corev1.Pod) bool { return !isReady(pod) })
	file("ready", true)
	if back := w.waitReady("p"); back.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("a readiness probe has restarted the container")
	}
	file("alive", false)
	w.waitFor("p", "is restarted", func(pod *corev1.Pod) bool { return pod.Status.ContainerStatuses[0].RestartCount > 0 })
}

func TestInitContainersRunInOrderAndSidecarsBeside(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	pod := w.pod("p", "exists", "/data/second")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	always := corev1.ContainerRestartPolicyAlways
	mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.InitContainers = []corev1.Container{
		{Name: "first", Image: "example.com/app:v1", Args: []string{"touch", "/data/first"}, VolumeMounts: mounts},
		{Name: "sidecar", Image: "example.com/app:v1", Args: []string{"wait"}, RestartPolicy: &always},
		{Name: "second", Image: "example.com/app:v1", Command: []string{"/app", "touch"}, Args: []string{"/data/second"}, VolumeMounts: mounts},
	}
	pod.Spec.Containers[0].VolumeMounts = mounts
	w.create(pod)
	done := w.waitPhase("p", corev1.PodSucceeded)
	for _, s := range done.Status.InitContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
			t.Errorf("container %s: %v", s.Name, s.State)
		}
	}

	failing := w.pod("failing")
	failing.Spec.RestartPolicy = corev1.RestartPolicyNever
	failing.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "example.com/app:v1", Args: []string{"exit", "1"}}}
	w.create(failing)
	failed := w.waitPhase("failing", corev1.PodFailed)
	if s := failed.Status.ContainerStatuses[0]; s.State.Waiting == nil {
		t.Errorf("the container behind a failed init container: %v", s.State)
	}
}

func TestContainerThatDoesNotEndIsKilledAfterItsGracePeriod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.create(w.pod("p", "deaf"))
	w.waitReady("p")
	// Its log shows that it ignores the signal by now.
	w.eventually("it is deaf", func(context.Context) (bool, error) {
		return w.logs("p", &corev1.PodLogOptions{}) == "deaf\n", nil
	})
	grace := int64(1)
	if err := w.client.CoreV1().Pods(w.name).Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the pod is gone", func(ctx context.Context) (bool, error) {
		_, err := w.client.CoreV1().Pods(w.name).Get(ctx, "p", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

func TestChangedSecretReachesARunningPodAllAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"tls.crt": "one", "tls.key": "one"}}
	secret, err := w.client.CoreV1().Secrets(w.name).Create(t.Context(), secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := w.pod("p")
	pod.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "s", MountPath: "/certs"}}
	created := w.create(pod)
	w.waitReady("p")
	secret.Data = map[string][]byte{"tls.crt": []byte("two"), "tls.key": []byte("two")}
	if _, err := w.client.CoreV1().Secrets(w.name).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	volume := filepath.Join(w.dir, "pods", string(created.UID), "volumes", "s")
	w.eventually("the volume has the new content", func(context.Context) (bool, error) {
		data, err := os.ReadFile(filepath.Join(volume, "tls.crt"))
		return string(data) == "two", err
	})
	if key, err := os.ReadFile(filepath.Join(volume, "tls.key")); err != nil || string(key) != "two" {
		t.Errorf("the key is %q (%v) beside the new certificate", key, err)
	}
}

func TestNodeThatWasSwitchedOffRunsItsPodsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.create(w.pod("p"))
	finished := w.pod("finished", "exit", "0")
	finished.Spec.RestartPolicy = corev1.RestartPolicyNever
	w.create(finished)
	before := w.waitReady("p")
	w.waitPhase("finished", corev1.PodSucceeded)
	if err := w.node.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.startNode()
	after := w.waitFor("p", "runs again", func(pod *corev1.Pod) bool {
		return isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1
	})
	if before.UID != after.UID {
		t.Error("it is another pod")
	}
	if last := after.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil {
		t.Error("nothing tells of the run before")
	}
	w.waitPhase("finished", corev1.PodSucceeded)
}

func TestLogsAreCutAndFollowedAsAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.create(w.pod("p", "show"))
	w.waitReady("p")
	w.eventually("all is printed", func(context.Context) (bool, error) {
		return strings.HasSuffix(w.logs("p", &corev1.PodLogOptions{}), "uid 65532\n"), nil
	})
	one := int64(1)
	if log := w.logs("p", &corev1.PodLogOptions{TailLines: &one}); log != "uid 65532\n" {
		t.Errorf("the last line is %q", log)
	}
	if log := w.logs("p", &corev1.PodLogOptions{TailLines: &one, Timestamps: true}); !strings.HasPrefix(log, "20") || !strings.HasSuffix(log, "Z uid 65532\n") && !strings.Contains(log, " uid 65532\n") {
		t.Errorf("the last line with its time is %q", log)
	}
	followed, err := w.client.CoreV1().Pods(w.name).GetLogs("p", &corev1.PodLogOptions{Follow: true, TailLines: &one}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer followed.Close()
	if err := w.client.CoreV1().Pods(w.name).Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// It ends with the container.
	if got, err := io.ReadAll(followed); err != nil || string(got) != "uid 65532\n" {
		t.Errorf("the followed log gave %q (%v)", got, err)
	}
}
