// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
)

// content answers what of an object must be the same on both sides: all but its
// status, what the API server writes, and the pause, which the move changes.
func content(o *unstructured.Unstructured) map[string]any {
	all := map[string]any{}
	for field, value := range o.Object {
		switch field {
		case "apiVersion", "kind", "metadata", "status":
		default:
			all[field] = value
		}
	}
	if spec, ok := all["spec"].(map[string]any); ok && idOf(o).is(clusterKind) {
		spec = maps.Clone(spec)
		delete(spec, "paused")
		all["spec"] = spec
	}
	annotations := o.GetAnnotations()
	if idOf(o).is(classKind) {
		delete(annotations, clusterv1.PausedAnnotation)
	}
	delete(annotations, clusterctlv1.DeleteForMoveAnnotation)
	kept := map[string]any{}
	if labels := o.GetLabels(); len(labels) > 0 {
		kept["labels"] = anyMap(labels)
	}
	if len(annotations) > 0 {
		kept["annotations"] = anyMap(annotations)
	}
	if finalizers := o.GetFinalizers(); len(finalizers) > 0 {
		sorted := slices.Sorted(slices.Values(finalizers))
		list := make([]any, len(sorted))
		for i, finalizer := range sorted {
			list[i] = finalizer
		}
		kept["finalizers"] = list
	}
	all["metadata"] = kept
	return all
}

func anyMap(texts map[string]string) map[string]any {
	all := make(map[string]any, len(texts))
	for key, value := range texts {
		all[key] = value
	}
	return all
}

// contentHash is a hash of [content]. Its text is never shown: that of a small
// Secret could be guessed from it.
func contentHash(o *unstructured.Unstructured) string {
	// The content came out of JSON, so it goes back into it; keys are sorted.
	raw, _ := json.Marshal(content(o))
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// missing answers the path of the first field of want that got lacks or holds
// otherwise, and nothing when all are there. What only got has is no fault: a
// newer provider on the target fills in its defaults.
func missing(want, got any, path string) string {
	switch want := want.(type) {
	case map[string]any:
		have, ok := got.(map[string]any)
		if !ok && len(want) > 0 {
			return path
		}
		for _, field := range slices.Sorted(maps.Keys(want)) {
			value, ok := have[field]
			if !ok && !empty(want[field]) {
				return path + "." + field
			}
			if found := missing(want[field], value, path+"."+field); ok && found != "" {
				return found
			}
		}
		return ""
	case []any:
		have, ok := got.([]any)
		if !ok || len(have) != len(want) {
			return path
		}
		for i := range want {
			if found := missing(want[i], have[i], fmt.Sprintf("%s[%d]", path, i)); found != "" {
				return found
			}
		}
		return ""
	default:
		if !reflect.DeepEqual(want, got) {
			return path
		}
		return ""
	}
}

// empty says whether an API server may leave a value out: null, {} and [].
func empty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(value) == 0
	case []any:
		return len(value) == 0
	}
	return false
}

// Difference is one way in which the target does not hold what the source holds.
type Difference struct {
	ID   ID
	What string
}

func (d Difference) Error() string { return d.ID.String() + ": " + d.What }

// compare answers what of the source's objects the target lacks or holds
// otherwise, sorted. Objects that only the target has are no fault. existing are
// those that it had before, with owners and labels of their own.
func compare(source []*node, target map[ID]*unstructured.Unstructured, existing map[ID]bool) []Difference {
	uids := map[types.UID]ID{}
	for id, o := range target {
		uids[o.GetUID()] = id
	}
	var differences []Difference
	for _, n := range source {
		what := ""
		if existing[n.ID] {
			what = existingDifference(n, target[n.ID])
		} else {
			what = difference(n, target[n.ID], uids)
		}
		if what != "" {
			differences = append(differences, Difference{n.ID, what})
		}
	}
	slices.SortFunc(differences, func(a, b Difference) int { return strings.Compare(a.Error(), b.Error()) })
	return differences
}

func difference(n *node, copied *unstructured.Unstructured, uids map[types.UID]ID) string {
	if copied == nil {
		return "is missing"
	}
	if copied.GetDeletionTimestamp() != nil {
		return "is being deleted"
	}
	if n.is(machineKind) && providerID(n.object) != providerID(copied) {
		return "has another provider ID"
	}
	if field := missing(content(n.object), content(copied), ""); field != "" {
		return "has another content: " + strings.TrimPrefix(field, ".")
	}
	want, got := ownerIDs(n), []ID{}
	for _, reference := range copied.GetOwnerReferences() {
		if id, ok := uids[reference.UID]; ok {
			got = append(got, id)
		}
	}
	slices.SortFunc(got, compareIDs)
	if !slices.Equal(want, got) {
		return fmt.Sprintf("has the owners %v instead of %v", got, want)
	}
	return ""
}

// existingDifference compares an object that the target had before: what it is,
// and not whose. A Secret that is only referred to may be the target's own.
func existingDifference(n *node, there *unstructured.Unstructured) string {
	if there == nil {
		return "is missing"
	}
	if n.carried {
		return ""
	}
	want := content(n.object)
	delete(want, "metadata")
	if field := missing(want, content(there), ""); field != "" {
		return "has another content: " + strings.TrimPrefix(field, ".")
	}
	return ""
}

func ownerIDs(n *node) []ID {
	ids := make([]ID, 0, len(n.owners))
	for _, owner := range n.owners {
		ids = append(ids, owner.ID)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func providerID(o *unstructured.Unstructured) string {
	id, _, _ := unstructured.NestedString(o.Object, "spec", "providerID")
	return id
}

func differencesError(differences []Difference) error {
	const shown = 10 // of thousands, the first say what is wrong
	var all []error
	for i, d := range differences {
		if i == shown {
			all = append(all, fmt.Errorf("and %d more", len(differences)-shown))
			break
		}
		all = append(all, d)
	}
	return errors.Join(all...)
}
