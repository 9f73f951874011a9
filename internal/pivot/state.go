// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctlcluster "sigs.k8s.io/cluster-api/cmd/clusterctl/client/cluster"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Errors that a caller tells apart.
var (
	// ErrNothing says that neither side holds a Cluster.
	ErrNothing = errors.New("there is nothing to move")
	// ErrHalfDone says that an earlier move stopped in the middle.
	ErrHalfDone = errors.New("an earlier move stopped in the middle")
)

// Side is one end of a move. [NewSide] makes it.
type Side struct {
	// Client reaches the cluster; its scheme knows the core types of Cluster API.
	Client client.Client
	// Cluster is clusterctl's client of the same cluster. Its inventory must name
	// the providers whoever installed them, as that of capi.ClusterClient does.
	Cluster ctlcluster.Client
	// Name is for messages.
	Name string
}

// NewSide makes the side that a client leads to.
func NewSide(ctx context.Context, c *kube.Client, name string) (*Side, error) {
	clusterctl, err := capi.ClusterClient(ctx, c.Config)
	if err != nil {
		return nil, err
	}
	return &Side{Client: c, Cluster: clusterctl, Name: name}, nil
}

// State says how far a move has come.
type State int

const (
	// NotStarted means that the source holds the Clusters, un-paused, and the
	// target none of them.
	NotStarted State = iota
	// Done means that the target holds Clusters, un-paused, and the source none.
	Done
)

// Inspect finds out how far the move is, and of which Clusters. source is nil
// when the source is proven to be gone. It answers [ErrHalfDone] with the way
// out, and [ErrNothing].
func Inspect(ctx context.Context, source, target *Side) (State, []client.ObjectKey, error) {
	var here []clusterv1.Cluster
	if source != nil {
		var err error
		if here, err = clusters(ctx, source); err != nil {
			return NotStarted, nil, err
		}
	}
	there, err := clusters(ctx, target)
	if err != nil {
		return NotStarted, nil, err
	}
	if len(here) == 0 {
		return inspectTarget(there, target)
	}
	for _, c := range here {
		copied := slices.ContainsFunc(there, func(o clusterv1.Cluster) bool { return o.Namespace == c.Namespace && o.Name == c.Name })
		switch {
		case isPaused(c):
			return NotStarted, nil, fmt.Errorf("%w: Cluster %s/%s is paused on the source (%s). %s", ErrHalfDone, c.Namespace, c.Name, source.Name, wayOut(copied))
		case copied:
			return NotStarted, nil, fmt.Errorf("%w: Cluster %s/%s is on both sides, and the source (%s) manages it. Remove the copy from the target while it is paused, with its finalizers stripped, then apply again; never un-pause the copy", ErrHalfDone, c.Namespace, c.Name, source.Name)
		}
	}
	return NotStarted, keys(here), nil
}

func inspectTarget(there []clusterv1.Cluster, target *Side) (State, []client.ObjectKey, error) {
	if len(there) == 0 {
		return NotStarted, nil, ErrNothing
	}
	for _, c := range there {
		if isPaused(c) {
			return NotStarted, nil, fmt.Errorf("%w: Cluster %s/%s has left the source and is paused on the target (%s). Compare its Machines with the VMs; if all are there, set spec.paused to false on the target and apply again", ErrHalfDone, c.Namespace, c.Name, target.Name)
		}
	}
	return Done, keys(there), nil
}

// wayOut says what may be done by hand. The rule behind it: a side is never
// un-paused while Machines of the control plane are missing there, since the
// controllers would evict etcd members and make a new first machine.
func wayOut(copied bool) string {
	if copied {
		return "The target holds a copy. Count the Machines on both sides. If the source still has all of them: remove the target's copies while they are paused, with their finalizers stripped, un-pause the source and apply again. If the source has lost some: strip the finalizers of what is left there, delete it, un-pause the target and apply again. Never un-pause a side that lacks Machines"
	}
	return "The target holds no copy: set spec.paused to false on the source and apply again"
}

func isPaused(c clusterv1.Cluster) bool {
	_, annotated := c.Annotations[clusterv1.PausedAnnotation]
	return ptr.Deref(c.Spec.Paused, false) || annotated
}

func keys(clusters []clusterv1.Cluster) []client.ObjectKey {
	var all []client.ObjectKey
	for i := range clusters {
		all = append(all, client.ObjectKeyFromObject(&clusters[i]))
	}
	slices.SortFunc(all, func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) })
	return all
}

func clusters(ctx context.Context, side *Side) ([]clusterv1.Cluster, error) {
	list := &clusterv1.ClusterList{}
	if err := side.Client.List(ctx, list); err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("listing the clusters of %s: %w", side.Name, err)
	}
	return list.Items, nil
}
