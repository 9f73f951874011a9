// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
)

func (r *helmReleaseResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var config helmReleaseModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(config.check(ctx)...)
	}
}

// ModifyPlan reads a chart on this machine, keeps what an update that changes
// nothing on the cluster leaves as it is (a new kubeconfig of the same cluster,
// another timeout), and tells what changes in the values.
func (r *helmReleaseResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		return
	}
	planPhase(ctx, resp)
	var plan, state helmReleaseModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	created := req.State.Raw.IsNull()
	if !created {
		resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
		if resp.Diagnostics.HasError() {
			return
		}
	}
	plan.checkLocalChart(ctx, req.Config, &resp.Diagnostics)
	computed := plan.planned(created, &state)
	if created {
		computed.setIn(ctx, resp)
		return
	}
	cluster := compareAccess(ctx, state.Cluster, plan.Cluster)
	if cluster == otherCluster {
		resp.Diagnostics.AddAttributeWarning(path.Root("cluster"), "The release goes to another cluster",
			sentence(plan.thing()+" will be installed there, and the one on the first cluster stays and is forgotten"))
	}
	if cluster == sameCluster {
		computed["cluster_uid"] = state.ClusterUID
	}
	if cluster == sameCluster && state.Phase.ValueString() == phaseReady && plan.wants(&state) && !computed.otherChart(&state) {
		computed["revision"], computed["status"], computed["app_version"] = state.Revision, state.Status, state.AppVersion
		computed["chart_version"], computed["chart_digest"] = state.ChartVersion, state.ChartDigest
	}
	if state.Phase.ValueString() != phaseImported && !plan.sameValues(&state) {
		computed["changes"] = plan.changesFrom(ctx, &state)
	}
	computed.setIn(ctx, resp)
}

// checkLocalChart answers what is wrong with a chart on this machine, and what its
// rules have against the values. A chart that is not there yet may be made by
// the same apply.
func (m *helmReleaseModel) checkLocalChart(ctx context.Context, config tfsdk.Config, diags *diag.Diagnostics) {
	if m.Chart.IsUnknown() || m.Repository.IsUnknown() || m.Version.IsUnknown() || !m.chart().Local() {
		return
	}
	_, err := m.chart().Inspect()
	if errors.Is(err, helm.ErrNoChart) {
		return
	}
	if err != nil {
		diags.AddAttributeError(path.Root("chart"), "Unable to use the chart", sentence(err.Error()))
		return
	}
	whole := *m
	diags.Append(config.GetAttribute(ctx, path.Root("set_wo"), &whole.SetWO)...)
	spec, err := whole.spec(ctx)
	if err != nil {
		// Part of the values is unknown.
		return
	}
	if err := spec.CheckValues(); err != nil {
		diags.AddAttributeError(path.Root("values"), "Unable to use the values with the chart", sentence(err.Error()))
	}
}

// plannedValues are what ModifyPlan plans of the computed attributes.
type plannedValues map[string]any

func (p plannedValues) setIn(ctx context.Context, resp *resource.ModifyPlanResponse) {
	for name, value := range p {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root(name), value)...)
	}
}

// otherChart says whether the files of a chart on this machine are not those
// that were installed.
func (p plannedValues) otherChart(state *helmReleaseModel) bool {
	digest, ok := p["chart_digest"].(types.String)
	return ok && given(digest) && !digest.Equal(state.ChartDigest)
}

// planned is what a plan that changes the cluster says of the computed
// attributes: unknown, but for what a chart on this machine and the prior state
// tell.
func (m *helmReleaseModel) planned(created bool, state *helmReleaseModel) plannedValues {
	computed := plannedValues{
		"revision": types.Int64Unknown(), "status": types.StringUnknown(), "chart_version": types.StringUnknown(), "chart_digest": types.StringUnknown(),
		"app_version": types.StringUnknown(), "cluster_uid": types.StringUnknown(), "drift": types.StringNull(), "changes": types.StringNull(),
	}
	if !created {
		computed["changes"] = state.Changes
	}
	if m.Chart.IsUnknown() || m.Repository.IsUnknown() || m.Version.IsUnknown() {
		return computed
	}
	chart := m.chart()
	switch {
	case chart.Local():
		// A folder that is not there yet may be made by the same apply.
		if content, err := chart.Inspect(); err == nil {
			computed["chart_version"], computed["chart_digest"] = types.StringValue(content.Version), types.StringValue(content.Digest)
		} else if !created && m.sameChart(state) {
			computed["chart_version"], computed["chart_digest"] = state.ChartVersion, state.ChartDigest
		}
	case !created && m.pinned(state):
		// What a registry serves under a version may have changed.
		computed["chart_version"] = state.ChartVersion
	}
	return computed
}

// pinned says whether a chart from elsewhere stays in the version that its
// range came to before.
func (m *helmReleaseModel) pinned(state *helmReleaseModel) bool {
	return m.sameChart(state) && given(state.ChartVersion) && !m.chart().Local()
}

// changesFrom tells what changes in the values. The revision is named so that
// the text differs from that of the change before.
func (m *helmReleaseModel) changesFrom(ctx context.Context, state *helmReleaseModel) types.String {
	before, known, err := state.values(ctx)
	if err != nil || !known {
		return types.StringUnknown()
	}
	after, known, err := m.values(ctx)
	if err != nil || !known {
		return types.StringUnknown()
	}
	lines := helm.DiffValues(before, after, m.ShowValues.ValueBool())
	if !m.SetWOVersion.Equal(state.SetWOVersion) {
		lines = append(lines, "~ set_wo: (masked)")
	}
	if len(lines) == 0 {
		lines = []string{"nothing but its form"}
	}
	return types.StringValue(fmt.Sprintf("after revision %d:\n%s", state.Revision.ValueInt64(), strings.Join(lines, "\n")))
}
