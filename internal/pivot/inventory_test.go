// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func object(kind, name, uid string, content map[string]any, owners ...string) unstructured.Unstructured {
	version := "cluster.x-k8s.io/v1beta2"
	if kind == "Secret" {
		version = "v1"
	}
	var references []any
	for _, owner := range owners {
		references = append(references, map[string]any{"uid": owner, "kind": "Any", "name": "any", "apiVersion": "v1"})
	}
	o := map[string]any{
		"apiVersion": version, "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": "kmgt", "uid": uid, "ownerReferences": references},
	}
	for key, value := range content {
		o[key] = value
	}
	return unstructured.Unstructured{Object: o}
}

// side is one management cluster; prefix makes its UIDs its own.
func side(prefix string) []unstructured.Unstructured {
	return []unstructured.Unstructured{
		object("Cluster", "kmgt", prefix+"c", map[string]any{"spec": map[string]any{"paused": prefix == "a", "clusterNetwork": "x"}}),
		object("Machine", "m1", prefix+"m", map[string]any{"spec": map[string]any{"providerID": "proxmox://1"}, "status": map[string]any{"phase": prefix}}, prefix+"c"),
		object("Secret", "kmgt-ca", prefix+"s", map[string]any{"data": map[string]any{"tls.key": "x"}}, prefix+"c"),
		object("Secret", "foreign", prefix+"f", map[string]any{"data": map[string]any{"a": prefix}}),
	}
}

func TestCompare(t *testing.T) {
	tests := map[string]struct {
		change func(target []unstructured.Unstructured) []unstructured.Unstructured
		want   string
	}{
		"other UIDs, status and pause are no difference": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured { return target },
		},
		"more objects on the target are no difference": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				return append(target, object("Machine", "m2", "new", nil))
			},
		},
		"a missing machine is told": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				return append(target[:1:1], target[2:]...)
			},
			want: "Machine kmgt/m1: is missing",
		},
		"another provider id is told": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				target[1].Object["spec"] = map[string]any{"providerID": "proxmox://2"}
				return target
			},
			want: "Machine kmgt/m1: has another provider ID",
		},
		"a changed spec is told": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				target[0].Object["spec"] = map[string]any{"clusterNetwork": "y"}
				return target
			},
			want: "Cluster kmgt/kmgt: has another content",
		},
		"a changed Secret is told": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				target[2].Object["data"] = map[string]any{"tls.key": "y"}
				return target
			},
			want: "Secret kmgt/kmgt-ca: has another content",
		},
		"a lost owner is told": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				target[1].SetOwnerReferences(nil)
				return target
			},
			want: "Machine kmgt/m1: has the owners",
		},
		"a Secret that lost its owner is missing from the inventory": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				target[2].SetOwnerReferences(nil)
				return target
			},
			want: "Secret kmgt/kmgt-ca: is missing",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			differences := Compare(build(side("a")), build(test.change(side("b"))))
			if test.want == "" {
				if len(differences) > 0 {
					t.Fatalf("differences %v, want none", differences)
				}
				return
			}
			if len(differences) != 1 || !strings.Contains(differences[0].Error(), test.want) {
				t.Fatalf("differences %v, want %q", differences, test.want)
			}
		})
	}
}

func TestTheInventoryHoldsOnlyWhatBelongsToClusters(t *testing.T) {
	inventory := build(side("a"))
	counts := inventory.Counts()
	if counts["Secret"] != 1 || counts["Machine"] != 1 || counts["Cluster"] != 1 || len(inventory) != 3 {
		t.Errorf("counts %v, want one Cluster, one Machine and the one Secret that a Cluster owns", counts)
	}
	if ids := inventory.ProviderIDs(); len(ids) != 1 || ids[0] != "proxmox://1" {
		t.Errorf("provider ids %v", ids)
	}
}
