// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

// lookTime bounds what a plan waits for a source that does not answer.
const lookTime = 20 * time.Second

func (r *pivotResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		return
	}
	planPhase(ctx, resp)
	var plan, config pivotModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if resp.Diagnostics.Append(r.checkBackup(ctx, &plan)...); resp.Diagnostics.HasError() {
		return
	}
	chosen := !config.Clusters.IsNull()
	if req.State.Raw.IsNull() {
		r.planMove(ctx, &plan, chosen, resp)
		return
	}
	var state pivotModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	switch {
	case state.Phase.ValueString() != phaseReady:
		r.planMove(ctx, &plan, chosen, resp)
	case compareAccess(ctx, state.Target, plan.Target) == otherCluster:
		resp.Diagnostics.AddAttributeWarning(path.Root("target"), "The target is another cluster",
			"What this pivot moves will be moved to it when this is applied.")
		r.planMove(ctx, &plan, chosen, resp)
	case !plan.Namespaces.Equal(state.Namespaces), chosen && !config.Clusters.Equal(state.Clusters):
		r.planMove(ctx, &plan, chosen, resp)
	default:
		r.planNothing(ctx, &plan, &state, resp)
	}
}

// planNothing keeps what the move came to. Only how the clusters are reached may
// change.
func (r *pivotResource) planNothing(ctx context.Context, plan, state *pivotModel, resp *resource.ModifyPlanResponse) {
	for name, value := range state.results() {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root(name), value)...)
	}
	access := state.Access
	if target, known, diags := accessFrom(ctx, plan.Target); !known || diags.HasError() {
		access = types.ObjectUnknown(accessTypes)
	} else if target.UID = state.ClusterUID.ValueString(); !plan.Target.Equal(state.Target) {
		access = accessObject(target)
	}
	resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("access"), access)...)
}

// planMove leaves the results unknown and shows what the source holds, if it can
// be asked already.
func (r *pivotResource) planMove(ctx context.Context, plan *pivotModel, chosen bool, resp *resource.ModifyPlanResponse) {
	unknown := map[string]any{
		"cluster_uid": types.StringUnknown(), "journal_id": types.StringUnknown(), "digest": types.StringUnknown(), "backup_path": types.StringUnknown(),
		"objects": types.MapUnknown(types.Int64Type), "stayed": types.ListUnknown(types.StringType), "provider_ids": types.ListUnknown(types.StringType),
		"paused_seconds": types.Float64Unknown(), "access": types.ObjectUnknown(accessTypes),
	}
	if !chosen {
		unknown["clusters"] = types.ListUnknown(types.StringType)
	}
	for name, value := range unknown {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root(name), value)...)
	}
	preview, err := r.look(ctx, plan, chosen)
	switch {
	case errors.Is(err, pivot.ErrRefused):
		failure{verb: "plan", thing: "the pivot", cause: err, exists: "nothing was changed", next: "mend what is named above"}.addTo(&resp.Diagnostics)
	case preview != nil && len(preview.Clusters) > 0:
		resp.Diagnostics.AddAttributeWarning(path.Root("source"), "What the pivot will move", previewText(preview))
	}
}

// previewText is a warning and no attribute: the plan is made anew at apply, and
// would have to be the same although the source lives on in between.
func previewText(preview *pivot.Preview) string {
	var counts []string
	for _, kind := range slices.Sorted(maps.Keys(preview.Counts)) {
		counts = append(counts, fmt.Sprintf("%d %s", preview.Counts[kind], kind))
	}
	text := "The Clusters " + strings.Join(keysText(preview.Clusters), ", ") + " move to the target, with " + strings.Join(counts, ", ") + "."
	if len(preview.Notices) > 0 {
		text += "\n\nNote:\n  " + strings.Join(preview.Notices, "\n  ")
	}
	if preview.Lacking != nil {
		text += "\n\nThe target could not take them as it is now. It is looked at again when this is applied, before anything is changed: " + preview.Lacking.Error()
	}
	if len(preview.Stayed) > 0 {
		text += "\n\nThese stay behind:\n  " + strings.Join(stayedText(preview.Stayed), "\n  ")
	}
	return text
}

// look answers nil when the source cannot be asked yet, which is no fault of a
// plan. Only a refusal is an error.
func (r *pivotResource) look(ctx context.Context, plan *pivotModel, chosen bool) (*pivot.Preview, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	sourceAccess, known, diags := accessFrom(ctx, plan.Source)
	if !known || diags.HasError() || plan.Namespaces.IsUnknown() || chosen && plan.Clusters.IsUnknown() || r.data == nil {
		return nil, nil
	}
	options, diags := plan.options(ctx, chosen)
	if diags.HasError() {
		return nil, nil
	}
	options.Report, options.RetryFor = nil, time.Second
	source, err := r.side(ctx, sourceAccess, "source")
	if err != nil {
		return nil, nil
	}
	var target *pivot.Side
	if targetAccess, known, diags := accessFrom(ctx, plan.Target); known && !diags.HasError() {
		// One that does not answer yet is compared when this is applied.
		target, _ = r.side(ctx, targetAccess, "target")
	}
	preview, err := pivot.Look(ctx, source, target, options)
	if err != nil && !errors.Is(err, pivot.ErrRefused) {
		return nil, nil
	}
	return preview, err
}
