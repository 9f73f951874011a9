// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi_test

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

func TestMain(m *testing.M) {
	local.ReexecMain()
	os.Exit(m.Run())
}

// realPods is a cluster of the local runtime, whose pods run.
func realPods(t *testing.T) (*kube.Client, *artifacts.Set) {
	t.Helper()
	began := time.Now()
	report := func(_ context.Context, phase, message string) {
		t.Logf("%6.1fs %s: %s", time.Since(began).Seconds(), phase, message)
	}
	set, err := artifacts.Ensure(t.Context(), report)
	if err != nil {
		t.Fatal(err)
	}
	runtime := local.Runtime{State: t.TempDir()}
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, runtime.State)
		}
		if err := runtime.Delete(context.Background(), "operated"); err != nil {
			t.Error(err)
		}
	})
	kubeconfig, err := runtime.Ensure(t.Context(), bootstrap.Cluster{
		Name: "operated", KubernetesVersion: "v1.36.2", Images: []string{"oci-layout:" + set.ImageLayout},
	}, report)
	if err != nil {
		t.Fatal(err)
	}
	config, err := kube.ConfigFromKubeconfig(kubeconfig, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := kube.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	return c, set
}

// proxmox answers the address of as much of a Proxmox VE API as CAPMOX's
// manager asks for when it starts. A pod's own 127.0.0.1 is not the host's.
func proxmox(t *testing.T) string {
	t.Helper()
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
	return server.URL
}

// showLogs logs the end of every log below a folder.
func showLogs(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".log" {
			return nil
		}
		content, err := os.ReadFile(name)
		t.Logf("%s: %v\n%s", strings.TrimPrefix(name, dir), err, content[max(0, len(content)-2000):])
		return nil
	})
	if err != nil {
		t.Log(err)
	}
}

func TestOperatorInstallsChangesAndRemovesProviders(t *testing.T) {
	c, set := realPods(t)
	repository := t.TempDir()
	if err := set.WithOlder(repository, map[string]string{"ipam-in-cluster": "v1.0.3"}); err != nil {
		t.Fatal(err)
	}
	options := capi.OperatorOptions{
		Providers: []capi.Provider{
			{Type: capi.Core, Name: "cluster-api", Version: "v1.14.2"},
			{Type: capi.Infrastructure, Name: "proxmox", Version: "v0.9.0", Credentials: &capi.ProxmoxCredentials{
				URL: proxmox(t), Token: "capi@pve!capi-token", Secret: "first-secret", Insecure: true,
			}},
			{Type: capi.IPAM, Name: "in-cluster", Version: "v1.0.3"},
		},
		Source:      capi.Source{Repository: "file://" + repository},
		CertManager: &helm.Chart{Ref: set.Charts["cert-manager"], Version: "v1.21.0"},
		Operator:    helm.Chart{Ref: set.Charts["cluster-api-operator"], Version: "0.28.0"},
		Owner:       "6a4c8f4e-2a0f-4d0e-8f3e-1c1b7a5d9e10",
	}
	began := time.Now()
	report := func(_ context.Context, phase, message string) {
		t.Logf("%6.1fs %s: %s", time.Since(began).Seconds(), phase, message)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := capi.EnsureOperator(ctx, c, options, report); err != nil {
		t.Fatal(err)
	}
	installed, err := capi.Inventory(ctx, c.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range options.Providers {
		if !slices.ContainsFunc(installed, func(i capi.Installed) bool {
			return i.Label() == p.Label() && i.Version == p.Version && i.Method == capi.Operator
		}) {
			t.Errorf("%s is not in %v", p, installed)
		}
	}

	before := deployments(t, c)
	if err := capi.EnsureOperator(ctx, c, options, report); err != nil {
		t.Fatal(err)
	}
	if after := deployments(t, c); after != before {
		t.Errorf("a second run changed the Deployments from %s to %s", before, after)
	}

	options.Providers[1].Credentials.Secret = "second-secret"
	if err := capi.EnsureOperator(ctx, c, options, report); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: "capmox-system", Name: "capmox-manager-credentials"}, secret); err != nil {
		t.Fatal(err)
	}
	if string(secret.Data["secret"]) != "second-secret" {
		t.Error("the manager has the old secret")
	}
	if after := deployments(t, c); after == before {
		t.Error("a new secret restarted nothing")
	}
	variables := &corev1.SecretList{}
	if err := c.List(ctx, variables, client.InNamespace("capmox-system"), client.HasLabels{"terraform-provider-capi/provider"}); err != nil || len(variables.Items) != 1 {
		t.Errorf("there are %d Secrets with variables, want 1; %v", len(variables.Items), err)
	}

	err = capi.Init(ctx, c.Config, capi.InitOptions{Providers: options.Providers, CertManager: capi.CertManager{External: true}, Source: options.Source}, report)
	if err == nil || !strings.Contains(err.Error(), "installed by the cluster-api-operator") {
		t.Errorf("clusterctl's init beside the operator answers %v", err)
	}

	options = operatorUpgrade(ctx, t, c, options, report)

	if err := capi.RemoveOperator(ctx, c, options.Owner, true, report); err != nil {
		t.Fatal(err)
	}
	if left, err := capi.Inventory(ctx, c.Config); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if left := deployments(t, c); left != "" {
		t.Errorf("left are the Deployments %s", left)
	}
}

// operatorUpgrade upgrades one provider, adds one, makes all more available, and
// then takes the added one away.
func operatorUpgrade(ctx context.Context, t *testing.T, c *kube.Client, options capi.OperatorOptions, report progress.Reporter) capi.OperatorOptions {
	t.Helper()
	availability := &capi.Availability{Replicas: 2, Spread: "kubernetes.io/hostname", DisruptionBudget: true}
	options.Providers[2].Version = "v1.1.0"
	options.Providers = append(options.Providers, capi.Provider{Type: capi.Bootstrap, Name: "kubeadm", Version: "v1.14.2"})
	options.Availability = availability
	for i := range options.Providers {
		options.Providers[i].Availability = availability
	}
	if err := capi.EnsureOperator(ctx, c, options, report); err != nil {
		t.Fatal(err)
	}
	if err := capi.Ready(ctx, c.Config, options.Providers); err != nil {
		t.Error(err)
	}
	_, err := c.Object(ctx, "v1", "ConfigMap", "capi-ipam-in-cluster-system", artifacts.OlderOnly)
	if !kube.IsAbsent(err) {
		t.Errorf("the upgrade left an object of the older release: %v", err)
	}
	for namespace, name := range map[string]string{
		"capi-system": "capi-controller-manager", "capmox-system": "capmox-controller-manager", "capi-ipam-in-cluster-system": "capi-ipam-in-cluster-controller-manager",
		"capi-operator-system": "capi-operator-cluster-api-operator", "cert-manager": "cert-manager",
	} {
		d, err := c.Object(ctx, "apps/v1", "Deployment", namespace, name)
		if err != nil {
			t.Error(err)
			continue
		}
		if text := fmt.Sprint(d.Object["spec"]); !strings.Contains(text, "replicas:2") || !strings.Contains(text, "topologyKey:kubernetes.io/hostname") {
			t.Errorf("Deployment %s/%s is not as available as asked: %s", namespace, name, text)
		}
		if _, err := c.Object(ctx, "policy/v1", "PodDisruptionBudget", namespace, name); err != nil {
			t.Errorf("Deployment %s/%s has no disruption budget: %v", namespace, name, err)
		}
	}

	options.Providers[2].Version = "v1.0.3"
	if err := capi.EnsureOperator(ctx, c, options, report); err == nil || !strings.Contains(err.Error(), "nothing is taken back to an older version") {
		t.Errorf("an older version is answered with %v", err)
	}
	options.Providers[2].Version = "v1.1.0"
	options.Providers = options.Providers[:3]
	if err := capi.EnsureOperator(ctx, c, options, report); err != nil {
		t.Fatal(err)
	}
	if left, err := capi.Inventory(ctx, c.Config); err != nil || len(left) != 3 {
		t.Errorf("after the removal of one there are %v, %v", left, err)
	}
	return options
}

func deployments(t *testing.T, c *kube.Client) string {
	t.Helper()
	list := &appsv1.DeploymentList{}
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, d := range list.Items {
		text = append(text, fmt.Sprintf("%s@%d", d.Name, d.Generation))
	}
	slices.Sort(text)
	return strings.Join(text, " ")
}
