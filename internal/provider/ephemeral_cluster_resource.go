// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
)

var (
	_ resource.ResourceWithConfigure      = (*ephemeralClusterResource)(nil)
	_ resource.ResourceWithImportState    = (*ephemeralClusterResource)(nil)
	_ resource.ResourceWithIdentity       = (*ephemeralClusterResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*ephemeralClusterResource)(nil)
	_ resource.ResourceWithValidateConfig = (*ephemeralClusterResource)(nil)
)

var ephemeralClusterTimes = defaultTimeouts{Create: 30 * time.Minute, Read: 2 * time.Minute, Update: 30 * time.Minute, Delete: 15 * time.Minute}

// phaseImported is the phase between an import and the update that follows it.
// That makes no cluster which is not here: it may well be retired.
const phaseImported = "imported"

type ephemeralClusterResource struct {
	data *providerData
}

func newEphemeralClusterResource() resource.Resource { return &ephemeralClusterResource{} }

func (r *ephemeralClusterResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_ephemeral_cluster"
}

func (r *ephemeralClusterResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configuredData(req, resp)
}

// ValidateConfig judges versions and the set of providers from the text alone.
func (r *ephemeralClusterResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var config ephemeralClusterModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(checkProviders(ctx, config.Providers, config.Repository)...)
	_, _, diags := certManagerFrom(ctx, config.CertManager)
	resp.Diagnostics.Append(diags...)
	resp.Diagnostics.Append(config.checkRuntime(runtime.GOOS, runtime.GOARCH)...)
}

// ModifyPlan plans access as far as the specification is known, and an update
// that finishes what is unfinished.
func (r *ephemeralClusterResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		return
	}
	var plan ephemeralClusterModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	planPhase(ctx, resp)
	if !plan.Name.IsUnknown() && !plan.Runtime.IsUnknown() {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("id"), types.StringValue(plan.Runtime.ValueString()+"/"+plan.Name.ValueString()))...)
	}
	if spec, known, diags := plan.spec(ctx); known {
		access, err := accessOf(spec)
		if err != nil {
			diags.AddError("Unable to plan "+plan.thing(), sentence(err.Error()))
		}
		resp.Diagnostics.Append(diags...)
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("access"), access)...)
	} else {
		resp.Diagnostics.Append(diags...)
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("access"), types.ObjectUnknown(accessTypes))...)
	}
	if req.State.Raw.IsNull() {
		return
	}
	var state ephemeralClusterModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if state.Phase.ValueString() != phaseReady {
		// The update that finishes the work may find the cluster in any state.
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("status"), types.StringUnknown())...)
	}
	if state.Instance.IsNull() {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("instance"), types.StringUnknown())...)
	}
}

// Create starts the cluster, or joins one of its name that an earlier run left
// unfinished, and installs the providers.
func (r *ephemeralClusterResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan ephemeralClusterModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Create(ctx, ephemeralClusterTimes.Create)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	spec, err := r.finalSpec(ctx, &plan)
	if err != nil {
		failure{verb: "create", thing: plan.thing(), cause: err, exists: "nothing was made"}.addTo(&resp.Diagnostics)
		return
	}
	plan.ID = types.StringValue(plan.Runtime.ValueString() + "/" + plan.Name.ValueString())
	plan.Instance = types.StringValue(uuid.NewString())
	plan.Phase, plan.Status = types.StringValue("starting"), types.StringValue(string(bootstrap.NotHere))
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
	if resp.Diagnostics.HasError() {
		return
	}
	err = r.data.ephemerals.Create(ctx, spec, plan.Instance.ValueString(), reporter(&plan.Phase))
	r.store(ctx, &plan, err)
	if err != nil {
		failure{
			verb: "create", thing: plan.thing(), cause: err,
			exists: "the cluster is " + strings.ReplaceAll(plan.Status.ValueString(), "_", " ") + "; it stopped at the step " + plan.Phase.ValueString(),
			next:   untaintAdvice("capi_ephemeral_cluster"),
		}.addTo(&resp.Diagnostics)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// finalSpec reads the specification, which is known by now, into the model's
// access.
func (r *ephemeralClusterResource) finalSpec(ctx context.Context, plan *ephemeralClusterModel) (bootstrap.Spec, error) {
	spec, known, diags := plan.spec(ctx)
	if diags.HasError() {
		return spec, errors.New(diags[0].Detail())
	}
	if !known {
		return spec, errors.New("part of its configuration is still unknown")
	}
	access, err := accessOf(spec)
	plan.Access = access
	return spec, err
}

// store writes into the model what the work came to.
func (r *ephemeralClusterResource) store(ctx context.Context, m *ephemeralClusterModel, err error) {
	if err == nil {
		m.Phase = types.StringValue(phaseReady)
	}
	// The operation's time may be over; to look is quick.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if status, err := r.data.ephemerals.Status(ctx, m.reference()); err == nil {
		m.Status = types.StringValue(string(status))
	}
	if m.Status.IsUnknown() {
		m.Status = types.StringNull()
	}
}

// Read says what this machine sees. A cluster that is not here was retired or
// lost, which only its management cluster can tell: the state stays.
func (r *ephemeralClusterResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state ephemeralClusterModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, state.identity())...)
	if r.data.stateDirUnknown {
		return
	}
	status, err := r.data.ephemerals.Status(ctx, state.reference())
	if err != nil {
		failure{verb: "look for", thing: state.thing(), cause: err, exists: "the prior state is kept"}.warn(&resp.Diagnostics)
		return
	}
	state.Status = types.StringValue(string(status))
	if state.Instance.IsNull() && status == bootstrap.Running {
		owner, err := r.data.ephemerals.Owner(ctx, state.reference())
		if err != nil {
			failure{verb: "read the owner of", thing: state.thing(), cause: err, exists: "the prior state is kept"}.warn(&resp.Diagnostics)
			return
		}
		state.Instance = textOrNull(owner)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
}

// Update brings a running cluster to the new specification and finishes an
// unfinished one. Of a retired one only the specification changes: it holds for
// the next time that the cluster is made.
func (r *ephemeralClusterResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state ephemeralClusterModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Update(ctx, ephemeralClusterTimes.Update)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	plan.ID = types.StringValue(plan.Runtime.ValueString() + "/" + plan.Name.ValueString())
	plan.Instance = state.Instance
	if plan.Instance.IsNull() {
		plan.Instance = types.StringValue(uuid.NewString())
	}
	if err := r.update(ctx, &plan, &state); err != nil {
		failure{
			verb: "update", thing: plan.thing(), cause: err, exists: "the cluster and what was installed before",
			next: "mend the cause and apply again, which continues",
		}.addTo(&resp.Diagnostics)
		// The prior specification stays, so that the next plan shows the change
		// again; what is unfinished says so.
		state.Phase, state.Status, state.Instance = phaseAfterFailure(plan.Phase, state.Phase), plan.Status, plan.Instance
		plan = state
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
}

func (r *ephemeralClusterResource) update(ctx context.Context, plan, state *ephemeralClusterModel) error {
	spec, err := r.finalSpec(ctx, plan)
	if err != nil {
		plan.Phase, plan.Status = state.Phase, state.Status
		return err
	}
	status, err := r.data.ephemerals.Status(ctx, plan.reference())
	if err != nil {
		plan.Phase, plan.Status = state.Phase, state.Status
		return fmt.Errorf("looking for it: %w", err)
	}
	changed := !plan.Access.Equal(state.Access) || state.Phase.ValueString() != phaseReady
	unfinished := state.Phase.ValueString() != phaseReady && state.Phase.ValueString() != phaseImported
	if status == bootstrap.Running && changed || unfinished {
		err = r.data.ephemerals.Create(ctx, spec, plan.Instance.ValueString(), reporter(&plan.Phase))
	}
	r.store(ctx, plan, err)
	return err
}

// Delete removes the cluster, unless it holds Clusters. In a replacement it
// leaves an unfinished one to the Create that follows.
func (r *ephemeralClusterResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state ephemeralClusterModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	forGood, diags := destroyPlanned(ctx, req.Private)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() || !forGood && state.Phase.ValueString() != phaseReady {
		return
	}
	timeout, diags := state.Timeouts.Delete(ctx, ephemeralClusterTimes.Delete)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := r.retire(ctx, &state)
	var owned *bootstrap.OwnedError
	switch {
	case err == nil:
	case errors.Is(err, bootstrap.ErrForeign):
		failure{verb: "delete", thing: state.thing(), cause: err, exists: "the cluster stays with its owner, and is no longer in this state"}.warn(&resp.Diagnostics)
	case errors.As(err, &owned):
		failure{
			verb: "delete", thing: state.thing(), cause: err, exists: "the cluster and everything in it",
			next: "destroy the resources of these Clusters, or move them to another cluster with a capi_pivot, and then run destroy again",
		}.addTo(&resp.Diagnostics)
	default:
		failure{
			verb: "delete", thing: state.thing(), cause: err, exists: "the cluster, as far as it was not deleted yet",
			next: "mend the cause and run destroy again. If its data are lost for good, first look for VMs that it has made, then take it out of the state: " +
				"terraform state rm ADDRESS",
		}.addTo(&resp.Diagnostics)
	}
}

func (r *ephemeralClusterResource) retire(ctx context.Context, state *ephemeralClusterModel) error {
	reference := state.reference()
	access, known, diags := accessFrom(ctx, state.Access)
	if err := firstError(diags); err != nil {
		return err
	}
	if known && access.Ephemeral != nil {
		reference = *access.Ephemeral
	}
	return r.data.ephemerals.RetireOwned(ctx, reference, state.Instance.ValueString(), reporter(nil))
}

func firstError(diags diag.Diagnostics) error {
	if !diags.HasError() {
		return nil
	}
	return errors.New(diags.Errors()[0].Detail())
}

// ImportState takes runtime/name. The configuration brings the rest, with an
// update in place.
func (r *ephemeralClusterResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	identity := ephemeralClusterIdentity{}
	if req.ID != "" {
		kind, name, ok := strings.Cut(req.ID, "/")
		if !ok || !clusterName.MatchString(name) {
			failure{verb: "import", thing: "the ephemeral cluster", cause: fmt.Errorf("the import id %q is not of the form RUNTIME/NAME, such as local/ephemeral-cluster", req.ID)}.addTo(&resp.Diagnostics)
			return
		}
		identity.Runtime, identity.Name = types.StringValue(kind), types.StringValue(name)
	} else {
		resp.Diagnostics.Append(req.Identity.Get(ctx, &identity)...)
	}
	if resp.Diagnostics.HasError() {
		return
	}
	for name, value := range map[string]types.String{
		"runtime": identity.Runtime, "name": identity.Name, "phase": types.StringValue(phaseImported),
		"id": types.StringValue(identity.Runtime.ValueString() + "/" + identity.Name.ValueString()),
	} {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), value)...)
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, identity)...)
}
