// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

// podsLab is a runtime with a state folder, whose clusters run real pods, and an
// answer to what CAPMOX asks of Proxmox VE when it starts.
type podsLab struct {
	*artifacts.Set
	bootstrap.Runtime
	State   string
	proxmox string
}

func newPodsLab(t *testing.T) *podsLab {
	t.Helper()
	set, err := artifacts.Ensure(t.Context(), func(_ context.Context, phase, message string) { t.Log(phase, message) })
	if err != nil {
		t.Fatal(err)
	}
	// A pod's own 127.0.0.1 is not the host's.
	listener, err := net.Listen("tcp", "127.77.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"data":{"version":"9.0.3","release":"9.0","repoid":"1"}}`))
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.StartTLS()
	t.Cleanup(server.Close)
	state := t.TempDir()
	return &podsLab{Set: set, Runtime: local.Runtime{State: state}, State: state, proxmox: server.URL}
}

// deleted deletes a cluster at the end of the test, however that goes.
func (l *podsLab) deleted(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		if err := l.Delete(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
}

func (l *podsLab) set(secret string) string {
	return fmt.Sprintf(`{
    core           = { "cluster-api" = { version = "v1.14.2" } }
    ipam           = { "in-cluster" = { version = "v1.1.0" } }
    infrastructure = { proxmox = { version = "v0.9.0", credentials = { url = %q, token = "capi@pve!t", secret = %q, insecure = true } } }
  }`, l.proxmox, secret)
}

// applyKilled applies with a provider that is killed once an object is there.
func (l *podsLab) applyKilled(t *testing.T, w *workspace, cluster, apiVersion, kind, namespace, name string) {
	t.Helper()
	applied := make(chan error, 1)
	go func() {
		_, err := w.run("apply", "-auto-approve", "-input=false")
		applied <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	err := kube.Wait(ctx, kind+" "+name, func(ctx context.Context) (bool, string, error) {
		kubeconfig, err := l.Kubeconfig(ctx, cluster)
		if err != nil {
			return false, "", err
		}
		config, err := kube.ConfigFromKubeconfig(kubeconfig, "")
		if err != nil {
			return false, "", err
		}
		c, err := kube.NewClient(config)
		if err != nil {
			return false, "", err
		}
		_, err = c.Object(ctx, apiVersion, kind, namespace, name)
		return err == nil, "", err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.kill()
	if err := <-applied; err == nil {
		t.Fatal("the apply whose provider was killed succeeds")
	}
}

func planIsEmpty(t *testing.T, w *workspace) {
	t.Helper()
	if out, err := w.run("plan", "-detailed-exitcode", "-input=false"); err != nil {
		t.Fatalf("the plan is not empty: %v\n%s", err, out)
	}
}

func TestEphemeralClusterOfRealPodsSurvivesItsKilledProvider(t *testing.T) {
	cliPath(t)
	lab := newPodsLab(t)
	lab.deleted(t, "boot")
	configuration := func(secret string) string {
		return fmt.Sprintf(`
provider "capi" { state_dir = %q }
resource "capi_ephemeral_cluster" "bootstrap" {
  name         = "boot"
  images       = ["oci-layout:%s"]
  repository   = "file://%s"
  cert_manager = { version = "v1.21.0" }
  providers    = %s
}
`, lab.State, lab.ImageLayout, lab.Repository, lab.set(secret))
	}
	w := newWorkspace(t, configuration("first-secret"))
	lab.applyKilled(t, w, "boot", "apps/v1", "Deployment", "capi-system", "capi-controller-manager")
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)
	w.configure(configuration("second-secret"))
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)
	w.must("destroy", "-auto-approve", "-input=false")
	if status, err := lab.Status(t.Context(), "boot"); err != nil || status != bootstrap.NotHere {
		t.Errorf("after the destroy the cluster is %s, %v", status, err)
	}
}

func TestProvidersOnRealPodsSurviveTheirKilledProvider(t *testing.T) {
	cliPath(t)
	lab := newPodsLab(t)
	lab.deleted(t, "target")
	kubeconfig, err := lab.Ensure(t.Context(), bootstrap.Cluster{Name: "target", KubernetesVersion: defaultKubernetesVersion, Images: []string{"oci-layout:" + lab.ImageLayout}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	configuration := func(secret string) string {
		return fmt.Sprintf(`
resource "capi_providers" "target" {
  cluster      = { kubeconfig_path = %q }
  operator     = { version = "0.28.0", chart = %q }
  cert_manager = { version = "v1.21.0", chart = %q }
  repository   = "file://%s"
  providers    = %s
}
`, file, lab.Charts["cluster-api-operator"], lab.Charts["cert-manager"], lab.Repository, lab.set(secret))
	}
	w := newWorkspace(t, configuration("first-secret"))
	lab.applyKilled(t, w, "target", "operator.cluster.x-k8s.io/v1alpha2", "InfrastructureProvider", "capmox-system", "proxmox")
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)
	if versions := lab.installed(t, w); versions["infrastructure-proxmox"] != "v0.9.0" || len(versions) != 3 {
		t.Errorf("installed are %v", versions)
	}
	w.configure(configuration("second-secret"))
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)

	w.must("state", "rm", "capi_providers.target")
	w.must("import", "capi_providers.target", file)
	w.must("apply", "-auto-approve", "-input=false")
	planIsEmpty(t, w)

	w.must("destroy", "-auto-approve", "-input=false")
	config, err := kube.ConfigFromKubeconfig(kubeconfig, "")
	if err != nil {
		t.Fatal(err)
	}
	if left, err := capi.Inventory(t.Context(), config); err != nil || len(left) > 0 {
		t.Errorf("after the destroy there are %v, %v", left, err)
	}
}

// installed reads the computed attribute installed out of the state.
func (l *podsLab) installed(t *testing.T, w *workspace) map[string]string {
	t.Helper()
	var state struct {
		Values struct {
			RootModule struct {
				Resources []struct {
					Values struct {
						Installed map[string]string `json:"installed"`
					} `json:"values"`
				} `json:"resources"`
			} `json:"root_module"`
		} `json:"values"`
	}
	if err := json.Unmarshal([]byte(w.must("show", "-json")), &state); err != nil || len(state.Values.RootModule.Resources) != 1 {
		t.Fatalf("reading the state: %v", err)
	}
	return state.Values.RootModule.Resources[0].Values.Installed
}
