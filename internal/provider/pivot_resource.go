// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

var (
	_ resource.ResourceWithConfigure   = (*pivotResource)(nil)
	_ resource.ResourceWithImportState = (*pivotResource)(nil)
	_ resource.ResourceWithIdentity    = (*pivotResource)(nil)
	_ resource.ResourceWithModifyPlan  = (*pivotResource)(nil)
)

var pivotTimes = defaultTimeouts{Create: time.Hour, Read: 2 * time.Minute, Update: time.Hour, Delete: 10 * time.Minute}

type pivotResource struct {
	data *providerData
}

func newPivotResource() resource.Resource { return &pivotResource{} }

func (r *pivotResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_pivot"
}

func (r *pivotResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configuredData(req, resp)
}

func (r *pivotResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"cluster_uid": identityschema.StringAttribute{RequiredForImport: true, Description: "UID of the namespace kube-system of the cluster that the objects were moved to."},
	}}
}

type pivotIdentity struct {
	ClusterUID types.String `tfsdk:"cluster_uid"`
}

func (r *pivotResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "Moves all Cluster API objects from one management cluster to another, compares what both hold, and retires the source. " +
			"It begins only when every Cluster of the source is available and every Machine has a node. Once begun, the move is not cut by a timeout or " +
			"Ctrl-C. A move that was killed in the middle is recognised and refused, with the way out. Destroying this resource only forgets it: it moves " +
			"nothing and touches no machine.",
		Attributes: map[string]schema.Attribute{
			"source": accessInput("The cluster that manages the Clusters now. It may be gone if the move is done."),
			"target": accessInput("The cluster that shall manage them. It needs each provider of the source in the same or a newer version, whoever installed it."),
			"retire_source": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(true),
				MarkdownDescription: "Whether to delete the source after the comparison, if it is an ephemeral cluster and holds no Cluster any more. Defaults to `true`.",
			},
			"id":           keptString("Identity of this pivot: the UID of its first target."),
			"cluster_uid":  schema.StringAttribute{Computed: true, MarkdownDescription: "UID of the namespace `kube-system` of the target: its identity."},
			"clusters":     schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "The moved Clusters as `namespace/name`."},
			"objects":      schema.MapAttribute{Computed: true, ElementType: types.Int64Type, MarkdownDescription: "Number of objects by kind that belong to the Clusters."},
			"provider_ids": schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "Provider ids of the Machines, the same before and after the move."},
			"phase":        phaseAttribute(),
			"timeouts":     timeoutsAttribute(ctx, pivotTimes),
		},
	}
}

func (r *pivotResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		return
	}
	planPhase(ctx, resp)
	if req.State.Raw.IsNull() || resp.Diagnostics.HasError() {
		return
	}
	var plan, state pivotModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() || state.Phase.ValueString() != phaseReady {
		return
	}
	if compareAccess(ctx, state.Target, plan.Target) == otherCluster {
		resp.Diagnostics.AddAttributeWarning(path.Root("target"), "The target is another cluster",
			"All Clusters will be moved to it when this is applied.")
		return
	}
	for name, value := range map[string]any{"cluster_uid": state.ClusterUID, "clusters": state.Clusters, "objects": state.Objects, "provider_ids": state.ProviderIDs} {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root(name), value)...)
	}
}

func (r *pivotResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan pivotModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Create(ctx, pivotTimes.Create)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Nothing goes into state before the move is done: there is nothing that a
	// Delete would have to remove, and what the clusters hold tells how far it came.
	if err := r.move(ctx, &plan, &resp.Diagnostics); err != nil {
		failure{verb: "pivot", thing: "the management cluster", cause: err, exists: "no machine was touched", next: nextAfter(err)}.addTo(&resp.Diagnostics)
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, pivotIdentity{plan.ClusterUID})...)
}

func nextAfter(err error) string {
	switch {
	case errors.Is(err, pivot.ErrHalfDone):
		return "look at both clusters before anything else, as said above; do not delete any Cluster or Machine object"
	case errors.Is(err, pivot.ErrNothing):
		return "check that source and target are the clusters that you mean"
	}
	return "mend the cause and apply again"
}

// move brings the Clusters to the target, whoever has them now, and retires the
// source.
func (r *pivotResource) move(ctx context.Context, m *pivotModel, diags *diag.Diagnostics) error {
	sourceAccess, target, uid, err := r.ends(ctx, m)
	if err != nil {
		return err
	}
	source, err := r.source(ctx, sourceAccess, uid)
	if err != nil {
		return err
	}
	result, err := pivot.Move(ctx, source, target, pivot.Options{Report: reporter(&m.Phase)})
	if err != nil {
		return err
	}
	if moreDiags := m.set(ctx, result, uid); moreDiags.HasError() {
		return errors.New(moreDiags[0].Detail())
	}
	if m.RetireSource.ValueBool() {
		r.retire(ctx, sourceAccess, reporter(&m.Phase), diags)
	}
	m.Phase = types.StringValue(phaseReady)
	return nil
}

func (r *pivotResource) ends(ctx context.Context, m *pivotModel) (kube.Access, *pivot.Side, string, error) {
	sourceAccess, known, diags := accessFrom(ctx, m.Source)
	targetAccess, targetKnown, moreDiags := accessFrom(ctx, m.Target)
	if diags.Append(moreDiags...); diags.HasError() || !known || !targetKnown {
		return sourceAccess, nil, "", errors.New("how source and target are reached is not known")
	}
	client, err := r.data.connect(ctx, targetAccess)
	if err != nil {
		return sourceAccess, nil, "", fmt.Errorf("reaching the target: %w", err)
	}
	uid, err := client.UID(ctx)
	if err != nil {
		return sourceAccess, nil, "", err
	}
	target, err := pivot.NewSide(ctx, client, "target")
	return sourceAccess, target, uid, err
}

// source answers nil for a source that is proven to be gone.
func (r *pivotResource) source(ctx context.Context, access kube.Access, targetUID string) (*pivot.Side, error) {
	client, err := r.data.connect(ctx, access)
	if kube.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reaching the source: %w", err)
	}
	uid, err := client.UID(ctx)
	if err != nil {
		return nil, fmt.Errorf("reaching the source: %w", err)
	}
	if uid == targetUID {
		return nil, errors.New("source and target are the same cluster")
	}
	return pivot.NewSide(ctx, client, "source")
}

// retire deletes an ephemeral source. That it could not is a warning: the move
// is done and proven.
func (r *pivotResource) retire(ctx context.Context, access kube.Access, report func(context.Context, string, string), diags *diag.Diagnostics) {
	if access.Ephemeral == nil {
		return
	}
	err := r.data.ephemerals.Retire(ctx, *access.Ephemeral, report)
	var owned *bootstrap.OwnedError
	switch {
	case errors.As(err, &owned):
		failure{verb: "retire", thing: "the source", cause: err, exists: "the pivot is done; the source runs on", next: "move or delete what it still holds, then apply again"}.warn(diags)
	case err != nil:
		failure{verb: "retire", thing: "the source", cause: err, exists: "the pivot is done and proven", next: "remove the ephemeral cluster by destroying its resource"}.warn(diags)
	}
}

// Read keeps the state: what was moved is history. Where the Clusters are now is
// told by the resources that own them.
func (r *pivotResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state pivotModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(resp.Identity.Set(ctx, pivotIdentity{state.ClusterUID})...)
	}
}

func (r *pivotResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state pivotModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Update(ctx, pivotTimes.Update)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	plan.ID = state.ID
	if plan.Clusters.IsUnknown() {
		err := r.move(ctx, &plan, &resp.Diagnostics)
		if err != nil {
			failure{verb: "pivot", thing: "the management cluster", cause: err, exists: "no machine was touched", next: nextAfter(err)}.addTo(&resp.Diagnostics)
			return
		}
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, pivotIdentity{plan.ClusterUID})...)
}

// Delete only forgets.
func (r *pivotResource) Delete(context.Context, resource.DeleteRequest, *resource.DeleteResponse) {}

// ImportState takes up a pivot that was done before: by hand, or by a run that
// lost its state. The id is the target's UID; the next apply proves it.
func (r *pivotResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	uid := req.ID
	if uid == "" {
		var identity pivotIdentity
		resp.Diagnostics.Append(req.Identity.Get(ctx, &identity)...)
		uid = identity.ClusterUID.ValueString()
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("id"), uid)...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("cluster_uid"), uid)...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("phase"), "imported")...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, pivotIdentity{types.StringValue(uid)})...)
}
