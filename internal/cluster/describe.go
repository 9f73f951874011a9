// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/tree"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Tree draws the Cluster with all that belongs to it and the conditions that are
// not as they should be, as clusterctl describe does. It never fails: where the
// tree cannot be read it says why.
func (h Home) Tree(ctx context.Context) string {
	objects, err := tree.Discovery(ctx, h.Client, h.Namespace, h.Name, tree.DiscoverOptions{Echo: true, ShowMachineSets: true})
	if err != nil {
		return fmt.Sprintf("The tree of cluster %s cannot be read: %v", h.key(""), err)
	}
	var b strings.Builder
	drawTree(&b, objects, objects.GetRoot(), 0)
	return strings.TrimRight(b.String(), "\n")
}

func drawTree(b *strings.Builder, objects *tree.ObjectTree, o client.Object, depth int) {
	indent := strings.Repeat("  ", depth)
	name := o.GetName()
	if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "" && !tree.IsVirtualObject(o) {
		name = kind + "/" + name
	}
	fmt.Fprintf(b, "%s%s%s\n", indent, name, state(o))
	for _, c := range tree.GetConditions(o) {
		if isBad(c) {
			fmt.Fprintf(b, "%s    %s: %s %s %s\n", indent, c.Type, c.Status, c.Reason, strings.Join(strings.Fields(c.Message), " "))
		}
	}
	children := objects.GetObjectsByParent(o.GetUID())
	slices.SortFunc(children, func(a, b client.Object) int {
		return strings.Compare(a.GetObjectKind().GroupVersionKind().Kind+a.GetName(), b.GetObjectKind().GroupVersionKind().Kind+b.GetName())
	})
	for _, child := range children {
		drawTree(b, objects, child, depth+1)
	}
}

func state(o client.Object) string {
	c := tree.GetAvailableCondition(o)
	if c == nil {
		c = tree.GetReadyCondition(o)
	}
	if c == nil {
		return ""
	}
	return fmt.Sprintf("  %s=%s", c.Type, c.Status)
}

// isBad says whether a condition is worth showing. Conditions that report an
// activity or a fault are good when False; all others when True.
func isBad(c metav1.Condition) bool {
	switch c.Type {
	case "Deleting", "Paused", "Remediating", "RollingOut", "ScalingUp", "ScalingDown", "ExternallyManaged":
		return c.Status == metav1.ConditionTrue
	}
	return c.Status != metav1.ConditionTrue && c.Message != ""
}

// events answers the last five warnings of the namespace, oldest first.
func (h Home) events(ctx context.Context) ([]string, error) {
	list := &corev1.EventList{}
	if err := h.Client.List(ctx, list, client.InNamespace(h.Namespace)); err != nil {
		return nil, err
	}
	events := slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.Type != corev1.EventTypeWarning })
	slices.SortFunc(events, func(a, b corev1.Event) int { return eventTime(a).Compare(eventTime(b).Time) })
	if len(events) > 5 {
		events = events[len(events)-5:]
	}
	var lines []string
	for _, e := range events {
		lines = append(lines, fmt.Sprintf("  %s %s/%s: %s: %s", eventTime(e).UTC().Format("15:04:05"), e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, strings.Join(strings.Fields(e.Message), " ")))
	}
	return lines, nil
}

func eventTime(e corev1.Event) metav1.Time {
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp
	}
	return metav1.Time{Time: e.EventTime.Time}
}
