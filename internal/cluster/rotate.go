// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Annotations on templates.
const (
	// templateAnnotation holds the name that the manifest gives the template.
	templateAnnotation = "terraform-provider-capi.io/template"
	// contentAnnotation holds the hash of the content that was applied.
	contentAnnotation = "terraform-provider-capi.io/content"
)

// isTemplate says whether a kind is a template by the contracts of Cluster API:
// objects are made of it, it never changes, and another content is another
// object.
func isTemplate(kind schema.GroupKind) bool {
	switch kind.Group {
	case infrastructureGroup, bootstrapGroup, controlPlaneGroup:
		return strings.HasSuffix(kind.Kind, "Template")
	}
	return false
}

// templateKey names a template as the manifest does.
type templateKey struct {
	kind schema.GroupKind
	name string
}

func keyOf(u *unstructured.Unstructured) templateKey {
	return templateKey{kind: u.GroupVersionKind().GroupKind(), name: u.GetName()}
}

// contentHash is the same for the same specification, in whatever order it was
// written.
func contentHash(u *unstructured.Unstructured) (string, error) {
	raw, err := json.Marshal(u.Object["spec"])
	if err != nil {
		return "", fmt.Errorf("reading the content of %s: %w", refOf(u), err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:12], nil
}

// rotation finds the names under which the templates of a manifest are to stand.
type rotation struct {
	// lister answers the objects of a kind that stand in the namespace.
	lister func(ctx context.Context, apiVersion, kind string) ([]unstructured.Unstructured, error)
	names  map[templateKey]string
}

// rotate gives templates whose content changed a new name, and has all references
// follow. A template that stands already, made by whomever, keeps its name for as
// long as its content does: a mere other name would replace every machine. The
// objects are changed in place.
func (r *rotation) rotate(ctx context.Context, objects []*unstructured.Unstructured) error {
	r.names = map[templateKey]string{}
	pending := slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return !isTemplate(keyOf(o).kind) })
	// A template's content holds the names of those that it refers to, so these
	// come first. Where they go round in a circle they keep their names.
	for len(pending) > 0 {
		waiting := slices.DeleteFunc(slices.Clone(pending), func(o *unstructured.Unstructured) bool { return !refersToOneOf(o, pending) })
		for _, o := range pending {
			if len(waiting) < len(pending) && slices.Contains(waiting, o) {
				continue
			}
			if err := r.rename(ctx, o); err != nil {
				return err
			}
		}
		if len(waiting) == len(pending) {
			break
		}
		pending = waiting
	}
	for _, o := range objects {
		if !isTemplate(keyOf(o).kind) {
			r.follow(o.Object["spec"])
		}
	}
	return nil
}

func refersToOneOf(o *unstructured.Unstructured, templates []*unstructured.Unstructured) bool {
	for _, r := range referencesOf(Object{Unstructured: o}) {
		for _, t := range templates {
			if t != o && keyOf(t) == (templateKey{r.kind, r.name}) {
				return true
			}
		}
	}
	return false
}

func (r *rotation) rename(ctx context.Context, o *unstructured.Unstructured) error {
	r.follow(o.Object["spec"])
	key := keyOf(o)
	hash, err := contentHash(o)
	if err != nil {
		return err
	}
	live, err := r.lister(ctx, o.GetAPIVersion(), o.GetKind())
	if err != nil && !kube.IsAbsent(err) {
		return err
	}
	name := nameFor(o, hash, live)
	r.names[key] = name
	annotate(o, templateAnnotation, key.name)
	annotate(o, contentAnnotation, hash)
	o.SetName(name)
	return nil
}

// nameFor chooses the name of a template among the objects that stand.
func nameFor(o *unstructured.Unstructured, hash string, live []unstructured.Unstructured) string {
	taken := false
	for i := range live {
		found := &live[i]
		family := found.GetName() == o.GetName() || found.GetAnnotations()[templateAnnotation] == o.GetName()
		recorded := found.GetAnnotations()[contentAnnotation]
		if family && (recorded == hash || recorded == "" && contains(found.Object["spec"], o.Object["spec"])) {
			return found.GetName()
		}
		taken = taken || found.GetName() == o.GetName()
	}
	if !taken {
		return o.GetName()
	}
	return o.GetName() + "-" + hash
}

// contains says whether a live value holds all that is wanted; what else it holds
// are defaults.
func contains(live, wanted any) bool {
	switch w := wanted.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return len(w) == 0 && live == nil
		}
		for key, value := range w {
			if !contains(l[key], value) {
				return false
			}
		}
		return true
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(w) {
			return len(w) == 0 && live == nil
		}
		for i := range w {
			if !contains(l[i], w[i]) {
				return false
			}
		}
		return true
	}
	return live == wanted
}

// follow renames the references to rotated templates anywhere in a value: of
// control planes, MachineDeployments and classes, and in the values of a class's
// JSON patches.
func (r *rotation) follow(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			r.follow(item)
		}
	case map[string]any:
		if ref, ok := referenceIn(field{value: v}); ok {
			if name, ok := r.names[templateKey{ref.kind, ref.name}]; ok {
				v["name"] = name
			}
		}
		r.followPatch(v)
		for _, item := range v {
			r.follow(item)
		}
	}
}

// followPatch renames the value of a JSON patch that sets only the name of a
// reference, such as /spec/template/spec/bootstrap/configRef/name.
func (r *rotation) followPatch(operation map[string]any) {
	pointer, _ := operation["path"].(string)
	name, ok := operation["value"].(string)
	steps := strings.Split(pointer, "/")
	if !ok || len(steps) < 2 || steps[len(steps)-1] != "name" {
		return
	}
	group := infrastructureGroup
	switch parent := steps[len(steps)-2]; {
	case parent == "configRef":
		group = bootstrapGroup
	case !isReferenceKey(parent):
		return
	}
	for key, renamed := range r.names {
		if key.name == name && key.kind.Group == group {
			operation["value"] = renamed
			return
		}
	}
}
