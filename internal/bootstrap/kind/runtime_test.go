// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kind

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

func TestParseConfig(t *testing.T) {
	head := "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n"
	for name, test := range map[string]struct{ config, fails string }{
		"no text is one node":    {"", ""},
		"several nodes":          {head + "nodes: [{role: control-plane}, {role: worker}]", ""},
		"mounts and mirrors":     {head + "nodes: [{role: control-plane, extraMounts: [{hostPath: /a, containerPath: /b}]}]\ncontainerdConfigPatches: ['[plugins]']", ""},
		"a name":                 {head + "name: mine", "has a name"},
		"another kind":           {"kind: Node\napiVersion: v1", "must be a Cluster"},
		"an unknown field":       {head + "node: []", `unknown field "node"`},
		"what is no YAML":        {"a: [", "reading the kind configuration"},
		"an older configuration": {"kind: Cluster\napiVersion: kind.sigs.k8s.io/v1alpha3", "must be a Cluster of kind.x-k8s.io/v1alpha4"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseConfig(test.config)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("error is %v, want %q", err, test.fails)
			}
		})
	}
}

func TestEveryNodeGetsAnImageAndTheMark(t *testing.T) {
	config, err := configOf(bootstrap.Cluster{Name: "boot", KubernetesVersion: "v1.36.2", Kind: bootstrap.KindOptions{
		Config: "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes: [{role: control-plane}, {role: worker, image: own, labels: {a: b}}]",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if config.Name != "boot" || config.Nodes[0].Image != "kindest/node:v1.36.2" || config.Nodes[1].Image != "own" {
		t.Errorf("the configuration is %+v", config)
	}
	for _, node := range config.Nodes {
		if node.Labels[madeHere] != "true" {
			t.Errorf("a node has the labels %v", node.Labels)
		}
	}
	for version, want := range map[string]string{"v1.37.0": "kindest/node:v1.37.0@sha256:", "v1.36.2": "kindest/node:v1.36.2"} {
		if got := nodeImage(bootstrap.Cluster{KubernetesVersion: version}); !strings.HasPrefix(got, want) {
			t.Errorf("the image of %s is %s", version, got)
		}
	}
	if got := nodeImage(bootstrap.Cluster{KubernetesVersion: "v1.36.2", Kind: bootstrap.KindOptions{NodeImage: "mine"}}); got != "mine" {
		t.Errorf("the image is %s", got)
	}
}

// marked is a node of a cluster that this runtime made.
func marked(running bool) *fakeContainer {
	return &fakeContainer{Cluster: "boot", Role: "control-plane", Running: running, Files: map[string]string{"/kind/kubeadm.conf": "node-labels: " + madeHere + "=true\n"}}
}

// answering makes the node one whose API server answers.
func answering(t *testing.T, c *fakeContainer) *fakeContainer {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["kind-boot"] = &clientcmdapi.Cluster{
		Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
	config.AuthInfos["admin"], config.Contexts["admin"] = &clientcmdapi.AuthInfo{Token: "t"}, &clientcmdapi.Context{Cluster: "kind-boot", AuthInfo: "admin"}
	config.CurrentContext = "admin"
	content, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	c.Files["/etc/kubernetes/admin.conf"] = string(content)
	c.Endpoint = server.Listener.Addr().String()
	return c
}

func TestEngines(t *testing.T) {
	const down = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
	for name, test := range map[string]struct {
		prepare func(*testing.T)
		engine  string
		fails   string
	}{
		"one that answers":                {func(t *testing.T) { withEngine(t, fakeEngine{}) }, "", ""},
		"one whose daemon is not running": {func(t *testing.T) { withEngine(t, fakeEngine{Down: down}) }, "", "docker does not answer"},
		"its socket is named":             {func(t *testing.T) { withEngine(t, fakeEngine{Down: down}) }, "docker", "unix:///var/run/docker.sock"},
		"one that is not installed":       {func(t *testing.T) { withEngine(t, fakeEngine{}) }, "podman", "the command podman is not on the PATH"},
		"none at all":                     {func(t *testing.T) { t.Setenv("PATH", t.TempDir()) }, "", "none of the commands docker, nerdctl, podman is on the PATH"},
	} {
		t.Run(name, func(t *testing.T) {
			test.prepare(t)
			r := Runtime{State: t.TempDir()}
			_, err := r.Ensure(t.Context(), bootstrap.Cluster{Name: "boot", KubernetesVersion: "v1.36.2", Kind: bootstrap.KindOptions{Engine: test.engine}}, nil)
			if test.fails == "" {
				test.fails = "no network can be made" // it gets as far as that
			}
			if err == nil || !strings.Contains(err.Error(), test.fails) {
				t.Errorf("error is %v, want %q", err, test.fails)
			}
		})
	}
}

// recorded writes what a state folder knows of the cluster, if anything.
func recorded(t *testing.T, r Runtime, known *record) folder {
	t.Helper()
	f, err := r.folder("boot")
	if err == nil {
		err = os.MkdirAll(f.dir, 0o700)
	}
	if err == nil && known != nil {
		err = f.write(*known)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestWhatIsHereIsTakenUpOrLeft(t *testing.T) {
	complete, begun := &record{Engine: "docker", Complete: true}, &record{Engine: "docker"}
	foreign := func(t *testing.T) *fakeContainer {
		c := answering(t, marked(true))
		c.Files["/kind/kubeadm.conf"] = "node-labels: mine=true"
		return c
	}
	ours := func(t *testing.T) *fakeContainer { return answering(t, marked(true)) }
	broken := func(*testing.T) *fakeContainer { return marked(true) }
	bare := func(*testing.T) *fakeContainer {
		return &fakeContainer{Cluster: "boot", Role: "control-plane", Running: true}
	}
	halted := func(t *testing.T) *fakeContainer {
		c := ours(t)
		c.Running = false
		return c
	}
	const made = "no network can be made"
	for name, test := range map[string]struct {
		container func(*testing.T) *fakeContainer
		known     *record
		fails     string // made: it was deleted, and is made anew
		stays     bool
		started   int
	}{
		"a cluster of ours": {ours, complete, "", true, 0},
		"a cluster of ours that another state folder made":    {ours, nil, "", true, 0},
		"a cluster of ours that is stopped":                   {halted, complete, "", true, 1},
		"what an interrupted run has left":                    {broken, begun, made, false, 0},
		"what an interrupted run has left, and came up late":  {ours, begun, made, false, 0},
		"containers that an interrupted run has not set up":   {bare, begun, made, false, 0},
		"a half-made one of ours whose record is lost":        {broken, nil, made, false, 0},
		"a cluster of somebody else":                          {foreign, nil, ErrForeign.Error(), true, 0},
		"a cluster of somebody else under a name that we had": {foreign, begun, ErrForeign.Error(), true, 0},
		"containers of nobody knows whom":                     {bare, nil, ErrForeign.Error(), true, 0},
		"a complete one that has lost its files":              {broken, complete, "it is left as it is", true, 0},
		"one of another engine":                               {ours, &record{Engine: "podman", Complete: true}, "the command podman is not on the PATH", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			withEngine(t, fakeEngine{Containers: map[string]*fakeContainer{"boot-control-plane": test.container(t), "other-control-plane": {Cluster: "other"}}})
			r := Runtime{State: t.TempDir()}
			f := recorded(t, r, test.known)
			kubeconfig, err := r.Ensure(t.Context(), bootstrap.Cluster{Name: "boot", KubernetesVersion: "v1.36.2"}, nil)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("error is %v, want %q", err, test.fails)
			}
			after := readEngine(t)
			if stays := after.Containers["boot-control-plane"] != nil; stays != test.stays || len(after.Started) != test.started {
				t.Errorf("the node is there: %v, started were %v", stays, after.Started)
			}
			if after.Containers["other-control-plane"] == nil {
				t.Error("another cluster is gone")
			}
			if err == nil && !strings.Contains(string(kubeconfig), "kind-boot") {
				t.Errorf("the kubeconfig is %q", kubeconfig)
			}
			if files, _ := filepath.Glob(filepath.Join(f.dir, "*kubeconfig*")); len(files) > 0 {
				t.Errorf("kubeconfigs were left: %v", files)
			}
		})
	}
}

func TestAClusterThatDoesNotComeUpLeavesItsLogs(t *testing.T) {
	withEngine(t, fakeEngine{})
	r := Runtime{State: t.TempDir()}
	_, err := r.Ensure(t.Context(), bootstrap.Cluster{Name: "boot", KubernetesVersion: "v1.36.2"}, nil)
	logs := filepath.Join(r.State, "kind", "boot.logs")
	if err == nil || !strings.Contains(err.Error(), "The logs of its nodes are in "+logs) {
		t.Errorf("error is %v", err)
	}
	if entries, err := os.ReadDir(logs); err != nil || len(entries) == 0 {
		t.Errorf("the logs are %v, %v", entries, err)
	}
	if status, err := r.Status(t.Context(), "boot"); err != nil || status != bootstrap.NotHere {
		t.Errorf("it is %s, %v", status, err)
	}
}

func TestStatusAndKubeconfigAndDeletion(t *testing.T) {
	withEngine(t, fakeEngine{Containers: map[string]*fakeContainer{"boot-control-plane": answering(t, marked(true))}})
	r := Runtime{State: t.TempDir()}
	is := func(want bootstrap.Status) {
		t.Helper()
		if got, err := r.Status(t.Context(), "boot"); err != nil || got != want {
			t.Errorf("it is %s, %v, want %s", got, err, want)
		}
	}
	is(bootstrap.Running)
	if content, err := r.Kubeconfig(t.Context(), "boot"); err != nil || !strings.Contains(string(content), "https://127.0.0.1") {
		t.Errorf("the kubeconfig is %q, %v", content, err)
	}
	if _, err := r.Kubeconfig(t.Context(), "none"); !errors.Is(err, kube.ErrAbsent) {
		t.Errorf("the error of one that is not here is %v", err)
	}
	e := readEngine(t)
	e.Containers["boot-control-plane"].Running = false
	writeEngine(t, e)
	is(bootstrap.Stopped)
	e.Down = "Cannot connect to the Docker daemon"
	writeEngine(t, e)
	if status, err := r.Status(t.Context(), "boot"); err == nil {
		t.Errorf("without the engine it is %s", status)
	}
	if err := r.Delete(t.Context(), "boot"); err == nil {
		t.Error("without the engine it is deleted")
	}
	e.Down = ""
	writeEngine(t, e)
	for range 2 {
		if err := r.Delete(t.Context(), "boot"); err != nil {
			t.Error(err)
		}
	}
	is(bootstrap.NotHere)
	t.Setenv("PATH", t.TempDir())
	is(bootstrap.NotHere)
}

// A destroy gets rid of what never came up, and of nothing else.
func TestOnlyWhatNeverCameUpIsDiscarded(t *testing.T) {
	for name, test := range map[string]struct {
		known *record
		gone  bool
	}{
		"one that never came up":        {&record{Engine: "docker"}, true},
		"one that did":                  {&record{Engine: "docker", Complete: true}, false},
		"one of which nothing is known": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			withEngine(t, fakeEngine{Containers: map[string]*fakeContainer{"boot-control-plane": marked(false)}})
			r := Runtime{State: t.TempDir()}
			recorded(t, r, test.known)
			gone, err := r.Discard(t.Context(), "boot")
			if err != nil || gone != test.gone || (readEngine(t).Containers["boot-control-plane"] == nil) != test.gone {
				t.Errorf("it is gone: %v, %v", gone, err)
			}
		})
	}
}

// Whoever comes second waits for the first, and its time may be over meanwhile.
func TestASecondRunWaitsForTheFirst(t *testing.T) {
	withEngine(t, fakeEngine{})
	r := Runtime{State: t.TempDir()}
	f, err := r.folder("boot")
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := f.lock(t.Context(), func() {})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = r.Ensure(ctx, bootstrap.Cluster{Name: "boot"}, func(_ context.Context, phase, _ string) {
		if phase == "joining" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

func TestImagesAreLoadedWhereTheyAreMissing(t *testing.T) {
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"registry.example/there:v1", "registry.example/missing:v1"} {
		image, err := random.Image(1000, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := path.AppendImage(image, layout.WithAnnotations(map[string]string{"io.containerd.image.name": name})); err != nil {
			t.Fatal(err)
		}
	}
	node := answering(t, marked(true))
	node.Images = []string{"registry.example/there:v1"}
	withEngine(t, fakeEngine{Containers: map[string]*fakeContainer{"boot-control-plane": node}})
	var told []string
	_, err = Runtime{State: t.TempDir()}.Ensure(t.Context(), bootstrap.Cluster{Name: "boot", Images: []string{"oci-layout:" + dir}}, func(_ context.Context, phase, message string) {
		told = append(told, fmt.Sprint(phase, ": ", message))
	})
	if err != nil {
		t.Fatal(err)
	}
	if imported := readEngine(t).Imported; imported < 1000 || imported > 8000 || !strings.Contains(strings.Join(told, "\n"), "loading-images: loading 1 images") {
		t.Errorf("%d bytes were loaded, and told was %q", imported, told)
	}
}
