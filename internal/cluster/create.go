// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/ownership"
)

// Created is what a creation came to.
type Created struct {
	Credentials Credentials
	Machines    []Machine
}

// Create applies the cluster and waits until its control plane answers. started
// is called once, before the first object is written, so that the caller can
// record the identity first. What an earlier run left unfinished is taken over;
// a run that is still alive is answered with [ownership.ErrHeld].
func (h Home) Create(ctx context.Context, options ApplyOptions, started func()) (*Created, error) {
	if err := h.retry(ctx, "making the namespace", func(ctx context.Context) error { return h.Client.EnsureNamespace(ctx, h.Namespace) }); err != nil {
		return nil, err
	}
	held, lease, err := h.Leases.Acquire(ctx, h.Client, h.leaseKey(), options.Instance, h.Report)
	if err != nil {
		return nil, err
	}
	defer func() {
		// The lease is given back when this run fails as well: nobody is at work then.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := lease.Release(ctx); err != nil {
			h.Report.Report(ctx, "releasing-lease", fmt.Sprintf("the lease %s stays until it runs out: %v", h.leaseKey(), err))
		}
	}()
	started()
	options.New = true
	if err := h.Apply(held, options); err != nil {
		return nil, err
	}
	return h.finish(held)
}

// Update applies a changed manifest, watches the rollout that it starts, and
// removes what left the manifest. It also finishes what a failed Create or Update
// has left. self says that the Cluster manages itself.
func (h Home) Update(ctx context.Context, options ApplyOptions, self, allowSingle bool) (*Created, error) {
	options.New = false
	cluster, err := h.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	if Moving(cluster) {
		// Only the pivot that was interrupted can end the pause, and it comes after
		// this in an apply. What is changed here would be lost, or would differ from
		// the copies: it is drift afterwards, and the next apply's.
		h.Report.Report(ctx, "left-to-the-pivot", "a pivot of cluster "+h.key("").String()+" was interrupted: nothing is changed before it is finished")
		return h.created(ctx)
	}
	owner, finished := cluster.Annotations[InstanceAnnotation], cluster.Annotations[FinishedAnnotation] == "true"
	if owner == "" {
		// Somebody else has made it, to the end.
		finished = true
		if err := h.Finish(ctx, options.Instance); err != nil {
			return nil, err
		}
	}
	if self {
		if err := h.CheckRollout(ctx, options, allowSingle); err != nil {
			return nil, err
		}
	}
	if err := h.Apply(ctx, options); err != nil {
		return nil, err
	}
	if !finished {
		// Its nodes are not ready before the charts come that are applied next.
		return h.finish(ctx)
	}
	if err := h.WaitRolledOut(ctx, options); err != nil {
		return nil, err
	}
	if err := h.Prune(ctx, options); err != nil {
		return nil, err
	}
	return h.finish(ctx)
}

func (h Home) finish(ctx context.Context) (*Created, error) {
	if _, err := h.WaitInitialized(ctx); err != nil {
		return nil, err
	}
	return h.created(ctx)
}

func (h Home) created(ctx context.Context) (*Created, error) {
	credentials, err := h.Credentials(ctx)
	if err != nil {
		return nil, err
	}
	machines, err := h.Machines(ctx)
	if err != nil {
		return nil, err
	}
	return &Created{Credentials: credentials, Machines: machines}, nil
}

// Moving says whether a pivot has paused the Cluster, and has not finished.
func Moving(c *clusterv1.Cluster) bool {
	return ptr.Deref(c.Spec.Paused, false) && slices.ContainsFunc(c.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == ownership.PivotManager && entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:paused"`)
	})
}
