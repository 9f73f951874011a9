// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// phaseReady is the phase of a finished resource. Any other phase in state
// plans an in-place update that finishes the work.
const phaseReady = "ready"

// phaseAttribute is the computed attribute phase that every long-running
// resource has.
func phaseAttribute() schema.StringAttribute {
	return schema.StringAttribute{
		Computed: true,
		MarkdownDescription: "How far the work got: `ready` when it is complete, else the step at which the last apply stopped. " +
			"Anything but `ready` plans an in-place update that finishes the work.",
	}
}

// planPhase plans the phase ready. Called from ModifyPlan of a create or an
// update; on an unfinished resource the difference is what brings the update.
func planPhase(ctx context.Context, resp *resource.ModifyPlanResponse) {
	resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("phase"), types.StringValue(phaseReady))...)
}

// reporter passes the engines' progress to Terraform's log and keeps the latest
// phase in *phase, which may be nil.
func reporter(phase *types.String) progress.Reporter {
	return func(ctx context.Context, step, message string) {
		tflog.Info(ctx, message, map[string]any{"phase": step})
		if phase != nil {
			*phase = types.StringValue(step)
		}
	}
}

// phaseAfterFailure answers the phase after an update that failed: the step that
// it came to. An update that failed before its first step has left the phase as
// it was planned, and the prior one holds: what was unfinished still is.
func phaseAfterFailure(reached, prior types.String) types.String {
	if reached.ValueString() == phaseReady {
		return prior
	}
	return reached
}
