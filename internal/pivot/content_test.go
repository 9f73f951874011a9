// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
		"metadata": map[string]any{"name": name, "namespace": "kmgt", "uid": uid, "ownerReferences": references, "labels": map[string]any{"a": "b"}},
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
		"a Secret that lost its owner is told": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				target[2].SetOwnerReferences(nil)
				return target
			},
			want: "Secret kmgt/kmgt-ca: has the owners",
		},
		"a field that only the target has, as a default of a newer provider, is no difference": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				target[0].Object["spec"] = map[string]any{"clusterNetwork": "x", "availabilityGates": []any{"a"}}
				return target
			},
		},
		"a lost label is told": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				target[1].SetLabels(nil)
				return target
			},
			want: "Machine kmgt/m1: has another content: metadata.labels",
		},
		"an object that is being deleted is told": {
			change: func(target []unstructured.Unstructured) []unstructured.Unstructured {
				now := metav1.Now()
				target[1].SetDeletionTimestamp(&now)
				return target
			},
			want: "Machine kmgt/m1: is being deleted",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			differences := compare(graphOf(side("a")).placed(), byID(test.change(side("b"))), nil)
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

// graphOf builds the owner graph of the objects as a discovery does.
func graphOf(objects []unstructured.Unstructured) *graph {
	kinds := map[schema.GroupKind]*kind{
		clusterKind: {GroupKind: clusterKind, move: true, hierarchy: true},
		machineKind: {GroupKind: machineKind},
		secretKind:  {GroupKind: secretKind},
	}
	var all []*unstructured.Unstructured
	for i := range objects {
		all = append(all, &objects[i])
	}
	g := newGraph(kinds, all)
	g.settle()
	g.place()
	return g
}

func byID(objects []unstructured.Unstructured) map[ID]*unstructured.Unstructured {
	found := map[ID]*unstructured.Unstructured{}
	for i := range objects {
		found[idOf(&objects[i])] = &objects[i]
	}
	return found
}

// A discovery drops the contents of what stays: there may be much of it.
func TestMachinesOfAClusterThatStaysAreNotCounted(t *testing.T) {
	g := graphOf(side("a"))
	stays := object("Machine", "neighbour", "n", map[string]any{"spec": map[string]any{"providerID": "proxmox://2", "clusterName": "kmgt"}})
	g.add(&stays).object = nil
	if ids := g.providerIDs(); len(ids) != 1 || ids[0] != "proxmox://1" {
		t.Errorf("provider ids %v, want those of the Machine that moves", ids)
	}
	if all, _ := g.machines(client.ObjectKey{Namespace: "kmgt", Name: "kmgt"}); all > 1 {
		t.Errorf("%d machines, want no more than the one that moves", all)
	}
}

func TestTheGraphHoldsOnlyWhatBelongsToClusters(t *testing.T) {
	g := graphOf(side("a"))
	counts := g.counts()
	if counts["Secret"] != 1 || counts["Machine"] != 1 || counts["Cluster"] != 1 || len(g.placed()) != 3 {
		t.Errorf("counts %v, want one Cluster, one Machine and the one Secret that a Cluster owns", counts)
	}
	if ids := g.providerIDs(); len(ids) != 1 || ids[0] != "proxmox://1" {
		t.Errorf("provider ids %v", ids)
	}
	if a, b := g.digest(), graphOf(side("b")).digest(); a != b {
		t.Errorf("the digests of both sides are %s and %s, want the same", a, b)
	}
}
