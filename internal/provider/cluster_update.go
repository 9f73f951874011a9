// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// phaseUpdateFailed is the phase after an update that failed. What was asked for
// before is in state then, so that the next plan shows the change again.
const phaseUpdateFailed = "update-failed"

// onCluster is the model of a resource that installs something on a cluster,
// marked with the UUID of the resource.
type onCluster[M any] interface {
	*M
	// updating answers what every update needs. Pending says that the plan changes
	// the cluster, and not only what is in state.
	updating() updating
	identity() any
	nothingKnown()
}

type updating struct {
	Timeouts        timeouts.Value
	Instance, Phase *types.String
	Pending         bool
}

// updateOnCluster does what the updates of such resources have in common: it
// changes the cluster with work, or only stores what changes nothing there.
// work answers what went wrong, or nil.
func updateOnCluster[M any, P onCluster[M]](
	ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse, patience time.Duration,
	work func(ctx context.Context, plan, state P) *failure,
) {
	var plan, state P = new(M), new(M)
	resp.Diagnostics.Append(req.Plan.Get(ctx, plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	wanted, prior := plan.updating(), state.updating()
	timeout, diags := wanted.Timeouts.Update(ctx, patience)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	*wanted.Instance = *prior.Instance
	if wanted.Instance.IsNull() {
		*wanted.Instance = types.StringValue(uuid.NewString())
	}
	if wanted.Pending {
		if problem := work(ctx, plan, state); problem != nil {
			problem.addTo(&resp.Diagnostics)
			*prior.Instance, *prior.Phase = *wanted.Instance, types.StringValue(phaseUpdateFailed)
			plan = state
		}
	}
	plan.nothingKnown()
	resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
}
