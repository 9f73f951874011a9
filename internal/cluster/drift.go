// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// IgnoredField is a field that somebody else sets: it is written when its object
// is made, and from then on left as it is found.
type IgnoredField struct {
	// Kind and Name choose the objects; an empty name means all of the kind.
	Kind, Name string
	// Path leads to the field, by keys: spec.replicas.
	Path []string
}

var ignoredText = regexp.MustCompile(`^([A-Za-z0-9]+)(?:/([a-z0-9.-]+))?:([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)$`)

// ParseIgnored reads a field as "Kind/name:path" or, for all objects of a kind,
// "Kind:path", such as "MachineDeployment/workers:spec.replicas".
func ParseIgnored(text string) (IgnoredField, error) {
	match := ignoredText.FindStringSubmatch(text)
	if match == nil {
		return IgnoredField{}, fmt.Errorf("%q is not a field such as MachineDeployment/workers:spec.replicas", text)
	}
	return IgnoredField{Kind: match[1], Name: match[2], Path: strings.Split(match[3], ".")}, nil
}

func (f IgnoredField) matches(u *unstructured.Unstructured) bool {
	named := f.Name == "" || f.Name == u.GetName() || f.Name == u.GetAnnotations()[templateAnnotation]
	return f.Kind == u.GetKind() && named
}

// isAutoscaled says whether the cluster autoscaler sets the object's replicas.
func isAutoscaled(u *unstructured.Unstructured) bool {
	_, ok := u.GetAnnotations()[autoscalerMax]
	return ok
}

// keepIgnored puts the values that are found in the place of the ignored ones: a
// field that was left out would be taken away, since it was ours.
func (h Home) keepIgnored(ctx context.Context, object *unstructured.Unstructured, ignored []IgnoredField) error {
	var paths [][]string
	for _, f := range ignored {
		if f.matches(object) {
			paths = append(paths, f.Path)
		}
	}
	if isAutoscaled(object) {
		paths = append(paths, []string{"spec", "replicas"})
	}
	if len(paths) == 0 {
		return nil
	}
	live, err := h.Client.Object(ctx, object.GetAPIVersion(), object.GetKind(), object.GetNamespace(), object.GetName())
	if kube.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := copyField(live, object, path); err != nil {
			return err
		}
	}
	return nil
}

func copyField(from, to *unstructured.Unstructured, path []string) error {
	value, found, err := unstructured.NestedFieldCopy(from.Object, path...)
	if err == nil && found {
		err = unstructured.SetNestedField(to.Object, value, path...)
	} else if err == nil {
		unstructured.RemoveNestedField(to.Object, path...)
	}
	if err != nil {
		return fmt.Errorf("ignoring the field %s of %s: %w", strings.Join(path, "."), refOf(to), err)
	}
	return nil
}

// Drift compares the objects with the manifest and answers one line for each
// field of the manifest that somebody else has changed, and for each object that
// is gone. The API server itself says what an apply would change, so what
// controllers set beside the manifest is no drift. Values that may be secrets are
// not shown.
func (h Home) Drift(ctx context.Context, m *Manifest, ignored []IgnoredField) ([]string, error) {
	desired, err := h.desiredNow(ctx, m, ignored)
	if err != nil {
		return nil, err
	}
	var drift []string
	for _, object := range desired {
		lines, err := h.driftOf(ctx, object)
		if err != nil {
			return nil, err
		}
		drift = append(drift, lines...)
	}
	slices.Sort(drift)
	return drift, nil
}

func (h Home) driftOf(ctx context.Context, object *unstructured.Unstructured) ([]string, error) {
	live, err := h.Client.Object(ctx, object.GetAPIVersion(), object.GetKind(), object.GetNamespace(), object.GetName())
	if kube.IsAbsent(err) {
		return []string{refOf(object) + ": is gone"}, nil
	}
	if err != nil {
		return nil, err
	}
	applied, err := h.Client.ApplyObject(ctx, object, kube.ApplyOptions{Force: true, DryRun: true})
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, field := range []string{"spec", "data", "metadata"} {
		before, after := live.Object[field], applied.Object[field]
		if field == "metadata" {
			before, after = described(live), described(applied)
		}
		compare(field, before, after, func(path string, was, shall any) {
			lines = append(lines, fmt.Sprintf("%s: %s: %s, the manifest has %s", refOf(object), path, show(path, was), show(path, shall)))
		})
	}
	return lines, nil
}

// described is the part of the metadata that a manifest sets. Marks of this
// provider are no part of a manifest.
func described(u *unstructured.Unstructured) map[string]any {
	part := map[string]any{}
	for name, texts := range map[string]map[string]string{"labels": u.GetLabels(), "annotations": u.GetAnnotations()} {
		values := map[string]any{}
		for key, value := range texts {
			if !strings.HasPrefix(key, "terraform-provider-capi.io/") {
				values[key] = value
			}
		}
		part[name] = values
	}
	return part
}

// compare calls differ for each leaf in which two values differ.
func compare(path string, was, shall any, differ func(path string, was, shall any)) {
	wasMap, a := was.(map[string]any)
	shallMap, b := shall.(map[string]any)
	if a && b {
		keys := slices.Collect(maps.Keys(wasMap))
		keys = slices.AppendSeq(keys, maps.Keys(shallMap))
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			compare(path+"."+key, wasMap[key], shallMap[key], differ)
		}
		return
	}
	wasList, a := was.([]any)
	shallList, b := shall.([]any)
	if a && b && len(wasList) == len(shallList) {
		for i := range wasList {
			compare(fmt.Sprintf("%s[%d]", path, i), wasList[i], shallList[i], differ)
		}
		return
	}
	if !sameJSON(was, shall) {
		differ(path, was, shall)
	}
}

// sameJSON compares two values. Nothing and an empty mapping or list are the same,
// since the API server keeps one or the other as it likes.
func sameJSON(a, b any) bool {
	if isEmpty(a) && isEmpty(b) {
		return true
	}
	left, errLeft := json.Marshal(a)
	right, errRight := json.Marshal(b)
	return errLeft == nil && errRight == nil && string(left) == string(right)
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// secretive matches the paths whose values are not shown: machine configurations,
// which may hold keys, and whatever is called so.
var secretive = regexp.MustCompile(`(?i)secret|token|password|passwd|credential|key|certificate|patches|files|data\b|commands`)

const longestShown = 60

func show(path string, value any) string {
	if value == nil {
		return "nothing"
	}
	if secretive.MatchString(path) {
		return "(not shown)"
	}
	text, err := json.Marshal(value)
	if err != nil || len(text) > longestShown {
		return "(long)"
	}
	return string(text)
}
