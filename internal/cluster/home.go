// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// Annotations on the Cluster object.
const (
	// InstanceAnnotation holds the UUID of the resource instance that made the
	// Cluster; Delete touches only what still carries its own.
	InstanceAnnotation = "terraform-provider-capi.io/instance"
	// FinishedAnnotation says that the instance's creation came to its end.
	FinishedAnnotation = "terraform-provider-capi.io/finished"
)

// Home is the cluster that holds, and so manages, the objects of one Cluster: a
// bootstrap cluster, another management cluster, or the Cluster itself.
type Home struct {
	// Client reaches it.
	Client *kube.Client
	// Namespace and Name are the Cluster's.
	Namespace, Name string
	// Report takes the progress.
	Report progress.Reporter
	// Leases shortens the times of the lease, Stable that of [StableFor]; used by
	// tests.
	Leases kube.Leases
	Stable time.Duration
}

func (h Home) leaseKey() client.ObjectKey {
	return client.ObjectKey{Namespace: h.Namespace, Name: "terraform-provider-capi-" + h.Name}
}

func (h Home) key(suffix string) client.ObjectKey {
	return client.ObjectKey{Namespace: h.Namespace, Name: h.Name + suffix}
}

// Cluster reads the Cluster object. [kube.IsAbsent] holds for the error only when
// the API server says that it, or its very kind, is not there.
func (h Home) Cluster(ctx context.Context) (*clusterv1.Cluster, error) {
	cluster := &clusterv1.Cluster{}
	if err := h.Client.Get(ctx, h.key(""), cluster); err != nil {
		return nil, fmt.Errorf("reading cluster %s: %w", h.key(""), kube.Classify(err))
	}
	return cluster, nil
}

// Credentials are a cluster's own access, as its providers wrote it.
type Credentials struct {
	// Kubeconfig is of an administrator; Talosconfig is empty for other systems.
	// Both are secrets.
	Kubeconfig, Talosconfig []byte
}

// Credentials reads the Secrets <name>-kubeconfig (the contract of Cluster API)
// and <name>-talosconfig (CABPT). [kube.IsAbsent] holds for the error where there
// is no kubeconfig.
func (h Home) Credentials(ctx context.Context) (Credentials, error) {
	kubeconfig, err := h.secret(ctx, "-kubeconfig", "value")
	if err != nil {
		return Credentials{}, err
	}
	talosconfig, err := h.secret(ctx, "-talosconfig", "talosconfig")
	if err != nil && !kube.IsAbsent(err) {
		return Credentials{}, err
	}
	return Credentials{Kubeconfig: kubeconfig, Talosconfig: talosconfig}, nil
}

func (h Home) secret(ctx context.Context, suffix, field string) ([]byte, error) {
	secret := &corev1.Secret{}
	if err := h.Client.Get(ctx, h.key(suffix), secret); err != nil {
		return nil, fmt.Errorf("reading secret %s: %w", h.key(suffix), kube.Classify(err))
	}
	if len(secret.Data[field]) == 0 {
		return nil, fmt.Errorf("secret %s holds no %s yet: %w", h.key(suffix), field, kube.ErrAbsent)
	}
	return secret.Data[field], nil
}

// FindHome looks for the Cluster in each of the homes, in order, and answers the
// first that has it, un-paused before paused: while a move is under way both may
// hold a copy. [kube.IsAbsent] holds for the error only if every home proved that
// it has none; a home that could not be asked leaves the question open.
func FindHome(ctx context.Context, homes ...Home) (*Home, *clusterv1.Cluster, error) {
	var unknown []error
	var paused *Home
	var pausedCluster *clusterv1.Cluster
	for i := range homes {
		cluster, err := homes[i].Cluster(ctx)
		switch {
		case kube.IsAbsent(err):
		case err != nil:
			unknown = append(unknown, err)
		case ptr.Deref(cluster.Spec.Paused, false):
			if paused == nil {
				paused, pausedCluster = &homes[i], cluster
			}
		default:
			return &homes[i], cluster, nil
		}
	}
	if paused != nil {
		return paused, pausedCluster, nil
	}
	if len(unknown) > 0 {
		return nil, nil, errors.Join(unknown...)
	}
	return nil, nil, kube.ErrAbsent
}
