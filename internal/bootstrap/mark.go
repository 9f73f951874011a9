// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// The mark of an ephemeral cluster is a ConfigMap in it, and the right to work
// on it a Lease beside it. Both go when the cluster goes.
var (
	markKey  = client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "terraform-provider-capi"}
	leaseKey = client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "terraform-provider-capi-install"}
)

const (
	markOwner    = "instance"
	markFinished = "finished"
)

// ErrForeign says that an ephemeral cluster belongs to another resource.
var ErrForeign = errors.New("it belongs to another capi_ephemeral_cluster resource")

type mark struct {
	owner    string
	finished bool
}

func readMark(ctx context.Context, c *kube.Client) (*mark, error) {
	found := &corev1.ConfigMap{}
	switch err := c.Get(ctx, markKey, found); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the ownership mark: %w", err)
	}
	return &mark{owner: found.Data[markOwner], finished: found.Data[markFinished] == "true"}, nil
}

func writeMark(ctx context.Context, c *kube.Client, m mark) error {
	data := map[string]string{markOwner: m.owner, markFinished: fmt.Sprint(m.finished)}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: markKey.Namespace, Name: markKey.Name}, Data: data}
	err := c.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) {
		err = c.Update(ctx, object)
	}
	if err != nil {
		return fmt.Errorf("writing the ownership mark: %w", err)
	}
	return nil
}

// claim marks the cluster as owner's, unfinished. What another run left
// unfinished is taken over; the caller holds the lease, so that run is dead. A
// finished one of somebody else is taken over too while it holds no Cluster: a
// run that was killed between the last step and the writing of its state leaves
// just that.
func claim(ctx context.Context, c *kube.Client, owner string) error {
	found, err := readMark(ctx, c)
	if err != nil {
		return err
	}
	if found != nil && found.finished && found.owner != owner {
		owned, err := capi.Clusters(ctx, c.Config)
		if err != nil {
			return err
		}
		if len(owned) > 0 {
			return fmt.Errorf("%w, and holds Clusters of it: %v", ErrForeign, owned)
		}
	}
	return writeMark(ctx, c, mark{owner: owner})
}

// Create is [Manager.Ensure] for the resource that owns the cluster: it marks
// the cluster with owner, a UUID, and keeps other runs from working on it
// meanwhile. [ErrForeign] is wrapped in the error when the cluster belongs to
// another resource and is in use.
func (m Manager) Create(ctx context.Context, spec Spec, owner string, report progress.Reporter) error {
	kubeconfig, err := m.start(ctx, spec, report)
	if err != nil {
		return err
	}
	c, err := connect(kubeconfig)
	if err != nil {
		return err
	}
	if err := c.WaitForAPI(ctx, 0); err != nil {
		return fmt.Errorf("the ephemeral cluster %q: %w", spec.Name, err)
	}
	held, lease, err := kube.Leases{}.Acquire(ctx, c.Client, leaseKey, owner, report)
	if err != nil {
		return fmt.Errorf("the ephemeral cluster %q: %w", spec.Name, err)
	}
	// A release that fails leaves a lease that runs out by itself.
	defer func() { _ = lease.Release(context.WithoutCancel(ctx)) }()
	if err := claim(held, c, owner); err != nil {
		return fmt.Errorf("the ephemeral cluster %q: %w", spec.Name, err)
	}
	if err := capi.Init(held, c.Config, spec.initOptions(), report); err != nil {
		return fmt.Errorf("installing providers into the ephemeral cluster %q: %w", spec.Name, err)
	}
	if err := writeMark(held, c, mark{owner: owner, finished: true}); err != nil {
		return fmt.Errorf("the ephemeral cluster %q: %w", spec.Name, err)
	}
	return nil
}

// RetireOwned is [Manager.Retire] for the resource that owns the cluster: what
// carries another owner's mark is left as it is, with [ErrForeign].
func (m Manager) RetireOwned(ctx context.Context, e kube.Ephemeral, owner string, report progress.Reporter) error {
	return m.retire(ctx, e, report, func(ctx context.Context, c *kube.Client) error {
		found, err := readMark(ctx, c)
		if err != nil {
			return fmt.Errorf("the ephemeral cluster %q: %w", e.Name, err)
		}
		if found != nil && found.owner != owner {
			return fmt.Errorf("the ephemeral cluster %q: %w", e.Name, ErrForeign)
		}
		return nil
	})
}

// Owner answers the owner in the mark of a running ephemeral cluster; empty
// where it has none.
func (m Manager) Owner(ctx context.Context, e kube.Ephemeral) (string, error) {
	kubeconfig, err := m.Kubeconfig(ctx, e)
	if err != nil {
		return "", err
	}
	c, err := connect(kubeconfig)
	if err != nil {
		return "", err
	}
	found, err := readMark(ctx, c)
	if err != nil || found == nil {
		return "", err
	}
	return found.owner, nil
}

func connect(kubeconfig []byte) (*kube.Client, error) {
	config, err := kube.ConfigFromKubeconfig(kubeconfig, "")
	if err != nil {
		return nil, err
	}
	return kube.NewClient(config)
}
