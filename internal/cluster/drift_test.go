// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/contract"
)

func TestParseIgnored(t *testing.T) {
	tests := map[string]struct {
		text, want string
	}{
		"a field of one object":    {"MachineDeployment/workers:spec.replicas", "MachineDeployment workers [spec replicas]"},
		"a field of all of a kind": {"ProxmoxCluster:spec.allowedNodes", "ProxmoxCluster  [spec allowedNodes]"},
		"no path":                  {"MachineDeployment/workers", ""},
		"no kind":                  {"/workers:spec", ""},
		"an empty step":            {"Cluster:spec..paused", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := ParseIgnored(test.text)
			got := ""
			if err == nil {
				got = fmt.Sprintf("%s %s %v", f.Kind, f.Name, f.Path)
			}
			if got != test.want {
				t.Errorf("%q, %v; want %q", got, err, test.want)
			}
		})
	}
}

func TestCompare(t *testing.T) {
	type object = map[string]any
	tests := map[string]struct {
		was, shall any
		want       []string
	}{
		"the same in another order": {object{"a": int64(1), "b": "x"}, object{"b": "x", "a": int64(1)}, nil},
		"a changed value":           {object{"a": object{"b": int64(1)}}, object{"a": object{"b": int64(2)}}, []string{`spec.a.b: 1, 2`}},
		"a value that is gone":      {object{}, object{"a": "x"}, []string{`spec.a: nothing, "x"`}},
		"a value that was added":    {object{"a": "x"}, object{}, []string{`spec.a: "x", nothing`}},
		"an item of a list":         {object{"a": []any{"x", "y"}}, object{"a": []any{"x", "z"}}, []string{`spec.a[1]: "y", "z"`}},
		"a longer list":             {object{"a": []any{"x"}}, object{"a": []any{"x", "z"}}, []string{`spec.a: ["x"], ["x","z"]`}},
		"a secret is not shown":     {object{"apiToken": "hunter2"}, object{"apiToken": "x"}, []string{`spec.apiToken: (not shown), (not shown)`}},
		"a patch is not shown":      {object{"strategicPatches": []any{"key: hunter2"}}, object{"strategicPatches": []any{"x"}}, []string{`spec.strategicPatches[0]: (not shown), (not shown)`}},
		"a long text is not shown":  {object{"a": strings.Repeat("x", 100)}, object{"a": "y"}, []string{`spec.a: (long), "y"`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			compare("spec", test.was, test.shall, func(path string, was, shall any) {
				got = append(got, fmt.Sprintf("%s: %s, %s", path, show(path, was), show(path, shall)))
			})
			if !slices.Equal(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// edit is a change by hand, as kubectl makes it, and what is to be seen of it.
type edit struct {
	apiVersion, kind, name, patch string
	// want is in the drift; empty: it is no drift.
	want string
}

const (
	proxmoxVersion = "infrastructure.cluster.x-k8s.io/v1alpha2"
	talosVersion   = "controlplane.cluster.x-k8s.io/v1alpha3"
	coreVersion    = "cluster.x-k8s.io/v1beta2"
)

var edits = map[string]edit{
	"more control planes":               {talosVersion, "TalosControlPlane", "kmgtcp", `{"spec": {"replicas": 3}}`, "spec.replicas: 3, the manifest has 1"},
	"another Kubernetes":                {talosVersion, "TalosControlPlane", "kmgtcp", `{"spec": {"version": "v1.35.4"}}`, `spec.version: "v1.35.4", the manifest has "v1.36.2"`},
	"another Talos":                     {talosVersion, "TalosControlPlane", "kmgtcp", `{"spec": {"controlPlaneConfig": {"controlplane": {"talosVersion": "v1.12"}}}}`, "talosVersion"},
	"a Talos patch, which is not shown": {talosVersion, "TalosControlPlane", "kmgtcp", `{"spec": {"controlPlaneConfig": {"controlplane": {"strategicPatches": ["machine: {}"]}}}}`, "strategicPatches[0]: (not shown), the manifest has (not shown)"},
	"no Talos patch at all":             {talosVersion, "TalosControlPlane", "kmgtcp", `{"spec": {"controlPlaneConfig": {"controlplane": {"strategicPatches": null}}}}`, "strategicPatches: nothing, the manifest has (not shown)"},
	"another template":                  {talosVersion, "TalosControlPlane", "kmgtcp", `{"spec": {"infrastructureTemplate": {"name": "other"}}}`, `infrastructureTemplate.name: "other"`},
	"a node that is not to be used":     {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"allowedNodes": ["pve9"]}}`, "spec.allowedNodes"},
	"another DNS server":                {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"dnsServers": ["9.9.9.9"]}}`, "spec.dnsServers"},
	"other addresses":                   {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"ipv4Config": {"addresses": ["10.0.0.200-10.0.0.210"]}}}`, "spec.ipv4Config.addresses"},
	"another prefix":                    {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"ipv4Config": {"prefix": 25}}}`, "spec.ipv4Config.prefix: 25, the manifest has 24"},
	"another gateway":                   {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"ipv4Config": {"gateway": "10.0.0.9"}}}`, "spec.ipv4Config.gateway"},
	"another scheduling":                {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"schedulerHints": {"memoryAdjustment": 300}}}`, "spec.schedulerHints.memoryAdjustment: 300"},
	"another endpoint":                  {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"controlPlaneEndpoint": {"host": "10.0.0.7"}}}`, "spec.controlPlaneEndpoint.host"},
	"credentials of another Secret":     {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"credentialsRef": {"name": "other"}}}`, "spec.credentialsRef.name: (not shown)"},
	"other pods":                        {coreVersion, "Cluster", "kmgt", `{"spec": {"clusterNetwork": {"pods": {"cidrBlocks": ["10.99.0.0/16"]}}}}`, "spec.clusterNetwork.pods.cidrBlocks"},
	"more workers":                      {coreVersion, "MachineDeployment", "workers", `{"spec": {"replicas": 5}}`, "spec.replicas: 5, the manifest has 2"},
	"workers of another version":        {coreVersion, "MachineDeployment", "workers", `{"spec": {"template": {"spec": {"version": "v1.35.4"}}}}`, "spec.template.spec.version"},
	"more memory":                       {proxmoxVersion, "ProxmoxMachineTemplate", "kmgtcp", `{"spec": {"template": {"spec": {"memoryMiB": 16384}}}}`, "spec.template.spec.memoryMiB: 16384, the manifest has 8192"},

	"a pause":                           {coreVersion, "Cluster", "kmgt", `{"spec": {"paused": true}}`, ""},
	"an endpoint from the provider":     {coreVersion, "Cluster", "kmgt", `{"spec": {"controlPlaneEndpoint": {"host": "10.0.0.7", "port": 6443}}}`, ""},
	"a label":                           {coreVersion, "Cluster", "kmgt", `{"metadata": {"labels": {"team": "a"}}}`, ""},
	"an annotation":                     {talosVersion, "TalosControlPlane", "kmgtcp", `{"metadata": {"annotations": {"note": "a"}}}`, ""},
	"a surge that the manifest has not": {talosVersion, "TalosControlPlane", "kmgtcp", `{"spec": {"rolloutStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}}}`, ""},
	"a zone that the manifest has not":  {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"zoneConfig": [{"zone": "a", "dnsServers": ["10.0.0.2"], "ipv4Config": {"addresses": ["10.1.0.1-10.1.0.9"], "prefix": 24, "gateway": "10.1.0.1"}}]}}`, ""},
	"a node beside ours":                {proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"allowedNodes": ["pve1", "pve2"]}}`, ""},
	"a deadline that a controller sets": {coreVersion, "MachineDeployment", "workers", `{"spec": {"template": {"spec": {"minReadySeconds": 7}}}}`, ""},
}

func testDrift(t *testing.T, r *rig) {
	ctx := deadline(t)
	h := r.home(t, "drift")
	if err := h.Client.EnsureNamespace(ctx, "drift"); err != nil {
		t.Fatal(err)
	}
	options := h.options(t, "me", withWorkers("drift"))
	if err := h.Apply(ctx, options); err != nil {
		t.Fatal(err)
	}
	if drift, err := h.Drift(ctx, options.Manifest, nil); err != nil || len(drift) > 0 {
		t.Fatalf("drift %v, %v; want none", drift, err)
	}
	for name, e := range edits {
		t.Run(name, func(t *testing.T) {
			object, err := h.Client.Object(ctx, e.apiVersion, e.kind, "drift", e.name)
			if err != nil {
				t.Fatal(err)
			}
			contract.Edit(ctx, t, h.Client, object, e.patch)
			drift, err := h.Drift(ctx, options.Manifest, nil)
			if err != nil {
				t.Fatal(err)
			}
			if e.want == "" && len(drift) > 0 || e.want != "" && !strings.Contains(strings.Join(drift, "\n"), e.want) {
				t.Errorf("drift %v, want %q", drift, e.want)
			}
			if err := h.Apply(ctx, options); err != nil {
				t.Fatal(err)
			}
			if drift, err := h.Drift(ctx, options.Manifest, nil); err != nil || len(drift) > 0 {
				t.Errorf("after the repair: drift %v, %v", drift, err)
			}
		})
	}
	gone, err := h.Client.Object(ctx, coreVersion, "MachineDeployment", "drift", "workers")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Client.Delete(ctx, gone); err != nil {
		t.Fatal(err)
	}
	if drift, err := h.Drift(ctx, options.Manifest, nil); err != nil || !slices.Equal(drift, []string{"MachineDeployment drift/workers: is gone"}) {
		t.Errorf("an object that is gone: drift %v, %v", drift, err)
	}
}

func testIgnored(t *testing.T, r *rig) {
	ctx := deadline(t)
	h := r.home(t, "ignored")
	if err := h.Client.EnsureNamespace(ctx, "ignored"); err != nil {
		t.Fatal(err)
	}
	scaled := changed(t, "metadata: {name: workers, namespace: ignored}\nspec:\n  clusterName: kmgt\n  replicas: 2",
		"metadata: {name: workers, namespace: ignored, annotations: {cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size: \"9\"}}\nspec:\n  clusterName: kmgt")
	options := h.options(t, "me", withWorkers("ignored"), scaled)
	nodes, err := ParseIgnored("ProxmoxCluster:spec.schedulerHints.memoryAdjustment")
	if err != nil {
		t.Fatal(err)
	}
	options.Ignored = []IgnoredField{nodes}
	if err := h.Apply(ctx, options); err != nil {
		t.Fatal(err)
	}
	for _, e := range []edit{
		{coreVersion, "MachineDeployment", "workers", `{"spec": {"replicas": 7}}`, ""},
		{proxmoxVersion, "ProxmoxCluster", "kmgt", `{"spec": {"schedulerHints": {"memoryAdjustment": 300}}}`, ""},
	} {
		object, err := h.Client.Object(ctx, e.apiVersion, e.kind, "ignored", e.name)
		if err != nil {
			t.Fatal(err)
		}
		contract.Edit(ctx, t, h.Client, object, e.patch)
	}
	for range 2 {
		if drift, err := h.Drift(ctx, options.Manifest, options.Ignored); err != nil || len(drift) > 0 {
			t.Errorf("drift %v, %v; want none", drift, err)
		}
		if err := h.Apply(ctx, options); err != nil {
			t.Fatal(err)
		}
	}
	workers, err := h.Client.Object(ctx, coreVersion, "MachineDeployment", "ignored", "workers")
	if err != nil {
		t.Fatal(err)
	}
	if replicas, _, _ := unstructured.NestedInt64(workers.Object, "spec", "replicas"); replicas != 7 {
		t.Errorf("the apply made %d replicas of the autoscaler's 7", replicas)
	}
	cluster, err := h.Client.Object(ctx, proxmoxVersion, "ProxmoxCluster", "ignored", "kmgt")
	if err != nil {
		t.Fatal(err)
	}
	if memory, _, _ := unstructured.NestedInt64(cluster.Object, "spec", "schedulerHints", "memoryAdjustment"); memory != 300 {
		t.Errorf("the apply made %d of the ignored 300", memory)
	}
}
