// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Errors that a caller tells apart.
var (
	// ErrNothing says that neither side holds a Cluster.
	ErrNothing = errors.New("there is nothing to move")
	// ErrHalfDone says that a move that left no journal stopped in the middle.
	ErrHalfDone = errors.New("an earlier move stopped in the middle")
	// ErrRefused says that something cannot be moved safely. Nothing was changed.
	ErrRefused = errors.New("the move was refused before anything was changed")
)

// Side is one end of a move. [NewSide] makes it.
type Side struct {
	// Client reaches the cluster; its scheme knows the core types of Cluster API.
	Client client.Client
	// Name is for messages.
	Name string
	// UID is the cluster's identity.
	UID string

	// inventory lists the installed providers, whoever installed them.
	inventory func(context.Context) ([]capi.Installed, error)
	// lease is held while a run is at work; retryFor is how long a failing request
	// is sent again.
	lease    *kube.Lease
	retryFor time.Duration
	// versions are the API versions in which kinds are read, where it is not the
	// stored one because the other side does not serve that.
	versions map[schema.GroupKind]string
}

// NewSide makes the side that a client leads to.
func NewSide(ctx context.Context, c *kube.Client, name string) (*Side, error) {
	config := rest.CopyConfig(c.Config)
	// The paused window is as short as the API server allows; its own priority and
	// fairness keeps it from being flooded.
	config.QPS = -1
	fast, err := kube.NewClient(config)
	if err != nil {
		return nil, err
	}
	uid, err := fast.UID(ctx)
	if err != nil {
		return nil, err
	}
	inventory := func(ctx context.Context) ([]capi.Installed, error) { return capi.Inventory(ctx, config) }
	return &Side{Client: fast.Client, Name: name, UID: uid, inventory: inventory}, nil
}

// providers is inventory with an error that names the side.
func (s *Side) providers(ctx context.Context) ([]capi.Installed, error) {
	installed, err := s.inventory(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the providers of %s: %w", s.Name, err)
	}
	return installed, nil
}

// clusters answers the scope's Clusters; without Cluster API there are none.
func (s *Side) clusters(ctx context.Context, scope Scope) ([]clusterv1.Cluster, error) {
	all := &clusterv1.ClusterList{}
	err := s.read(ctx, func() error { return s.Client.List(ctx, all) })
	if err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("listing the clusters of %s: %w", s.Name, err)
	}
	return slices.DeleteFunc(all.Items, func(c clusterv1.Cluster) bool { return !scope.holds(client.ObjectKeyFromObject(&c)) }), nil
}

func isPaused(c *clusterv1.Cluster) bool {
	_, annotated := c.Annotations[clusterv1.PausedAnnotation]
	return ptr.Deref(c.Spec.Paused, false) || annotated
}
