// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	coreGroup           = "cluster.x-k8s.io"
	infrastructureGroup = "infrastructure.cluster.x-k8s.io"
	bootstrapGroup      = "bootstrap.cluster.x-k8s.io"
	controlPlaneGroup   = "controlplane.cluster.x-k8s.io"
	ipamGroup           = "ipam.cluster.x-k8s.io"
	// groupSuffix ends the API groups of all Cluster API objects.
	groupSuffix = "cluster.x-k8s.io"
)

var (
	secretKind         = schema.GroupKind{Kind: "Secret"}
	clusterKind        = schema.GroupKind{Group: coreGroup, Kind: "Cluster"}
	clusterClassKind   = schema.GroupKind{Group: coreGroup, Kind: "ClusterClass"}
	deploymentKind     = schema.GroupKind{Group: coreGroup, Kind: "MachineDeployment"}
	proxmoxClusterKind = schema.GroupKind{Group: infrastructureGroup, Kind: "ProxmoxCluster"}
	proxmoxMachineKind = schema.GroupKind{Group: infrastructureGroup, Kind: "ProxmoxMachineTemplate"}
	talosPlaneKind     = schema.GroupKind{Group: controlPlaneGroup, Kind: "TalosControlPlane"}
	talosTemplateKind  = schema.GroupKind{Group: bootstrapGroup, Kind: "TalosConfigTemplate"}
)

// CheckOptions is what a manifest is checked against.
type CheckOptions struct {
	// Namespace and Name are those that the Cluster must have.
	Namespace, Name string
	// Secrets holds the Secret objects beside the manifest; nil if they are not
	// known, empty if there are none.
	Secrets *Manifest
	// Topology says whether the core provider has its feature gate ClusterTopology
	// on; nil if that is not known.
	Topology *bool
	// New is set for a cluster that is to be made: it adds what matters then only.
	New bool
}

// Check finds what is wrong or doubtful in the manifest from the text alone. A
// value that holds an [Unknown] is not judged; a check that needs it says so
// ([NotChecked]). The problems come in the order of the text.
func (m *Manifest) Check(options CheckOptions) []Problem {
	c := &checker{manifest: m, options: options}
	c.checkKinds()
	c.checkNames()
	c.checkSecrets()
	c.checkReferences()
	c.checkClusterNetworks()
	c.checkAddresses()
	c.checkMachineGroups()
	c.checkProxmox()
	c.checkTalos()
	c.checkTopology()
	slices.SortStableFunc(c.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Input, b.Input), cmp.Compare(a.Line, b.Line))
	})
	return c.problems
}

// checker collects the problems of one manifest.
type checker struct {
	manifest *Manifest
	options  CheckOptions
	problems []Problem
}

// add collects a problem once, however many checks come across it.
func (c *checker) add(p Problem) {
	if !slices.Contains(c.problems, p) {
		c.problems = append(c.problems, p)
	}
}

func (c *checker) wrong(f field, format string, args ...any) {
	c.add(f.problem(Wrong, format, args...))
}

func (c *checker) doubtful(f field, format string, args ...any) {
	c.add(f.problem(Doubtful, format, args...))
}

// isWrong says whether something wrong has been found in f itself.
func (c *checker) isWrong(f field) bool {
	return slices.ContainsFunc(c.problems, func(p Problem) bool {
		return p.Severity == Wrong && p.Document == f.object.Document && p.Path == f.path
	})
}

// known says whether f can be judged. If it waits for substitutions, that is
// told once.
func (c *checker) known(f field) bool {
	names := unknownIn(f.value)
	if len(names) == 0 {
		return true
	}
	for i := range names {
		names[i] = Unknown(names[i])
	}
	c.add(f.problem(NotChecked, "not checked, since %s is known after apply", strings.Join(names, ", ")))
	return false
}

// text answers f as a text; ok is false where it is not set, not known or not a
// text, which is told.
func (c *checker) text(f field) (text string, ok bool) {
	if !f.set() || !c.known(f) {
		return "", false
	}
	text, ok = f.value.(string)
	if !ok && !c.isWrong(f) {
		c.wrong(f, "%v is not a text: put it in quotes", f.value)
	}
	return text, ok
}

// number answers f as a whole number; ok as for [checker.text].
func (c *checker) number(f field) (number int64, ok bool) {
	if !f.set() || !c.known(f) {
		return 0, false
	}
	switch v := f.value.(type) {
	case int64:
		return v, true
	case float64:
		if v == float64(int64(v)) {
			return int64(v), true
		}
	}
	if !c.isWrong(f) {
		c.wrong(f, "%v is not a whole number", f.value)
	}
	return 0, false
}

// objects answers the objects of a kind, in any version.
func (c *checker) objects(kind schema.GroupKind) []Object {
	var found []Object
	for _, o := range c.manifest.Objects {
		if o.GroupVersionKind().GroupKind() == kind {
			found = append(found, o)
		}
	}
	return found
}

// cluster answers the one Cluster of the manifest; [checker.checkNames] tells
// whatever is wrong with it.
func (c *checker) cluster() (Object, bool) {
	clusters := c.objects(clusterKind)
	if len(clusters) != 1 {
		return Object{}, false
	}
	return clusters[0], true
}

func (c *checker) checkTopology() {
	var users []field
	for _, o := range c.objects(clusterKind) {
		if topology := o.at("spec.topology"); topology.set() {
			users = append(users, topology)
		}
	}
	for _, o := range c.objects(clusterClassKind) {
		users = append(users, o.at("spec"))
	}
	if len(users) == 0 {
		return
	}
	const how = "set CLUSTER_TOPOLOGY = \"true\" in the variables of the core provider cluster-api"
	switch {
	case c.options.Topology == nil && c.options.New:
		c.doubtful(users[0], "this needs the feature gate ClusterTopology, which is off unless asked for; whether the bootstrap cluster has it is not known yet: %s", how)
	case c.options.Topology != nil && !*c.options.Topology:
		c.wrong(users[0], "this needs the feature gate ClusterTopology, which the bootstrap cluster's core provider has not: %s", how)
	}
}

// joinNames writes names as a list for people.
func joinNames(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return fmt.Sprintf("%s and %s", strings.Join(names[:len(names)-1], ", "), names[len(names)-1])
}
