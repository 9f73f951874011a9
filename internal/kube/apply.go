// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ApplyOptions chooses how objects are applied.
type ApplyOptions struct {
	// Manager owns the applied fields; empty means [FieldManager].
	Manager string
	// Force takes fields over from other managers instead of failing on a
	// conflict.
	Force bool
	// DryRun asks the server what would come out and changes nothing.
	DryRun bool
}

// ApplyObject sends an object by server-side apply and answers what the server made
// of it. The object given stays as it is. A conflict with another field
// manager answers an error that names the fields and their owner
// (k8s.io/apimachinery/pkg/api/errors.IsConflict).
func (c *Client) ApplyObject(ctx context.Context, object *unstructured.Unstructured, options ApplyOptions) (*unstructured.Unstructured, error) {
	result := object.DeepCopy()
	// The server refuses an apply that carries these.
	result.SetManagedFields(nil)
	result.SetResourceVersion("")
	result.SetUID("")
	manager := options.Manager
	if manager == "" {
		manager = FieldManager
	}
	sent := []client.ApplyOption{client.FieldOwner(manager)}
	if options.Force {
		sent = append(sent, client.ForceOwnership)
	}
	if options.DryRun {
		sent = append(sent, client.DryRunAll)
	}
	if err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(result), sent...); err != nil {
		return nil, fmt.Errorf("applying %s: %w", Describe(object), Classify(err))
	}
	return result, nil
}

// ParseDocuments reads the objects of a YAML or JSON text of several
// documents, in their order; empty documents are skipped and the items of a
// List are taken one by one. Errors name the number of the document, from 1,
// and never quote its content, which may be a secret.
func ParseDocuments(text []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for number := 1; ; number++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading document %d: %w", number, err)
		}
		found, err := parseDocument(document)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
		objects = append(objects, found...)
	}
}

func parseDocument(document []byte) ([]*unstructured.Unstructured, error) {
	var content map[string]any
	if err := yaml.Unmarshal(document, &content); err != nil {
		return nil, errors.New("it is not valid YAML of one object")
	}
	if len(content) == 0 {
		return nil, nil
	}
	object := &unstructured.Unstructured{Object: content}
	if object.GetAPIVersion() == "" || object.GetKind() == "" {
		return nil, errors.New("it has no apiVersion or no kind")
	}
	if !object.IsList() {
		if object.GetName() == "" {
			return nil, fmt.Errorf("the %s has no metadata.name", object.GetKind())
		}
		return []*unstructured.Unstructured{object}, nil
	}
	var items []*unstructured.Unstructured
	err := object.EachListItem(func(item runtime.Object) error {
		single, ok := item.(*unstructured.Unstructured)
		if !ok || single.GetKind() == "" || single.GetName() == "" {
			return errors.New("an item of the List has no kind or no metadata.name")
		}
		items = append(items, single)
		return nil
	})
	return items, err
}
