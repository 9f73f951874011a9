// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

const (
	// providerLabel marks what belongs to a provider's object for the operator.
	providerLabel = "terraform-provider-capi/provider"
	// componentsLabel is what the operator finds a provider's components by. Its
	// value is their hash, so that exactly one ConfigMap has it.
	componentsLabel = "terraform-provider-capi/components"
	// ownerAnnotation is the mark of the owner on a provider's object.
	ownerAnnotation = "terraform-provider-capi/owner"

	// Names that the operator reads (cluster-api-operator v0.28.0,
	// api/v1alpha2/provider_types.go).
	compressedAnnotation = "provider.cluster.x-k8s.io/compressed"
	versionLabel         = "provider.cluster.x-k8s.io/version"
)

// components are a release's files as the operator takes them.
type components struct {
	provider   Provider
	namespace  string
	metadata   []byte
	compressed []byte
	// rendered are the objects that come out of them, changed as the
	// provider's credentials ask.
	rendered []unstructured.Unstructured
}

// mergePatch is the change that the provider's credentials ask for, as the
// operator takes it. What the operator calls a strategic merge patch is a plain
// one (cluster-api-operator v0.28.0, internal/patch/mergepatch.go), which
// replaces lists, so it holds the whole lists as they shall be.
func (c *components) mergePatch() (string, error) {
	for i := range c.rendered {
		if c.rendered[i].GetKind() != "Deployment" || c.rendered[i].GetName() != capmoxDeployment {
			continue
		}
		pod, found, err := unstructured.NestedMap(c.rendered[i].Object, "spec", "template", "spec")
		if err != nil {
			return "", fmt.Errorf("reading the pod of Deployment %s: %w", capmoxDeployment, err)
		}
		if !found {
			return "", fmt.Errorf("there is no pod in Deployment %s", capmoxDeployment)
		}
		lists := map[string]any{"containers": pod["containers"]}
		if volumes, ok := pod["volumes"]; ok {
			lists["volumes"] = volumes
		}
		patch, err := yaml.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{credentialsHashKey: c.provider.variablesHash()}},
			"spec":     lists,
		}}})
		return string(patch), err
	}
	return "", fmt.Errorf("the components hold no Deployment %s", capmoxDeployment)
}

// fetch reads the files of a provider's release. The namespace is the one that
// its components are made for.
func fetch(ctx context.Context, p Provider, source Source) (*components, error) {
	files, err := openRelease(ctx, p, source, p.variables())
	if err != nil {
		return nil, err
	}
	// Rendering here finds what is wrong with them before the operator does.
	rendered, err := files.render(ctx, p)
	if err != nil {
		return nil, err
	}
	raw, err := files.file(ctx, p.Version, files.componentsFile())
	if err != nil {
		return nil, err
	}
	metadata, err := files.file(ctx, p.Version, metadataFile)
	if err != nil {
		return nil, err
	}
	compressed, err := compress(raw)
	if err != nil {
		return nil, fmt.Errorf("compressing the components of %s: %w", p, err)
	}
	return &components{provider: p, namespace: rendered.TargetNamespace(), metadata: metadata, compressed: compressed, rendered: rendered.Objs()}, nil
}

func compress(content []byte) ([]byte, error) {
	var out bytes.Buffer
	writer := gzip.NewWriter(&out)
	_, err := writer.Write(content)
	if err := errors.Join(err, writer.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (c *components) hash() string {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%s %s %d\n", c.provider.Label(), c.provider.Version, len(c.metadata))
	_, _ = sum.Write(c.metadata)
	_, _ = sum.Write(c.compressed)
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

func (c *components) configMapName() string {
	return c.provider.Label() + "-components-" + c.hash()[:8]
}

// configMap holds the components. They are compressed since a ConfigMap holds a
// MiB and Cluster API's components alone have two.
func (c *components) configMap() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata": map[string]any{
			"name": c.configMapName(), "namespace": c.namespace,
			"labels": map[string]any{
				providerLabel:   c.provider.Label(),
				componentsLabel: c.hash(),
				versionLabel:    c.provider.Version,
			},
			"annotations": map[string]any{compressedAnnotation: "true"},
		},
		"data":       map[string]any{"metadata": string(c.metadata)},
		"binaryData": map[string]any{"components": base64.StdEncoding.EncodeToString(c.compressed)},
	}}
}

// configSecret holds the variables. The operator takes a Secret's content for
// unchangeable, so another content has another name.
func (p Provider) configSecret(namespace string) *unstructured.Unstructured {
	data := map[string]any{}
	for key, value := range p.variables() {
		data[key] = base64.StdEncoding.EncodeToString([]byte(value))
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "Secret",
		"metadata": map[string]any{
			"name": p.Label() + "-variables-" + p.variablesHash()[:8], "namespace": namespace,
			"labels": map[string]any{providerLabel: p.Label()},
		},
		"type": string(corev1.SecretTypeOpaque),
		"data": data,
	}}
}

// sweep removes the components and variables that the provider's object refers
// to no longer.
func (o *operation) sweep(ctx context.Context, e entry) error {
	kept := map[string]bool{e.components: true, e.config: true, e.additional: true}
	for _, kind := range []string{"ConfigMap", "Secret"} {
		if err := deleteOthers(ctx, o.client, kind, e.object.GetNamespace(), e.provider.Label(), kept); err != nil {
			return err
		}
	}
	return nil
}

func deleteOthers(ctx context.Context, c *kube.Client, kind, namespace, label string, kept map[string]bool) error {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("v1")
	list.SetKind(kind + "List")
	if err := c.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{providerLabel: label}); err != nil {
		return err
	}
	for i := range list.Items {
		if kept[list.Items[i].GetName()] {
			continue
		}
		if err := client.IgnoreNotFound(c.Delete(ctx, &list.Items[i])); err != nil {
			return fmt.Errorf("deleting %s: %w", kube.Describe(&list.Items[i]), err)
		}
	}
	return nil
}
