// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// gate is a feature that Cluster API's managers have only when they are told so,
// and without which they do not look after the objects that use it.
type gate struct {
	name string
	// variable switches it on where providers are installed.
	variable string
	// provider is the label of the one that must have it.
	provider string
	used     func(*node) bool
}

// gates are those of Cluster API v1.14.2 whose use shows in the objects; all are
// off by default there (feature/feature.go).
var gates = []gate{
	{"ClusterTopology", "CLUSTER_TOPOLOGY", "cluster-api", func(n *node) bool {
		return n.is(classKind) || n.is(clusterKind) && classOf(n.object).Name != ""
	}},
	{"ClusterTopology", "CLUSTER_TOPOLOGY", "control-plane-kubeadm", func(n *node) bool { return n.Kind == "KubeadmControlPlaneTemplate" }},
	{"RuntimeSDK", "EXP_RUNTIME_SDK", "cluster-api", usesExtensions},
	{"KubeadmBootstrapFormatIgnition", "EXP_KUBEADM_BOOTSTRAP_FORMAT_IGNITION", "bootstrap-kubeadm", func(n *node) bool {
		format, _, _ := unstructured.NestedString(n.object.Object, "spec", "format")
		return n.Kind == "KubeadmConfig" && format == "ignition"
	}},
}

// usesExtensions says whether a ClusterClass has patches that another program makes.
func usesExtensions(n *node) bool {
	if !n.is(classKind) {
		return false
	}
	patches, _, _ := unstructured.NestedSlice(n.object.Object, "spec", "patches")
	return slices.ContainsFunc(patches, func(patch any) bool {
		fields, _ := patch.(map[string]any)
		return fields["external"] != nil
	})
}

// checkGates refuses a target whose managers lack a feature that the objects use:
// its webhooks would reject them, or its controllers leave them alone.
func (r *run) checkGates(ctx context.Context) error {
	var reasons []error
	nodes := r.graph.placed()
	for _, g := range gates {
		at := slices.IndexFunc(nodes, g.used)
		if at < 0 {
			continue
		}
		managers, err := r.target.managers(ctx, g.provider)
		if err != nil {
			return err
		}
		for i := range managers {
			if m := &managers[i]; !gateOn(m, g.name) {
				reasons = append(reasons, fmt.Errorf("%s needs the feature gate %s, without which %s of the target runs (Deployment %s/%s): give that provider the variable %s = \"true\"", nodes[at].ID, g.name, g.provider, m.Namespace, m.Name, g.variable))
			}
		}
	}
	return refused(reasons)
}

// managers answers the Deployments of a provider: none where it runs otherwise or
// where they may not be listed.
func (s *Side) managers(ctx context.Context, label string) ([]appsv1.Deployment, error) {
	all := &appsv1.DeploymentList{}
	err := s.read(ctx, func() error {
		return s.Client.List(ctx, all, client.MatchingLabels{clusterv1.ProviderNameLabel: label})
	})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("listing the Deployments of %s on %s: %w", label, s.Name, err)
	}
	return all.Items, nil
}

const gatesFlag = "--feature-gates"

// gateOn reads a gate that is off by default from a manager's arguments.
func gateOn(manager *appsv1.Deployment, name string) bool {
	on := false
	for _, argument := range arguments(manager) {
		given, ok := strings.CutPrefix(argument, gatesFlag+"=")
		if !ok {
			continue
		}
		for setting := range strings.SplitSeq(given, ",") {
			if key, value, _ := strings.Cut(strings.TrimSpace(setting), "="); key == name {
				on = strings.EqualFold(value, "true")
			}
		}
	}
	return on
}

// arguments are those of all containers of a Deployment, a flag and its value in
// one where they are two.
func arguments(d *appsv1.Deployment) []string {
	var all []string
	for _, container := range d.Spec.Template.Spec.Containers {
		for _, argument := range slices.Concat(container.Command, container.Args) {
			if last := len(all) - 1; last >= 0 && strings.HasPrefix(all[last], "--") && !strings.Contains(all[last], "=") && !strings.HasPrefix(argument, "-") {
				all[last] += "=" + argument
				continue
			}
			all = append(all, argument)
		}
	}
	return all
}
