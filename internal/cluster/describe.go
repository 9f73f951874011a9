// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/tree"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Tree draws the Cluster with all that belongs to it and the conditions that are
// not as they should be, as clusterctl describe does. It never fails: where the
// tree cannot be read it says why.
func (h Home) Tree(ctx context.Context) string {
	text, _ := h.tree(ctx)
	return text
}

// tree draws the tree, and answers the deepest object with a bad condition, where
// looking closer is most likely to tell the cause; nil if there is none.
func (h Home) tree(ctx context.Context) (string, client.Object) {
	objects, err := tree.Discovery(ctx, h.Client, h.Namespace, h.Name, tree.DiscoverOptions{Echo: true, ShowMachineSets: true})
	if err != nil {
		return fmt.Sprintf("The tree of cluster %s cannot be read: %v", h.key(""), err), nil
	}
	d := drawing{objects: objects, worstDepth: -1}
	d.draw(objects.GetRoot(), 0)
	return strings.TrimRight(d.text.String(), "\n"), d.worst
}

// explain adds to the error of a wait what the Cluster's objects tell: the tree of
// conditions, the last warnings, and a command that shows more.
func (h Home) explain(ctx context.Context, err error) error {
	// The context of the wait is over, and the tree is wanted all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	text, worst := h.tree(ctx)
	events, eventsErr := h.events(ctx)
	switch {
	case eventsErr != nil:
		text += fmt.Sprintf("\nThe last warnings cannot be read: %v", eventsErr)
	case len(events) > 0:
		text += "\nLast warnings:\n" + strings.Join(events, "\n")
	}
	if worst != nil {
		kind := worst.GetObjectKind().GroupVersionKind().GroupKind()
		text += fmt.Sprintf("\nTo look closer, with a kubeconfig of the cluster that holds these objects: kubectl --namespace %s describe %s %s",
			worst.GetNamespace(), strings.TrimSuffix(strings.ToLower(kind.Kind)+"."+kind.Group, "."), worst.GetName())
	}
	return fmt.Errorf("%w\n%s", err, text)
}

type drawing struct {
	objects *tree.ObjectTree
	text    strings.Builder
	// worst is the deepest object with a bad condition, and how deep it is.
	worst      client.Object
	worstDepth int
}

func (d *drawing) draw(o client.Object, depth int) {
	indent := strings.Repeat("  ", depth)
	name := o.GetName()
	if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "" && !tree.IsVirtualObject(o) {
		name = kind + "/" + name
	}
	fmt.Fprintf(&d.text, "%s%s%s\n", indent, name, state(o))
	for _, c := range tree.GetConditions(o) {
		if !isBad(c) {
			continue
		}
		fmt.Fprintf(&d.text, "%s    %s: %s %s %s\n", indent, c.Type, c.Status, c.Reason, strings.Join(strings.Fields(c.Message), " "))
		if !tree.IsVirtualObject(o) && depth > d.worstDepth {
			d.worst, d.worstDepth = o, depth
		}
	}
	children := d.objects.GetObjectsByParent(o.GetUID())
	slices.SortFunc(children, func(a, b client.Object) int {
		return strings.Compare(a.GetObjectKind().GroupVersionKind().Kind+a.GetName(), b.GetObjectKind().GroupVersionKind().Kind+b.GetName())
	})
	for _, child := range children {
		d.draw(child, depth+1)
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
