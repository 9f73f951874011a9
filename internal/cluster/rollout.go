// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// ErrSinglePlane is the answer of [Home.CheckRollout] for a control plane of one
// machine that would replace itself.
var ErrSinglePlane = errors.New("the only machine of a control plane would replace itself")

// group is a control plane or MachineDeployment as it stands, or is to stand.
type group struct {
	object *unstructured.Unstructured
	// template and version are what its machines are made with.
	template templateKey
	version  string
	plane    bool
	replicas int64
}

// groupOf reads a group from its object; ok is false for any other object.
func groupOf(u *unstructured.Unstructured) (g group, ok bool) {
	c := &checker{manifest: &Manifest{Objects: []Object{{Unstructured: u}}}}
	groups := c.machineGroups()
	if len(groups) == 0 {
		return group{}, false
	}
	found := groups[0]
	g = group{
		object: u, template: templateKey{found.infrastructure.kind, found.infrastructure.name},
		plane: found.controlPlane, replicas: found.replicas,
	}
	g.version, _ = found.versionField().value.(string)
	// What the autoscaler has set counts, not how far it may go.
	if replicas, ok, _ := unstructured.NestedInt64(u.Object, "spec", "replicas"); ok {
		g.replicas = replicas
	}
	return g, true
}

// CheckRollout says, before anything is applied, whether the change of a cluster
// that manages itself may begin. A control plane of fewer than three machines must
// be allowed to replace itself, and an etcd that is not healthy must not lose a
// member.
func (h Home) CheckRollout(ctx context.Context, options ApplyOptions, allowSingle bool) error {
	desired, err := h.desired(ctx, options.Manifest, options.Ignored)
	if err != nil {
		return err
	}
	for _, object := range desired {
		next, ok := groupOf(object)
		if !ok || !next.plane {
			continue
		}
		live, err := h.Client.Object(ctx, object.GetAPIVersion(), object.GetKind(), h.Namespace, object.GetName())
		if kube.IsAbsent(err) {
			continue
		}
		if err != nil {
			return err
		}
		now, ok := groupOf(live)
		if !ok || now.template == next.template && now.version == next.version {
			continue
		}
		if now.replicas < 3 && !allowSingle {
			return fmt.Errorf("%s has %d machine(s): %w; set allow_single_control_plane = true if a spare address and room for one more VM are there, or scale to 3 first", refOf(live), now.replicas, ErrSinglePlane)
		}
		if why := unhealthy(live); why != "" {
			return fmt.Errorf("%s is not healthy, so none of its machines may be replaced: %s", refOf(live), why)
		}
	}
	return nil
}

// healthConditions are those of control planes that must not be False when a
// machine is to be replaced: CACPPT's and the ones of Cluster API's contract.
var healthConditions = []string{"EtcdClusterHealthyCondition", "EtcdClusterHealthy", "ControlPlaneComponentsHealthy"}

func unhealthy(plane *unstructured.Unstructured) string {
	for _, kind := range healthConditions {
		if status, message := conditionOf(plane, kind); status == "False" {
			return kind + ": " + message
		}
	}
	return ""
}

// conditionOf answers status and message of an object's condition; empty where it
// has none of the kind.
func conditionOf(u *unstructured.Unstructured, kind string) (status, message string) {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range conditions {
		c, _ := item.(map[string]any)
		if c["type"] == kind {
			status, _ = c["status"].(string)
			reason, _ := c["reason"].(string)
			text, _ := c["message"].(string)
			return status, strings.TrimSpace(reason + " " + text)
		}
	}
	return "", ""
}

// WaitRolledOut waits until every control plane and MachineDeployment of the
// manifest runs on machines of its template and version alone, as many as it
// asks for, each with a node. It tells how far each one is. A rollout that does
// not go on stops here with the old machines alive.
func (h Home) WaitRolledOut(ctx context.Context, options ApplyOptions) error {
	desired, err := h.desired(ctx, options.Manifest, options.Ignored)
	if err != nil {
		return err
	}
	for _, object := range desired {
		if _, ok := groupOf(object); !ok {
			continue
		}
		err := h.wait(ctx, "rolling-out", refOf(object)+" to be rolled out", func(ctx context.Context) (bool, string, error) {
			cluster, err := h.liveCluster(ctx)
			if err != nil {
				return false, "", err
			}
			if ptr.Deref(cluster.Spec.Paused, false) {
				return false, pausedNow, nil
			}
			return h.rolledOut(ctx, object)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (h Home) rolledOut(ctx context.Context, object *unstructured.Unstructured) (bool, string, error) {
	live, err := h.Client.Object(ctx, object.GetAPIVersion(), object.GetKind(), h.Namespace, object.GetName())
	if err != nil {
		return false, "", err
	}
	g, _ := groupOf(live)
	if observed, found, _ := unstructured.NestedInt64(live.Object, "status", "observedGeneration"); found && observed > 0 && observed < live.GetGeneration() {
		return false, refOf(live) + ": its controller has not seen the change yet", nil
	}
	machines, err := h.machinesOf(ctx, g)
	if err != nil {
		return false, "", err
	}
	done, now := g.progress(machines)
	if status, message := conditionOf(live, "MachinesSpecUpToDate"); done && status == "False" {
		return false, refOf(live) + ": " + message, nil
	}
	return done, now, nil
}

// groupMachine is one machine of a group.
type groupMachine struct {
	name, version, phase string
	// template is what its infrastructure was made of; empty where that is not
	// recorded.
	template templateKey
	hasNode  bool
	deleting bool
}

func (h Home) machinesOf(ctx context.Context, g group) ([]groupMachine, error) {
	labels := client.MatchingLabels{clusterv1.ClusterNameLabel: h.Name}
	if g.plane {
		labels[clusterv1.MachineControlPlaneLabel] = ""
	} else {
		labels[clusterv1.MachineDeploymentNameLabel] = g.object.GetName()
	}
	list := &clusterv1.MachineList{}
	if err := h.Client.List(ctx, list, client.InNamespace(h.Namespace), labels); err != nil {
		return nil, err
	}
	origins, err := h.clonedFrom(ctx, g.template)
	if err != nil {
		return nil, err
	}
	machines := make([]groupMachine, 0, len(list.Items))
	for _, m := range list.Items {
		machines = append(machines, groupMachine{
			name: m.Name, version: m.Spec.Version, phase: m.Status.Phase, template: origins[m.Spec.InfrastructureRef.Name],
			hasNode: m.Status.NodeRef.IsDefined(), deleting: !m.DeletionTimestamp.IsZero(),
		})
	}
	slices.SortFunc(machines, func(a, b groupMachine) int { return strings.Compare(a.name, b.name) })
	return machines, nil
}

// clonedFrom answers of which template each infrastructure machine of the
// template's kind was made, as the contract has its annotations say.
func (h Home) clonedFrom(ctx context.Context, template templateKey) (map[string]templateKey, error) {
	mapping, err := h.Client.RESTMapper().RESTMapping(template.kind)
	if err != nil {
		return nil, fmt.Errorf("finding the kind %s: %w", template.kind, kube.Classify(err))
	}
	objects, err := h.Client.Objects(ctx, mapping.GroupVersionKind.GroupVersion().String(), strings.TrimSuffix(template.kind.Kind, "Template"), h.Namespace)
	if err != nil {
		return nil, err
	}
	origins := map[string]templateKey{}
	for i := range objects {
		if name := objects[i].GetAnnotations()[clusterv1.TemplateClonedFromNameAnnotation]; name != "" {
			origins[objects[i].GetName()] = templateKey{template.kind, name}
		}
	}
	return origins, nil
}

// progress says whether a group's machines are all as they should be, and else how
// far they are.
func (g group) progress(machines []groupMachine) (bool, string) {
	current, old := int64(0), []string{}
	var pending []string
	for _, m := range machines {
		// A machine whose origin nobody recorded is not replaced for it either.
		outdated := m.version != "" && m.version != g.version && g.version != "" || m.template.name != "" && m.template != g.template
		switch {
		case m.deleting:
			old = append(old, m.name+" is being deleted")
		case outdated:
			old = append(old, m.name+" is of the old template or version")
		case !m.hasNode:
			pending = append(pending, fmt.Sprintf("%s: %s", m.name, m.phase))
		default:
			current++
		}
	}
	if current == g.replicas && len(old) == 0 && len(pending) == 0 {
		return true, ""
	}
	return false, strings.Join(append([]string{fmt.Sprintf("%s: %d of %d machines are as they should be", refOf(g.object), current, g.replicas)}, append(pending, old...)...), "; ")
}
