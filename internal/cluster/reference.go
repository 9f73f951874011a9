// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// reference is one object's reference to another.
type reference struct {
	// field is the mapping that holds it.
	field field
	kind  schema.GroupKind
	// version is empty where the reference names a group only.
	version, name string
}

// referencesOf finds the references in an object's spec by the contracts of
// Cluster API: a mapping with kind, name and an API group or version, alone or in
// a list, under a key that ends in Ref, or is ref or infrastructureTemplate.
func referencesOf(o Object) []reference {
	var found []reference
	walkReferences(o.at("spec"), "spec", &found)
	return found
}

func walkReferences(f field, key string, found *[]reference) {
	switch v := f.value.(type) {
	case []any:
		for _, item := range f.items() {
			walkReferences(item, key, found)
		}
	case map[string]any:
		if isReferenceKey(key) {
			if r, ok := referenceIn(f); ok {
				*found = append(*found, r)
				return
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			walkReferences(field{object: f.object, path: joinPath(f.path, key), value: v[key]}, key, found)
		}
	}
}

func isReferenceKey(key string) bool {
	return strings.HasSuffix(key, "Ref") || key == "ref" || key == "infrastructureTemplate"
}

func referenceIn(f field) (reference, bool) {
	members, _ := f.value.(map[string]any)
	kind, _ := members["kind"].(string)
	name, _ := members["name"].(string)
	group, _ := members["apiGroup"].(string)
	r := reference{field: f, kind: schema.GroupKind{Group: group, Kind: kind}, name: name}
	if apiVersion, ok := members["apiVersion"].(string); ok {
		if gv, err := schema.ParseGroupVersion(apiVersion); err == nil {
			r.kind.Group, r.version = gv.Group, gv.Version
		}
	}
	return r, kind != "" && name != "" && r.kind.Group != ""
}
