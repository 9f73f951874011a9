// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
)

// helmLab is a control plane behind a proxy that can fail, for tests of charts
// through the real CLI.
type helmLab struct {
	*kube.Client
	t         *testing.T
	namespace string
	// kubeconfig leads to the control plane through the proxy.
	kubeconfig string
	*plane.Proxy
}

func startPlane(t *testing.T) *plane.Plane {
	t.Helper()
	cliPath(t)
	return plane.Start(t)
}

// newHelmLab gives a test a namespace and a proxy of its own.
func newHelmLab(t *testing.T, running *plane.Plane) *helmLab {
	t.Helper()
	lab := &helmLab{t: t, namespace: "n-" + uuid.NewString()[:8], Proxy: running.Proxy(t)}
	var err error
	if lab.Client, err = kube.NewClient(running.Config); err != nil {
		t.Fatal(err)
	}
	lab.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(lab.kubeconfig, lab.Proxy.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	return lab
}

// chart writes a small chart with one ConfigMap, and more objects if wanted.
func (lab *helmLab) chart(version string, templates ...string) string {
	lab.t.Helper()
	dir := filepath.Join(lab.t.TempDir(), "probe")
	files := map[string]string{
		"Chart.yaml":               "apiVersion: v2\nname: probe\nversion: " + version + "\nappVersion: app-" + version + "\n",
		"templates/configmap.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-words}\ndata: {word: {{ .Values.word | default \"none\" | quote }}}\n",
	}
	for i, template := range templates {
		files[fmt.Sprintf("templates/more-%d.yaml", i)] = template
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			lab.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			lab.t.Fatal(err)
		}
	}
	return dir
}

// ruled is a chart whose value word has to be a number.
func (lab *helmLab) ruled() string {
	lab.t.Helper()
	chart := lab.chart("1.0.0")
	if err := os.WriteFile(filepath.Join(chart, "values.schema.json"), []byte(`{"properties": {"word": {"type": "integer"}}}`), 0o600); err != nil {
		lab.t.Fatal(err)
	}
	return chart
}

// unready is a template of a Deployment that no control plane without nodes makes ready.
const unready = `apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec: {containers: [{name: main, image: registry.example/none}]}
`

// release is the resource with further arguments.
func (lab *helmLab) release(chart string, arguments ...string) string {
	return fmt.Sprintf(`
resource "capi_helm_release" "probe" {
  cluster   = { kubeconfig_path = %q }
  name      = "probe"
  namespace = %q
  chart     = %q
  %s
}
`, lab.kubeconfig, lab.namespace, chart, strings.Join(arguments, "\n  "))
}

func (lab *helmLab) word() (string, error) {
	words := &corev1.ConfigMap{}
	err := lab.Get(context.Background(), client.ObjectKey{Namespace: lab.namespace, Name: "probe-words"}, words)
	return words.Data["word"], kube.Classify(err)
}

func (lab *helmLab) record() (*helm.Release, error) {
	return helm.Read(context.Background(), lab.Client, lab.namespace, "probe")
}

// gone is for what a destroy must leave.
func (lab *helmLab) gone() error {
	if record, err := lab.record(); !kube.IsAbsent(err) {
		return fmt.Errorf("the release is %+v, %w", record, err)
	}
	if word, err := lab.word(); !kube.IsAbsent(err) {
		return fmt.Errorf("the release's object says %q, %w", word, err)
	}
	return nil
}

// holdCluster makes a Cluster object, with a definition that is just enough.
func (lab *helmLab) holdCluster() func() {
	lab.t.Helper()
	definition := &apiextensionsv1.CustomResourceDefinition{}
	definition.Name = "clusters.cluster.x-k8s.io"
	definition.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "cluster.x-k8s.io", Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "clusters", Singular: "cluster", Kind: "Cluster", ListKind: "ClusterList"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: "v1beta2", Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
		}},
	}
	if err := lab.Create(context.Background(), definition); err != nil {
		lab.t.Fatal(err)
	}
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": map[string]any{"namespace": lab.namespace, "name": "kmgt"},
	}}
	err := kube.Wait(context.Background(), "the definition of Cluster to be served", func(ctx context.Context) (bool, string, error) {
		err := lab.Create(ctx, cluster)
		return err == nil, "", err
	})
	if err != nil {
		lab.t.Fatal(err)
	}
	return func() {
		if err := lab.Client.Client.Delete(context.Background(), definition); err != nil {
			lab.t.Error(err)
		}
	}
}
