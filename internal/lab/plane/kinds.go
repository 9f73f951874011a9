// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package plane

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Client answers a client of an administrator.
func (p *Plane) Client(t testing.TB) *kube.Client {
	t.Helper()
	config := rest.CopyConfig(p.Config)
	config.WarningHandler = rest.NoWarnings{}
	c, err := kube.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// InstallKinds installs the custom resource definitions of the providers with the
// given labels ("cluster-api", "infrastructure-proxmox", ...) and waits until they
// are served. Conversion webhooks are left out, since no controllers run here:
// only the stored versions can be used.
func (p *Plane) InstallKinds(t testing.TB, c *kube.Client, labels ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // many at once on a busy machine
	defer cancel()
	var installed []client.ObjectKey
	for _, label := range labels {
		for _, definition := range p.definitions(t, label) {
			definition.Spec.Conversion = nil
			// clusterctl and the operator add these when they install components.
			metav1.SetMetaDataLabel(&definition.ObjectMeta, clusterctlv1.ClusterctlLabel, "")
			metav1.SetMetaDataLabel(&definition.ObjectMeta, clusterv1.ProviderNameLabel, label)
			if err := c.Create(ctx, definition); err != nil {
				t.Fatalf("installing %s: %v", definition.Name, err)
			}
			installed = append(installed, client.ObjectKeyFromObject(definition))
		}
	}
	for _, key := range installed {
		err := kube.Wait(ctx, "waiting for "+key.Name+" to be served", func(ctx context.Context) (bool, string, error) {
			definition := &apiextensionsv1.CustomResourceDefinition{}
			if err := c.Get(ctx, key, definition); err != nil {
				return false, "", err
			}
			for _, condition := range definition.Status.Conditions {
				if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
					return true, "", nil
				}
			}
			return false, "not established", nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (p *Plane) definitions(t testing.TB, label string) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.Artifacts.Repository, label, "*", "*components.yaml"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the components of %s: %v %v", label, files, err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	documents, err := kube.ParseDocuments(content)
	if err != nil {
		t.Fatal(err)
	}
	var found []*apiextensionsv1.CustomResourceDefinition
	for _, document := range documents {
		if document.GetKind() != "CustomResourceDefinition" {
			continue
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(document.Object, definition); err != nil {
			t.Fatal(err)
		}
		found = append(found, definition)
	}
	return found
}
