// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// A cluster whose controllers are gone, since it was shut down half-way or has lost
// its network, must be left by its objects all the same. Its status is history then:
// waiting for it to become better never ends.

// attend finds out whether anybody looks after the source's Clusters: a webhook that
// does not answer, and managers of Cluster API that do not run, say no.
func (r *run) attend(ctx context.Context) error {
	// What an earlier run left has ended; this is a move of its own.
	r.journal, r.open = nil, false
	var err error
	if r.graph, err = r.discover(ctx, r.source); err != nil {
		return err
	}
	if err := r.unsilenceLeft(ctx); err != nil {
		return err
	}
	if r.dead, err = r.deadHooks(ctx); err != nil {
		return err
	}
	why := ""
	if len(r.dead) > 0 {
		why = "nobody answers its webhook " + r.dead[0].String()
	} else if why, err = r.idle(ctx); err != nil {
		return err
	}
	if why != "" {
		r.unattended = true
		r.skip(ctx, "the controllers of the source do not run ("+why+"): whether its Clusters are available was asked neither before the move nor after it")
	}
	return nil
}

// idle answers why Cluster API's manager does not run, and nothing where it does or
// where that cannot be told.
func (r *run) idle(ctx context.Context) (string, error) {
	waiting, cancel := context.WithTimeout(ctx, r.opts.RetryFor)
	defer cancel()
	why := ""
	err := kube.Wait(waiting, "the manager of Cluster API to run", func(ctx context.Context) (bool, string, error) {
		managers, err := r.source.managers(ctx, "cluster-api")
		if err != nil {
			return false, "", err
		}
		why = ""
		for i := range managers {
			m := &managers[i]
			if m.Status.AvailableReplicas > 0 {
				why = ""
				break
			}
			why = fmt.Sprintf("Deployment %s/%s has no replica that is available", m.Namespace, m.Name)
			if ptr.Deref(m.Spec.Replicas, 1) == 0 {
				why = fmt.Sprintf("Deployment %s/%s is scaled to none", m.Namespace, m.Name)
			}
		}
		return why == "", why, nil
	})
	switch {
	case err == nil:
		return "", nil
	case ctx.Err() != nil || why == "":
		return "", err
	}
	return why, nil
}

// skip notes what cannot be asked of the source.
func (r *run) skip(ctx context.Context, what string) {
	r.opts.Report.Report(ctx, "skipping", what)
	r.skipped = append(r.skipped, what)
	if r.journal != nil {
		r.journal.Skipped = r.skipped
	}
}
