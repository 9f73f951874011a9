// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
	corev1 "k8s.io/api/core/v1"
	kindexec "sigs.k8s.io/kind/pkg/exec"
	"sigs.k8s.io/kind/pkg/log"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
)

const (
	// imageVariable names a node image that the engine has: this test pulls none.
	imageVariable = "KIND_TEST_NODE_IMAGE"
	// createVariable makes the test's binary a program that makes a cluster, in the
	// JSON of a [creation], so that it can be killed.
	createVariable = "KIND_TEST_CREATE"
)

type creation struct {
	State   string
	Cluster bootstrap.Cluster
}

func (c creation) do() error {
	_, err := Runtime{State: c.State}.Ensure(context.Background(), c.Cluster, func(_ context.Context, phase, message string) {
		fmt.Println(phase, message)
	})
	return err
}

// realEngine answers the name of an engine that can make the test's clusters, or
// skips the test.
func realEngine(t testing.TB) *engine {
	t.Helper()
	image := os.Getenv(imageVariable)
	if image == "" {
		t.Skip("no node image is named in " + imageVariable + ": kind is not tried with a real engine")
	}
	e, err := probe("", log.NoopLogger{})
	if err != nil {
		t.Skipf("no container engine answers: %v", err)
	}
	if err := kindexec.Command(e.name, "inspect", "--type=image", image).Run(); err != nil {
		t.Skipf("%s has no image %s", e.name, image)
	}
	return e
}

func TestOnARealEngine(t *testing.T) {
	e := realEngine(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	images := t.TempDir()
	path, err := layout.Write(images, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	image, err := random.Image(1<<20, 2)
	if err != nil {
		t.Fatal(err)
	}
	const loaded = "registry.example/loaded:v1"
	if err := path.AppendImage(image, layout.WithAnnotations(map[string]string{"io.containerd.image.name": loaded})); err != nil {
		t.Fatal(err)
	}
	r := Runtime{State: t.TempDir()}
	c := bootstrap.Cluster{
		Name: fmt.Sprintf("capi-test-%d", os.Getpid()), KubernetesVersion: "v1.36.2", Images: []string{"oci-layout:" + images},
		Kind: bootstrap.KindOptions{NodeImage: os.Getenv(imageVariable)},
	}
	t.Cleanup(func() {
		if err := r.Delete(context.Background(), c.Name); err != nil {
			t.Error(err)
		}
		if left, err := e.nodesOf(c.Name); err != nil || len(left) > 0 {
			t.Errorf("after its deletion there are %v, %v", left, err)
		}
	})

	killDuringCreation(t, e, creation{r.State, c})
	names := func() []string {
		t.Helper()
		kubeconfig, err := r.Ensure(t.Context(), c, func(_ context.Context, phase, message string) { t.Log(phase, message) })
		if err != nil {
			t.Fatal(err)
		}
		config, err := kube.ConfigFromKubeconfig(kubeconfig, "")
		if err != nil {
			t.Fatal(err)
		}
		client, err := kube.NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		list := &corev1.NodeList{}
		if err := client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, node := range list.Items {
			if node.Labels[madeHere] == "true" {
				names = append(names, node.Name+" "+string(node.UID))
			}
		}
		return names
	}
	first := names()
	if len(first) != 1 {
		t.Errorf("the nodes are %v", first)
	}
	container := strings.Fields(first[0])[0]
	if err := kindexec.Command(e.name, "exec", container, "crictl", "inspecti", loaded).Run(); err != nil {
		t.Errorf("the image was not loaded: %v", told(err))
	}
	start := time.Now()
	if again := names(); again[0] != first[0] {
		t.Errorf("a second time the nodes are %v, and were %v", again, first)
	}
	t.Logf("a second Ensure took %v", time.Since(start))

	if err := kindexec.Command(e.name, "stop", "-t", "0", container).Run(); err != nil {
		t.Fatal(told(err))
	}
	if status, err := r.Status(t.Context(), c.Name); err != nil || status != bootstrap.Stopped {
		t.Errorf("it is %s, %v", status, err)
	}
	if again := names(); again[0] != first[0] {
		t.Errorf("after a stop the nodes are %v, and were %v", again, first)
	}
	if status, err := r.Status(t.Context(), c.Name); err != nil || status != bootstrap.Running {
		t.Errorf("it is %s, %v", status, err)
	}
	if entries, err := os.ReadDir(filepath.Join(home, ".kube")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("~/.kube holds %v, %v", entries, err)
	}
}

// killDuringCreation kills a run once its container is there, long before the
// cluster is up.
func killDuringCreation(t *testing.T, e *engine, c creation) {
	t.Helper()
	program, output := plane.Program(t, createVariable, c)
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	err := kube.Wait(t.Context(), "the container of the cluster", func(context.Context) (bool, string, error) {
		found, err := e.nodesOf(c.Cluster.Name)
		return len(found) > 0, "", err
	})
	if err := errors.Join(err, program.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	if err := program.Wait(); err == nil {
		t.Fatalf("the run that was to be killed came to its end:\n%s", output)
	}
}
