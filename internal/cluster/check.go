// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

const (
	coreGroup = "cluster.x-k8s.io"
	// groupSuffix ends the API groups of all Cluster API objects.
	groupSuffix = "cluster.x-k8s.io"
)

// Check finds what is wrong with the manifest of the Cluster namespace/name from
// the text alone. Values that hold [UnknownStandIn] are not judged.
func (m *Manifest) Check(namespace, name string) []Problem {
	var problems []Problem
	problems = append(problems, m.checkKinds(namespace)...)
	cluster, found := m.cluster(name)
	problems = append(problems, found...)
	problems = append(problems, m.checkReferences()...)
	if cluster != nil {
		problems = append(problems, checkNetworks(*cluster)...)
		problems = append(problems, m.checkVIP()...)
	}
	return problems
}

func (o Object) problem(format string, args ...any) Problem {
	return Problem{Document: o.Document, Line: o.Line, Object: o.Ref(), Message: fmt.Sprintf(format, args...)}
}

func (m *Manifest) checkKinds(namespace string) []Problem {
	var problems []Problem
	for _, o := range m.Objects {
		if o.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "Secret"}) {
			problems = append(problems, o.problem("a Secret in the manifest would stand in plan and state: put it into secrets_wo"))
		}
		if ns := o.GetNamespace(); ns != "" && ns != namespace && !strings.Contains(ns, UnknownStandIn) {
			problems = append(problems, o.problem("its namespace is %q, but this cluster's is %q: all objects of a cluster live in one namespace, since they move together", ns, namespace))
		}
	}
	return problems
}

// cluster finds the one Cluster object of the manifest.
func (m *Manifest) cluster(name string) (*Object, []Problem) {
	var clusters []Object
	for _, o := range m.Objects {
		if o.GroupVersionKind().GroupKind() == (schema.GroupKind{Group: coreGroup, Kind: "Cluster"}) {
			clusters = append(clusters, o)
		}
	}
	switch {
	case len(clusters) == 0:
		return nil, []Problem{{Message: fmt.Sprintf("there is no Cluster (apiVersion %s/v1beta2) in the manifest; it should have one named %q", coreGroup, name)}}
	case len(clusters) > 1:
		return nil, []Problem{clusters[1].problem("there is more than one Cluster in the manifest: a resource manages one")}
	case clusters[0].GetName() != name && !strings.Contains(clusters[0].GetName(), UnknownStandIn):
		return &clusters[0], []Problem{clusters[0].problem("the Cluster is named %q, but the resource's name is %q", clusters[0].GetName(), name)}
	}
	return &clusters[0], nil
}

// checkReferences wants every reference to a Cluster API object to be resolved
// inside the manifest.
func (m *Manifest) checkReferences() []Problem {
	have := map[schema.GroupKind]map[string]bool{}
	for _, o := range m.Objects {
		gk := o.GroupVersionKind().GroupKind()
		if have[gk] == nil {
			have[gk] = map[string]bool{}
		}
		have[gk][o.GetName()] = true
	}
	var problems []Problem
	for _, o := range m.Objects {
		walkReferences(o.Object["spec"], "spec", func(path string, gk schema.GroupKind, name string) {
			if !strings.HasSuffix(gk.Group, groupSuffix) || strings.Contains(name, UnknownStandIn) || have[gk][name] {
				return
			}
			problems = append(problems, o.problem("%s refers to %s %q, which is not in the manifest", path, gk.Kind, name))
		})
	}
	return problems
}

// walkReferences calls visit for each map that has a kind, a name and an API
// group or version under a key that ends in Ref or is infrastructureTemplate, as
// the contracts of Cluster API name references.
func walkReferences(value any, path string, visit func(path string, gk schema.GroupKind, name string)) {
	switch v := value.(type) {
	case []any:
		for i, item := range v {
			walkReferences(item, fmt.Sprintf("%s[%d]", path, i), visit)
		}
	case map[string]any:
		for key, item := range v {
			at := path + "." + key
			if inner, ok := item.(map[string]any); ok && (strings.HasSuffix(key, "Ref") || key == "infrastructureTemplate") {
				if gk, name, ok := reference(inner); ok {
					visit(at, gk, name)
					continue
				}
			}
			walkReferences(item, at, visit)
		}
	}
}

func reference(m map[string]any) (schema.GroupKind, string, bool) {
	kind, _ := m["kind"].(string)
	name, _ := m["name"].(string)
	group, _ := m["apiGroup"].(string)
	if version, ok := m["apiVersion"].(string); ok {
		if gv, err := schema.ParseGroupVersion(version); err == nil {
			group = gv.Group
		}
	}
	return schema.GroupKind{Group: group, Kind: kind}, name, kind != "" && name != "" && group != ""
}

// checkNetworks wants the Cluster's pod and service networks to be well formed
// and apart from each other.
func checkNetworks(cluster Object) []Problem {
	type block struct {
		path   string
		prefix netip.Prefix
	}
	var problems []Problem
	var blocks []block
	for _, kind := range []string{"pods", "services"} {
		list, _, err := unstructured.NestedSlice(cluster.Object, "spec", "clusterNetwork", kind, "cidrBlocks")
		if err != nil {
			problems = append(problems, cluster.problem("spec.clusterNetwork.%s.cidrBlocks is not a list", kind))
			continue
		}
		for i, item := range list {
			text := fmt.Sprint(item)
			if strings.Contains(text, UnknownStandIn) {
				continue
			}
			path := fmt.Sprintf("spec.clusterNetwork.%s.cidrBlocks[%d]", kind, i)
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				problems = append(problems, cluster.problem("%s: %q is not a CIDR block such as 10.244.0.0/16", path, text))
				continue
			}
			for _, other := range blocks {
				if other.prefix.Overlaps(prefix) {
					problems = append(problems, cluster.problem("%s %s overlaps %s %s", path, prefix, other.path, other.prefix))
				}
			}
			blocks = append(blocks, block{path, prefix})
		}
	}
	return problems
}

// checkVIP wants the virtual address in the Talos patches to be the control
// plane endpoint of the infrastructure cluster: with another one the first
// machine boots and nothing ever answers at the endpoint.
func (m *Manifest) checkVIP() []Problem {
	var problems []Problem
	endpoint := ""
	for _, o := range m.Objects {
		if host, ok, _ := unstructured.NestedString(o.Object, "spec", "controlPlaneEndpoint", "host"); ok && host != "" {
			endpoint = host
		}
	}
	if endpoint == "" || strings.Contains(endpoint, UnknownStandIn) {
		return nil
	}
	for _, o := range m.Objects {
		if o.GetKind() != "TalosControlPlane" {
			continue
		}
		patches, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "controlPlaneConfig", "controlplane", "strategicPatches")
		for i, patch := range patches {
			for _, vip := range vipsOf(patch) {
				if vip != endpoint && !strings.Contains(vip, UnknownStandIn) {
					problems = append(problems, o.problem("spec.controlPlaneConfig.controlplane.strategicPatches[%d] sets the virtual address %s, but the control plane endpoint is %s", i, vip, endpoint))
				}
			}
		}
	}
	return problems
}

func vipsOf(patch string) []string {
	var config struct {
		Machine struct {
			Network struct {
				Interfaces []struct {
					VIP struct {
						IP string `json:"ip"`
					} `json:"vip"`
				} `json:"interfaces"`
			} `json:"network"`
		} `json:"machine"`
	}
	// A patch that does not parse is reported by Talos's own validation.
	if err := yaml.Unmarshal([]byte(patch), &config); err != nil {
		return nil
	}
	var vips []string
	for _, i := range config.Machine.Network.Interfaces {
		if i.VIP.IP != "" {
			vips = append(vips, i.VIP.IP)
		}
	}
	return vips
}
