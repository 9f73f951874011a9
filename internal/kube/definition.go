// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"context"
	"errors"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Instances lists the objects of a CustomResourceDefinition's kind, without their
// contents; limit is how many are asked for, and 0 means all. It is asked before
// the definition, or what looks after its objects, may go: that nobody can tell
// is an error.
func Instances(ctx context.Context, reader client.Reader, definition *apiextensionsv1.CustomResourceDefinition, limit int64) ([]metav1.PartialObjectMetadata, error) {
	// Every version serves the same objects.
	served := slices.IndexFunc(definition.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Served })
	if served < 0 {
		return nil, errors.New("it serves no version, so that nobody can tell")
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: definition.Spec.Group, Version: definition.Spec.Versions[served].Name, Kind: definition.Spec.Names.ListKind})
	err := Classify(reader.List(ctx, list, client.Limit(limit)))
	if IsAbsent(err) && !established(definition) {
		// The definition was never accepted, so that no object could be made.
		return nil, nil
	}
	for i := range list.Items {
		list.Items[i].Kind = definition.Spec.Names.Kind
	}
	return list.Items, err
}

func established(definition *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.ContainsFunc(definition.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
}
