// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// machineGroup is a control plane or a MachineDeployment: machines made from one
// template.
type machineGroup struct {
	object       Object
	controlPlane bool
	// replicas and surge count the machines and those that a rollout adds for a
	// while. They are lower bounds where counted is false.
	replicas, surge int64
	counted         bool
	// version is nil where it is not known.
	version        *semver.Version
	infrastructure reference
	bootstrap      reference
}

// planeKinds are the control planes that run etcd on their own machines, and
// whether their provider refuses an even number of them.
var planeKinds = map[schema.GroupKind]bool{
	talosPlaneKind: true,
	{Group: controlPlaneGroup, Kind: "KubeadmControlPlane"}: true,
	{Group: controlPlaneGroup, Kind: "RKE2ControlPlane"}:    false,
	{Group: controlPlaneGroup, Kind: "KThreesControlPlane"}: false,
}

// autoscalerMax is the annotation of the cluster autoscaler with the largest
// number of machines of a MachineDeployment; one that has it sets no replicas.
const autoscalerMax = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"

func (c *checker) machineGroups() []machineGroup {
	var groups []machineGroup
	for _, o := range c.manifest.Objects {
		kind := o.GroupVersionKind().GroupKind()
		_, plane := planeKinds[kind]
		if !plane && kind != deploymentKind {
			continue
		}
		g := machineGroup{object: o, controlPlane: plane, counted: true}
		g.replicas, g.counted = c.replicas(o)
		g.surge = c.surge(g)
		g.version, _ = parseVersion(g.versionField().value)
		for _, r := range referencesOf(o) {
			switch r.kind.Group {
			case infrastructureGroup:
				g.infrastructure = r
			case bootstrapGroup:
				g.bootstrap = r
			}
		}
		groups = append(groups, g)
	}
	return groups
}

func (g machineGroup) versionField() field {
	if g.controlPlane {
		return g.object.at("spec.version")
	}
	return g.object.at("spec.template.spec.version")
}

func (c *checker) replicas(o Object) (count int64, known bool) {
	if value, ok := o.GetAnnotations()[autoscalerMax]; ok {
		most, err := strconv.ParseInt(value, 10, 64)
		return most, err == nil
	}
	f := o.at("spec.replicas")
	if !f.set() {
		return 1, true
	}
	return c.number(f)
}

// surgeField is where a group's rollout says how many machines it may add.
func (g machineGroup) surgeField() field {
	paths := []string{"spec.rollout.strategy", "spec.rolloutStrategy", "spec.strategy"}
	for _, path := range paths {
		if f := g.object.at(path + ".rollingUpdate.maxSurge"); f.set() {
			return f
		}
	}
	return g.object.at("spec.rolloutStrategy.rollingUpdate.maxSurge")
}

// surge answers how many machines a rollout adds; 1 is the default of all kinds.
func (c *checker) surge(g machineGroup) int64 {
	f := g.surgeField()
	text, percent := f.value.(string)
	if percent && strings.HasSuffix(text, "%") {
		share, err := strconv.ParseInt(strings.TrimSuffix(text, "%"), 10, 64)
		if err != nil {
			c.wrong(f, "%q is neither a number nor a percentage", text)
			return 0
		}
		return (g.replicas*share + 99) / 100
	}
	if !f.set() {
		return 1
	}
	surge, _ := c.number(f)
	return surge
}

func parseVersion(value any) (*semver.Version, bool) {
	text, ok := value.(string)
	if !ok || !strings.HasPrefix(text, "v") {
		return nil, false
	}
	version, err := semver.StrictNewVersion(text[1:])
	return version, err == nil
}

// checkMachineGroups judges numbers and versions of the control plane and the
// workers.
func (c *checker) checkMachineGroups() {
	groups := c.machineGroups()
	for _, g := range groups {
		c.checkVersion(g)
		if g.controlPlane {
			c.checkPlaneSize(g)
		}
	}
	for _, plane := range groups {
		for _, workers := range groups {
			if plane.controlPlane && !workers.controlPlane {
				c.checkVersionSkew(plane, workers)
			}
		}
	}
	if o, ok := c.cluster(); ok {
		c.checkVersionText(o.at("spec.topology.version"))
	}
}

func (c *checker) checkVersion(g machineGroup) {
	f := g.versionField()
	if !f.set() && g.controlPlane {
		c.wrong(f, "the Kubernetes version is missing: v1.36.2, for example")
		return
	}
	c.checkVersionText(f)
}

func (c *checker) checkVersionText(f field) {
	text, ok := c.text(f)
	if !ok {
		return
	}
	if _, ok := parseVersion(text); !ok {
		c.wrong(f, "%q is not a version such as v1.36.2", text)
	}
}

func (c *checker) checkPlaneSize(g machineGroup) {
	f := g.object.at("spec.replicas")
	if !g.counted {
		return
	}
	switch {
	case g.replicas < 1:
		c.wrong(f, "a control plane needs at least one machine")
	case g.replicas%2 == 0 && planeKinds[g.object.GroupVersionKind().GroupKind()]:
		c.wrong(f, "a control plane of %d machines is no safer than one of %d, since etcd needs a majority: use an odd number", g.replicas, g.replicas-1)
	case g.replicas%2 == 0:
		c.doubtful(f, "a control plane of %d machines is no safer than one of %d, since etcd needs a majority", g.replicas, g.replicas-1)
	}
	onDelete := g.object.at("spec.rolloutStrategy.type").value == "OnDelete"
	if surge := g.surgeField(); g.replicas == 1 && surge.set() && g.surge == 0 && len(unknownIn(surge.value)) == 0 && !onDelete {
		c.wrong(surge, "with one machine and maxSurge 0 no rollout ever goes on: the provider may neither add a machine nor take the last one away")
	}
}

// maxWorkerSkew is how many minor versions kubelets may be older than the API
// server (Kubernetes' version skew policy).
const maxWorkerSkew = 3

func (c *checker) checkVersionSkew(plane, workers machineGroup) {
	if plane.version == nil || workers.version == nil {
		return
	}
	f := workers.versionField()
	switch older := int64(plane.version.Minor()) - int64(workers.version.Minor()); {
	case workers.version.GreaterThan(plane.version):
		c.wrong(f, "the workers' version v%s is newer than the control plane's, v%s", workers.version, plane.version)
	case plane.version.Major() == workers.version.Major() && older > maxWorkerSkew:
		c.wrong(f, "the workers' version v%s is %d minor versions older than the control plane's, v%s; %d are supported", workers.version, older, plane.version, maxWorkerSkew)
	}
}
