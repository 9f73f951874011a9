// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

func TestMain(m *testing.M) {
	ReexecMain()
	os.Exit(m.Run())
}

const kubernetesVersion = "v1.36.2"

// lab answers the lab's artifacts.
func lab(t *testing.T) *artifacts.Set {
	t.Helper()
	set, err := artifacts.Ensure(t.Context(), func(_ context.Context, phase, message string) { t.Log(phase, message) })
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// newRuntime answers a runtime with a state folder of its own, and a cluster
// that is deleted at the end of the test.
func newRuntime(t *testing.T) (Runtime, bootstrap.Cluster) {
	t.Helper()
	r := Runtime{State: t.TempDir()}
	c := bootstrap.Cluster{Name: "c1", KubernetesVersion: kubernetesVersion, Images: []string{"oci-layout:" + lab(t).ImageLayout}}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(r.State, "clusters", "*", "supervisor.log"))
			for _, name := range logs {
				data, err := os.ReadFile(name)
				t.Logf("%s (%v):\n%s", name, err, data)
			}
		}
		for _, name := range []string{"c1", "c2"} {
			if err := r.Delete(context.Background(), name); err != nil {
				t.Error(err)
			}
		}
	})
	return r, c
}

func ensure(t *testing.T, r Runtime, c bootstrap.Cluster) *rest.Config {
	t.Helper()
	began := time.Now()
	kubeconfig, err := r.Ensure(t.Context(), c, func(_ context.Context, phase, message string) {
		t.Logf("%6.1fs %s: %s", time.Since(began).Seconds(), phase, message)
	})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func clientOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func wantStatus(t *testing.T, r Runtime, want bootstrap.Status) {
	t.Helper()
	got, err := r.Status(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("got status %q, want %q", got, want)
	}
}

// processes answers the ids of the processes whose environment, command line or
// working folder shows the state folder.
func processes(t *testing.T, r Runtime) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline")) // it may be gone
		cwd, _ := os.Readlink(filepath.Join("/proc", entry.Name(), "cwd"))
		if strings.Contains(string(line), r.State) || strings.HasPrefix(cwd, r.State) {
			found = append(found, pid)
		}
	}
	return found
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up waiting until %s", what)
		}
	}
}

func TestClusterIsMadeStoppedStartedAgainAndDeleted(t *testing.T) {
	t.Parallel()
	r, c := newRuntime(t)
	wantStatus(t, r, bootstrap.NotHere)
	if _, err := r.Kubeconfig(t.Context(), "c1"); !kube.IsAbsent(err) {
		t.Errorf("the kubeconfig of a cluster that is not here: %v", err)
	}
	client := clientOf(t, ensure(t, r, c))
	wantStatus(t, r, bootstrap.Running)
	mark := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mark"}}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), mark, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before, err := client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, r, bootstrap.Stopped)
	if left := processes(t, r); len(left) > 0 {
		t.Errorf("processes %v are left after the stop", left)
	}
	if _, err := r.Kubeconfig(t.Context(), "c1"); err == nil || kube.IsAbsent(err) {
		t.Errorf("the kubeconfig of a stopped cluster: %v", err)
	}

	client = clientOf(t, ensure(t, r, c))
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "mark", metav1.GetOptions{}); err != nil {
		t.Errorf("the object of before: %v", err)
	}
	after, err := client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after.UID != before.UID {
		t.Error("it is another cluster")
	}
	if err := r.Delete(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, r, bootstrap.NotHere)
	if left := processes(t, r); len(left) > 0 {
		t.Errorf("processes %v are left after the deletion", left)
	}
	if _, err := os.Stat(filepath.Join(r.State, "clusters", "c1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cluster's folder: %v", err)
	}
}

func TestTwoStartersOfOneNameGetTheSameCluster(t *testing.T) {
	t.Parallel()
	r, c := newRuntime(t)
	answers := make(chan string, 2)
	for range 2 {
		go func() {
			kubeconfig, err := r.Ensure(t.Context(), c, nil)
			answers <- fmt.Sprint(string(kubeconfig), err)
		}()
	}
	if one, two := <-answers, <-answers; one != two || !strings.Contains(one, "<nil>") {
		t.Error("the two got different answers, or an error")
	}
}

func TestClusterOfAKilledSupervisorIsStartedAgainFromItsData(t *testing.T) {
	t.Parallel()
	r, c := newRuntime(t)
	before, err := clientOf(t, ensure(t, r, c)).CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.folder("c1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.readStatus()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Not even waiting for its end first.
	after, err := clientOf(t, ensure(t, r, c)).CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if before.UID != after.UID {
		t.Error("it is another cluster")
	}
}

func TestKilledSupervisorTakesItsProcessesAlong(t *testing.T) {
	t.Parallel()
	r, c := newRuntime(t)
	ensure(t, r, c)
	f, err := r.folder("c1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.readStatus()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(processes(t, r)); n < 5 {
		t.Errorf("%d processes of the cluster are seen, want the supervisor and four programs at least", n)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no process is left", func() bool { return len(processes(t, r)) == 0 })
	eventually(t, "it is known to be stopped", func() bool {
		status, err := r.Status(t.Context(), "c1")
		return err == nil && status == bootstrap.Stopped
	})
}

func TestClusterThatCannotStartSaysWhyAndLeavesNoProcess(t *testing.T) {
	t.Parallel()
	r, c := newRuntime(t)
	c.KubernetesVersion = "v1.0.0"
	c.Images = []string{"oci-layout:" + t.TempDir()}
	var step string
	_, err := r.Ensure(t.Context(), c, func(_ context.Context, phase, _ string) { step = phase })
	if err == nil || !strings.Contains(err.Error(), "the OCI layout") {
		t.Errorf("got error %v", err)
	}
	if step == phaseStopping || step == phaseStopped {
		t.Errorf("the step that it failed at is said to be %s", step)
	}
	eventually(t, "no process is left", func() bool { return len(processes(t, r)) == 0 })
	wantStatus(t, r, bootstrap.Stopped)
}

func TestClusterThatNeverRanIsRetiredWithoutBeingAsked(t *testing.T) {
	t.Parallel()
	r := Runtime{State: t.TempDir()}
	spec := bootstrap.Spec{Name: "c1", Runtime: bootstrap.Local, KubernetesVersion: "v1.0.0", Images: []string{"oci-layout:" + t.TempDir()}}
	ephemeral, err := spec.Ephemeral()
	if err != nil {
		t.Fatal(err)
	}
	manager := bootstrap.Manager{bootstrap.Local: r}
	if _, err := manager.Ensure(t.Context(), spec, nil); err == nil {
		t.Fatal("it started without an image")
	}
	wantStatus(t, r, bootstrap.Stopped)
	if err := manager.Retire(t.Context(), *ephemeral, nil); err != nil {
		t.Errorf("nobody can get rid of it: %v", err)
	}
	wantStatus(t, r, bootstrap.NotHere)
	if _, err := os.Stat(filepath.Join(r.State, "clusters", "c1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder: %v", err)
	}
}

func TestClusterIsDiscardedUnlessItCameUpOnce(t *testing.T) {
	t.Parallel()
	r := Runtime{State: t.TempDir()}
	f, err := r.folder("c1")
	if err != nil {
		t.Fatal(err)
	}
	for _, came := range []bool{true, false} {
		// What etcd makes at a start, whatever comes of that.
		if err := os.MkdirAll(f.path("control-plane", "etcd", "member"), 0o700); err != nil {
			t.Fatal(err)
		}
		if came {
			if err := writeFile(f.path(portFile), []byte("6443")); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Remove(f.path(portFile)); err != nil {
			t.Fatal(err)
		}
		if gone, err := r.Discard(t.Context(), "c1"); gone == came || err != nil {
			t.Errorf("it came up: %v; it was discarded: %v, %v", came, gone, err)
		}
		if _, err := os.Stat(f.path()); errors.Is(err, os.ErrNotExist) == came {
			t.Errorf("it came up: %v; its folder: %v", came, err)
		}
	}
}

func TestClusterStartsAfterAFirstStartThatFilledTheDisk(t *testing.T) {
	t.Parallel()
	r, c := newRuntime(t)
	f, err := r.folder("c1")
	if err != nil {
		t.Fatal(err)
	}
	log := f.path("control-plane", "etcd", "member", "wal")
	if err := os.MkdirAll(log, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(log, "0000000000000000-0000000000000000.wal"), []byte("cut off"), 0o600); err != nil {
		t.Fatal(err)
	}
	ensure(t, r, c)
	wantStatus(t, r, bootstrap.Running)
}

func TestSupervisorWithoutAWordIsSaidToHaveHadNoRoomForOne(t *testing.T) {
	t.Parallel()
	f, err := Runtime{State: t.TempDir()}.folder("c1")
	if err != nil {
		t.Fatal(err)
	}
	// A folder that is not there stands for a disk that is full.
	if err := f.notStarted(status{}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "takes nothing") {
		t.Errorf("got error %v", err)
	}
	if err := os.MkdirAll(f.path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.notStarted(status{}); !strings.Contains(err.Error(), "without a word") {
		t.Errorf("got error %v", err)
	}
	if left, err := os.ReadDir(f.path()); err != nil || len(left) > 0 {
		t.Errorf("the trial has left %v, %v", left, err)
	}
}

func TestSupervisorGetsNoSecretFromTheEnvironment(t *testing.T) {
	t.Setenv("PROXMOX_SECRET", "hunter2")
	t.Setenv("HTTPS_PROXY", "http://proxy.example")
	env := supervisorEnvironment()
	if slices.ContainsFunc(env, func(s string) bool { return strings.Contains(s, "hunter2") }) {
		t.Error("it gets a secret")
	}
	if !slices.Contains(env, "HTTPS_PROXY=http://proxy.example") {
		t.Error("it does not get the proxy, and so reaches no registry")
	}
}
