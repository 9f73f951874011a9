// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
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

// pivotLeases can be given other times for tests.
var pivotLeases kube.Leases

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
	// Delete would have to remove, and the journals tell how far it came.
	if err := r.move(ctx, &plan, &resp.Diagnostics); err != nil {
		moveFailure(err).addTo(&resp.Diagnostics)
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, pivotIdentity{plan.ClusterUID})...)
}

func moveFailure(err error) failure {
	f := failure{verb: "pivot", thing: "the management cluster", cause: err, exists: "no machine was touched", next: "mend the cause and apply again, which brings everything to one side and goes on"}
	switch {
	case errors.Is(err, pivot.ErrHalfDone):
		f.next = "look at both clusters before anything else, as said above; do not delete any Cluster or Machine object"
	case errors.Is(err, pivot.ErrNothing):
		f.next = "check that source and target are the clusters that you mean"
	case errors.Is(err, pivot.ErrRefused):
		f.exists = "the source manages its clusters as before; nothing was paused"
		f.next = "mend what is named above and apply again"
	}
	return f
}

// move brings the Clusters to the target, whoever has them now, and retires the
// source.
func (r *pivotResource) move(ctx context.Context, m *pivotModel, diags *diag.Diagnostics) error {
	sourceAccess, targetAccess, err := m.ends(ctx)
	if err != nil {
		return err
	}
	for _, end := range []types.Object{m.Source, m.Target} {
		if err := r.data.awake(ctx, end, reporter(&m.Phase)); err != nil {
			return err
		}
	}
	target, err := r.side(ctx, targetAccess, "target")
	if err != nil {
		return err
	}
	source, err := r.side(ctx, sourceAccess, "source")
	if err != nil && !kube.IsAbsent(err) {
		return err
	}
	if source != nil && source.UID == target.UID {
		return errors.New("source and target are the same cluster")
	}
	options, moreDiags := m.options(ctx, !m.Clusters.IsUnknown())
	if err := firstError(moreDiags); err != nil {
		return err
	}
	if options.Backup, moreDiags = r.backup(ctx, m); moreDiags.HasError() {
		return firstError(moreDiags)
	}
	if options.Backup != nil && len(options.Backup.Recipients) == 0 && options.Backup.Passphrase == "" {
		return errNoBackupKey
	}
	result, err := pivot.Move(ctx, source, target, options)
	if err != nil {
		return err
	}
	if err := firstError(m.set(ctx, result, targetAccess, target.UID)); err != nil {
		return err
	}
	if len(result.Skipped) > 0 {
		diags.AddAttributeWarning(path.Root("source"), "Some of the pivot was not proven",
			"The source could not be asked for everything. The objects were compared and are all on the target. Look at them there:\n  "+strings.Join(result.Skipped, "\n  "))
	}
	if m.RetireSource.ValueBool() {
		r.retire(ctx, sourceAccess, reporter(&m.Phase), diags)
	}
	m.Phase = types.StringValue(phaseReady)
	return nil
}

func (m *pivotModel) ends(ctx context.Context) (source, target kube.Access, err error) {
	source, sourceKnown, diags := accessFrom(ctx, m.Source)
	target, targetKnown, moreDiags := accessFrom(ctx, m.Target)
	if diags.Append(moreDiags...); diags.HasError() || !sourceKnown || !targetKnown {
		return source, target, errors.New("how source and target are reached is not known")
	}
	return source, target, nil
}

// side answers nil, and an error for which [kube.IsAbsent] holds, for a cluster
// that is proven to be gone.
func (r *pivotResource) side(ctx context.Context, access kube.Access, name string) (*pivot.Side, error) {
	client, err := r.data.connect(ctx, access)
	if err != nil {
		return nil, fmt.Errorf("reaching the %s: %w", name, err)
	}
	side, err := pivot.NewSide(ctx, client, name)
	if err != nil {
		return nil, fmt.Errorf("reaching the %s: %w", name, err)
	}
	return side, nil
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
// told by the resources that own them. A target that does not answer, or that is
// another cluster than then, is said.
func (r *pivotResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state pivotModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, pivotIdentity{state.ClusterUID})...)
	if state.Access.IsNull() || state.Phase.ValueString() != phaseReady {
		return // nothing has found it yet
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	_, _, err := r.data.reachSame(ctx, state.Access, state.ClusterUID, "the objects were moved to")
	if err != nil && !errors.Is(err, errConfigurationUnknown) {
		failure{verb: "refresh", thing: "the pivot", cause: err, exists: "the prior state is kept: what was moved was proven when it was moved"}.warn(&resp.Diagnostics)
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
	if plan.Digest.IsUnknown() {
		if err := r.move(ctx, &plan, &resp.Diagnostics); err != nil {
			moveFailure(err).addTo(&resp.Diagnostics)
			return
		}
	} else if plan.Access.IsUnknown() {
		_, target, err := plan.ends(ctx)
		if err != nil {
			moveFailure(err).addTo(&resp.Diagnostics)
			return
		}
		target.UID = plan.ClusterUID.ValueString()
		plan.Access = accessObject(target)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, pivotIdentity{plan.ClusterUID})...)
}

// Delete only forgets.
func (r *pivotResource) Delete(context.Context, resource.DeleteRequest, *resource.DeleteResponse) {}

// ImportState takes up a pivot that was done before. An id TARGET#JOURNAL#SOURCE
// reads the journal on the target, and the next plan is empty but for how the
// clusters are reached; the target's UID alone leaves it to the next apply to prove
// it.
func (r *pivotResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	if cluster, journal, ok := strings.Cut(req.ID, "#"); ok {
		journal, source, _ := strings.Cut(journal, "#")
		if err := r.importJournal(ctx, clusterObjectID{Cluster: cluster}.access(), journal, source, resp); err != nil {
			failure{verb: "import", thing: "the pivot", cause: err, next: "list the target's journals: kubectl get configmaps -n kube-system -l terraform-provider-capi/pivot"}.addTo(&resp.Diagnostics)
		}
		return
	}
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

func (r *pivotResource) importJournal(ctx context.Context, access kube.Access, id, source string, resp *resource.ImportStateResponse) error {
	target, err := r.side(ctx, access, "target")
	if err != nil {
		return err
	}
	result, err := pivot.Finished(ctx, target, id)
	if err != nil {
		return err
	}
	m := pivotModel{}
	if err := firstError(m.set(ctx, result, access, target.UID)); err != nil {
		return err
	}
	values := m.results()
	values["id"], values["phase"], values["target"], values["access"] = m.ID, types.StringValue(phaseReady), accessObject(access), m.Access
	if source != "" {
		values["source"] = accessObject(clusterObjectID{Cluster: source}.access())
	}
	if len(result.Scope.Namespaces) > 0 {
		values["namespaces"] = textsOf(ctx, result.Scope.Namespaces, &resp.Diagnostics)
	}
	values["foreign_owners"], values["prove_for"] = types.StringValue(string(pivot.ForeignRefuse)), types.StringValue(defaultProveFor)
	values["retire_source"], values["adopt_failed_move"] = types.BoolValue(true), types.BoolValue(false)
	for name, value := range values {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), value)...)
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, pivotIdentity{m.ClusterUID})...)
	return nil
}
