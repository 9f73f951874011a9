// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// inventoryAnnotation lists on the Cluster what was applied with it, so that what
// leaves the manifest is found again. It goes wherever the Cluster is moved.
const inventoryAnnotation = "terraform-provider-capi.io/inventory"

// item is one object of an inventory, all of which lie in the Cluster's
// namespace.
type item struct {
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

func (i item) kind() schema.GroupKind { return schema.GroupKind{Group: i.Group, Kind: i.Kind} }

func (i item) String() string { return i.Kind + " " + i.Name }

func itemOf(u *unstructured.Unstructured) item {
	kind := u.GroupVersionKind().GroupKind()
	return item{Group: kind.Group, Kind: kind.Kind, Name: u.GetName()}
}

func compareItems(a, b item) int {
	return strings.Compare(a.Group+"/"+a.Kind+"/"+a.Name, b.Group+"/"+b.Kind+"/"+b.Name)
}

func inventoryOf(objects []*unstructured.Unstructured) []item {
	var items []item
	for _, o := range objects {
		if !isCluster(o) {
			items = append(items, itemOf(o))
		}
	}
	slices.SortFunc(items, compareItems)
	return items
}

// union answers the items of both, sorted and each once.
func union(a, b []item) []item {
	all := append(slices.Clone(a), b...)
	slices.SortFunc(all, compareItems)
	return slices.Compact(all)
}

func writeInventory(items []item) (string, error) {
	raw, err := json.Marshal(items)
	if err != nil {
		return "", fmt.Errorf("writing the inventory: %w", err)
	}
	return string(raw), nil
}

// readInventory reads a Cluster's inventory. One that was not made by this
// provider has none.
func readInventory(cluster *clusterv1.Cluster) ([]item, error) {
	text := cluster.Annotations[inventoryAnnotation]
	if text == "" {
		return nil, nil
	}
	var items []item
	if err := json.Unmarshal([]byte(text), &items); err != nil {
		return nil, fmt.Errorf("the annotation %s of cluster %s/%s cannot be read: %w", inventoryAnnotation, cluster.Namespace, cluster.Name, err)
	}
	return items, nil
}

// prune removes an object that left the manifest, if this provider's fields are
// still in it, and waits until it is gone. For a template it first waits until
// nothing that was made of it is left.
func (h Home) prune(ctx context.Context, i item) error {
	object, err := h.liveItem(ctx, i)
	if kube.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isOurs(object) {
		h.Report.Report(ctx, "pruning", fmt.Sprintf("%s left the manifest and stays: nothing in it is this provider's any more", i))
		return nil
	}
	if isTemplate(i.kind()) {
		err := h.wait(ctx, "pruning", i.String()+" to be let go by all machines", func(ctx context.Context) (bool, string, error) {
			user, err := h.userOf(ctx, object)
			return err == nil && user == "", i.String() + " is needed by " + user, err
		})
		if err != nil {
			return err
		}
	}
	h.Report.Report(ctx, "pruning", fmt.Sprintf("removing %s, which left the manifest", i))
	uid := object.GetUID()
	err = h.retry(ctx, "removing "+i.String(), func(ctx context.Context) error {
		return client.IgnoreNotFound(h.Client.Delete(ctx, object, client.Preconditions{UID: &uid}))
	})
	if err != nil {
		return err
	}
	return h.wait(ctx, "pruning", i.String()+" to be gone", func(ctx context.Context) (bool, string, error) {
		_, err := h.liveItem(ctx, i)
		if kube.IsAbsent(err) {
			return true, "", nil
		}
		return false, i.String() + " is still there", err
	})
}

func (h Home) liveItem(ctx context.Context, i item) (*unstructured.Unstructured, error) {
	mapping, err := h.Client.RESTMapper().RESTMapping(i.kind())
	if err != nil {
		return nil, fmt.Errorf("finding the kind of %s: %w", i, kube.Classify(err))
	}
	apiVersion, kind := mapping.GroupVersionKind.ToAPIVersionAndKind()
	return h.Client.Object(ctx, apiVersion, kind, h.Namespace, i.Name)
}

func isOurs(u *unstructured.Unstructured) bool {
	for _, entry := range u.GetManagedFields() {
		if entry.Manager == kube.FieldManager {
			return true
		}
	}
	return false
}

// userOf answers who needs a template: an object that was made of it, or a set of
// machines, or what makes such sets, that refers to it. Empty if nobody does.
func (h Home) userOf(ctx context.Context, template *unstructured.Unstructured) (string, error) {
	key := keyOf(template)
	made := strings.TrimSuffix(template.GetKind(), "Template")
	objects, err := h.Client.Objects(ctx, template.GetAPIVersion(), made, h.Namespace)
	if err != nil && !kube.IsAbsent(err) {
		return "", err
	}
	for i := range objects {
		annotations := objects[i].GetAnnotations()
		if annotations[clusterv1.TemplateClonedFromNameAnnotation] == key.name && annotations[clusterv1.TemplateClonedFromGroupKindAnnotation] == key.kind.String() {
			return refOf(&objects[i]), nil
		}
	}
	for _, kind := range []string{"MachineSet", "MachineDeployment"} {
		sets, err := h.Client.Objects(ctx, clusterv1.GroupVersion.String(), kind, h.Namespace)
		if err != nil && !kube.IsAbsent(err) {
			return "", err
		}
		for i := range sets {
			// A set of no machines stands for history only.
			if replicas, _, _ := unstructured.NestedInt64(sets[i].Object, "spec", "replicas"); kind == "MachineSet" && replicas == 0 {
				continue
			}
			for _, r := range referencesOf(Object{Unstructured: &sets[i]}) {
				if (templateKey{r.kind, r.name}) == key {
					return refOf(&sets[i]), nil
				}
			}
		}
	}
	return "", nil
}
