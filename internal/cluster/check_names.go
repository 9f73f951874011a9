// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// checkNames wants one Cluster of the right name, and all objects in its
// namespace under names that the API server takes.
func (c *checker) checkNames() {
	clusters := c.objects(clusterKind)
	switch {
	case len(clusters) == 0:
		c.add(Problem{Message: fmt.Sprintf("there is no Cluster (apiVersion %s/v1beta2) in the manifest; it should have one named %q", coreGroup, c.options.Name)})
	case len(clusters) > 1:
		c.wrong(clusters[1].at("metadata.name"), "there is more than one Cluster in the manifest: a resource manages one")
	default:
		name := clusters[0].at("metadata.name")
		if text, ok := c.text(name); ok && text != c.options.Name {
			c.wrong(name, "the Cluster is named %q, but the resource's name is %q", text, c.options.Name)
		}
	}
	for _, o := range c.manifest.Objects {
		c.checkName(o)
		c.checkNamespace(o)
		c.checkClusterName(o)
	}
}

func (c *checker) checkName(o Object) {
	f := o.at("metadata.name")
	name, ok := c.text(f)
	if !ok {
		return
	}
	problems := validation.IsDNS1123Subdomain(name)
	if len(problems) == 0 && o.GroupVersionKind().Group == coreGroup {
		// Machines and nodes take their names from these, and labels hold them.
		problems = validation.IsDNS1123Label(name)
	}
	if len(problems) > 0 {
		c.wrong(f, "the name %q is not taken: %s", name, strings.Join(problems, "; "))
	}
}

func (c *checker) checkNamespace(o Object) {
	f := o.at("metadata.namespace")
	namespace, ok := c.text(f)
	if ok && namespace != c.options.Namespace {
		c.wrong(f, "its namespace is %q, but this cluster's is %q: all objects of a cluster live in one namespace, since they move together", namespace, c.options.Namespace)
	}
}

// checkClusterName wants the objects that name their Cluster to name this one.
func (c *checker) checkClusterName(o Object) {
	fields := []field{o.at("spec.clusterName"), o.at("spec.template.spec.clusterName")}
	if labels, ok := o.at("metadata.labels").value.(map[string]any); ok {
		if value, ok := labels[clusterNameLabel]; ok {
			fields = append(fields, field{object: o, path: "metadata.labels." + clusterNameLabel, value: value})
		}
	}
	for _, f := range fields {
		if name, ok := c.text(f); ok && name != c.options.Name && strings.HasSuffix(o.GroupVersionKind().Group, groupSuffix) {
			c.wrong(f, "it belongs to the Cluster %q, but the one of this resource is %q", name, c.options.Name)
		}
	}
}

const clusterNameLabel = "cluster.x-k8s.io/cluster-name"

// checkSecrets keeps Secrets out of the manifest, and wants those beside it in
// the cluster's namespace.
func (c *checker) checkSecrets() {
	for _, o := range c.objects(secretKind) {
		c.wrong(o.at("kind"), "a Secret in the manifest would stand in plan and state: put it into secrets_wo")
	}
	if c.options.Secrets == nil {
		return
	}
	for _, o := range c.options.Secrets.Objects {
		f := o.at("metadata.namespace")
		if namespace, ok := f.value.(string); ok && namespace != c.options.Namespace {
			p := f.problem(Wrong, "its namespace is %q, but this cluster's is %q: a Secret elsewhere does not move with the cluster", namespace, c.options.Namespace)
			p.Input = InSecrets
			c.add(p)
		}
	}
}

// checkReferences wants every reference to be resolved, inside the manifest or,
// for Secrets, beside it, and in the one namespace.
func (c *checker) checkReferences() {
	for _, o := range c.manifest.Objects {
		if !strings.HasSuffix(o.GroupVersionKind().Group, groupSuffix) {
			continue
		}
		for _, r := range referencesOf(o) {
			c.checkReference(r)
		}
		c.checkClass(o)
	}
}

// has answers whether the manifest holds an object, and whether an object of the
// kind has a name that is not known yet, so that it may be the one.
func (c *checker) has(kind schema.GroupKind, name string) (found, maybe bool) {
	for _, o := range c.objects(kind) {
		found = found || o.GetName() == name
		maybe = maybe || len(unknownIn(o.GetName())) > 0
	}
	return found, maybe
}

func (c *checker) checkReference(r reference) {
	if !c.known(r.field.at("name")) || !c.known(r.field.at("kind")) {
		return
	}
	if namespace, ok := c.text(r.field.at("namespace")); ok && namespace != c.options.Namespace && r.name != "" {
		c.wrong(r.field.at("namespace"), "it points into the namespace %q, but this cluster's is %q: what a cluster refers to moves with it only from its own namespace", namespace, c.options.Namespace)
		return
	}
	found, maybe := c.has(r.kind, r.name)
	switch {
	case found:
		c.checkReferenceVersion(r)
	case maybe:
		c.add(r.field.problem(NotChecked, "not checked, since the name of a %s is known after apply", r.kind.Kind))
	case r.kind.Group == ipamGroup:
		c.doubtful(r.field, "refers to %s %q, which is not in the manifest, so it does not move with the cluster", r.kind.Kind, r.name)
	case strings.HasSuffix(r.kind.Group, groupSuffix):
		c.wrong(r.field, "refers to %s %q, which is not in the manifest%s", r.kind.Kind, r.name, c.othersOf(r.kind))
	}
}

func (c *checker) checkReferenceVersion(r reference) {
	for _, o := range c.objects(r.kind) {
		if o.GetName() == r.name && r.version != "" && r.version != o.GroupVersionKind().Version && !slices.Contains(versionsOf(r.kind), r.version) {
			c.doubtful(r.field.at("apiVersion"), "it asks for version %s of %s %q, which the manifest has in %s", r.version, r.kind.Kind, r.name, o.GroupVersionKind().Version)
		}
	}
}

func (c *checker) othersOf(kind schema.GroupKind) string {
	var names []string
	for _, o := range c.objects(kind) {
		names = append(names, fmt.Sprintf("%q", o.GetName()))
	}
	if len(names) == 0 {
		return ""
	}
	return "; of that kind it has " + joinNames(names)
}

// checkClass wants the class of a topology in the manifest. A class from another
// namespace is shared by clusters and made elsewhere.
func (c *checker) checkClass(o Object) {
	if o.GroupVersionKind().GroupKind() != clusterKind {
		return
	}
	f := o.at("spec.topology.classRef.name")
	if !f.set() {
		f = o.at("spec.topology.class")
	}
	name, ok := c.text(f)
	if !ok {
		return
	}
	if namespace, ok := c.text(o.at("spec.topology.classRef.namespace")); ok && namespace != c.options.Namespace {
		c.doubtful(o.at("spec.topology.classRef.namespace"), "the ClusterClass lies in another namespace, so it does not move with the cluster")
		return
	}
	if found, maybe := c.has(clusterClassKind, name); !found && !maybe {
		c.wrong(f, "refers to ClusterClass %q, which is not in the manifest%s", name, c.othersOf(clusterClassKind))
	}
}
