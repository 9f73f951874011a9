// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

var (
	_ resource.ResourceWithConfigure   = (*managementClusterResource)(nil)
	_ resource.ResourceWithImportState = (*managementClusterResource)(nil)
	_ resource.ResourceWithIdentity    = (*managementClusterResource)(nil)
	_ resource.ResourceWithModifyPlan  = (*managementClusterResource)(nil)
)

var managementClusterTimes = defaultTimeouts{Create: time.Hour, Read: 2 * time.Minute, Update: time.Hour, Delete: time.Hour}

type managementClusterResource struct {
	data *providerData
}

func newManagementClusterResource() resource.Resource { return &managementClusterResource{} }

func (r *managementClusterResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_management_cluster"
}

func (r *managementClusterResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configuredData(req, resp)
}

func (r *managementClusterResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"cluster":   identityschema.StringAttribute{OptionalForImport: true, Description: "Path of a kubeconfig file, or entry of the provider's clusters map, of the cluster that holds the objects."},
		"namespace": identityschema.StringAttribute{RequiredForImport: true, Description: "Namespace of the Cluster object."},
		"name":      identityschema.StringAttribute{RequiredForImport: true, Description: "Name of the Cluster object."},
	}}
}

func (m *managementClusterModel) identity() clusterObjectIdentity {
	return identityOf(m.Namespace, m.Name)
}

// ModifyPlan checks the manifest, and refuses at plan a destroy that Delete would
// refuse as well.
func (r *managementClusterResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		var state managementClusterModel
		resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
		if !resp.Diagnostics.HasError() && state.Home.ValueString() == homeSelf && !state.ForceDestroy.ValueBool() {
			refuseSelfDestroy(&state).addTo(&resp.Diagnostics)
		}
		return
	}
	var plan managementClusterModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	var secrets types.String
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("secrets_wo"), &secrets)...)
	if req.State.Raw.IsNull() {
		resp.Diagnostics.Append(plan.check(ctx, secrets, nil)...)
		planPhase(ctx, resp)
		return
	}
	var state managementClusterModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	resp.Diagnostics.Append(plan.check(ctx, secrets, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	plan.planComputed(&state, secrets)
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
	if plan.Machines.IsUnknown() && state.Home.ValueString() == homeSelf && plan.AllowSinglePlane.ValueBool() {
		resp.Diagnostics.AddAttributeWarning(path.Root("allow_single_control_plane"), "A control plane of fewer than three machines may be replaced",
			"If this change replaces its machine, the cluster needs a spare address and room for one more VM, and it manages its own replacement meanwhile.")
	}
}

// planComputed plans the computed attributes of an update. How the cluster is
// reached stays as it is, so that a change of the cluster is none of what stands
// on it; credentials that were renewed meanwhile come with the next refresh.
func (m *managementClusterModel) planComputed(state *managementClusterModel, secrets types.String) {
	m.Phase, m.Drift = types.StringValue(phaseReady), types.StringNull()
	m.keepCredentials(state)
	if state.Access.IsNull() { // its creation did not come so far
		for _, text := range []*types.String{&m.Kubeconfig, &m.KubeconfigExpiry, &m.Talosconfig, &m.TalosconfigExpiry, &m.ControlPlaneEndpoint} {
			*text = types.StringUnknown()
		}
		m.Access = types.ObjectUnknown(accessTypes)
	}
	m.Machines, m.Home, m.SecretsHash = state.Machines, state.Home, state.SecretsHash
	if m.needsApply(state, secrets) {
		m.Machines, m.Home, m.SecretsHash = types.ListUnknown(types.ObjectType{AttrTypes: machineTypes}), types.StringUnknown(), types.StringUnknown()
	}
}

func (m *managementClusterModel) keepCredentials(from *managementClusterModel) {
	m.Access, m.ControlPlaneEndpoint = from.Access, from.ControlPlaneEndpoint
	m.Kubeconfig, m.KubeconfigExpiry = from.Kubeconfig, from.KubeconfigExpiry
	m.Talosconfig, m.TalosconfigExpiry = from.Talosconfig, from.TalosconfigExpiry
}

// needsApply says whether anything differs that is applied to the cluster.
func (m *managementClusterModel) needsApply(state *managementClusterModel, secrets types.String) bool {
	return state.Phase.ValueString() != phaseReady || !m.Manifest.Equal(state.Manifest) || !m.Substitutions.Equal(state.Substitutions) ||
		!m.IgnoreFields.Equal(state.IgnoreFields) || !m.SecretsWOVersion.Equal(state.SecretsWOVersion) || !state.Drift.IsNull() || secretsChanged(state, secrets)
}

func refuseSelfDestroy(m *managementClusterModel) failure {
	return failure{
		verb: "destroy", thing: m.thing(),
		cause:  errors.New("it manages itself, and it cannot delete the machines that it runs on"),
		exists: "the cluster runs, and nothing was changed",
		next: "set force_destroy = true and apply; then destroy deletes exactly the VMs in state over the Proxmox API, each after a check of its UUID. " +
			"Clusters that this one manages must be moved or deleted before",
	}
}

// noBootstrap is the failure of a creation whose bootstrap cluster is not on this
// machine. It is not made again without being asked for: a lost one may have made
// machines of this very cluster, which nobody would know of then.
func noBootstrap(m *managementClusterModel, err error) failure {
	return failure{
		verb: "create", thing: m.thing(), cause: err,
		exists: "the bootstrap cluster is not on this machine: it was retired after a pivot, it was lost, or another machine has it. Nothing was made by this apply",
		next: "run this on the machine that has the bootstrap cluster, or make it again: terraform apply -replace=ADDRESS, with the address of its resource " +
			"(capi_ephemeral_cluster.NAME). If a lost one had begun with this cluster, remove the VMs that it made first",
	}
}

// Create applies the manifest to the bootstrap cluster and waits for the control
// plane to answer.
func (r *managementClusterResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan managementClusterModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	var secrets types.String
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("secrets_wo"), &secrets)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Create(ctx, managementClusterTimes.Create)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	plan.Instance = types.StringValue(uuid.NewString())
	plan.ID = types.StringValue(plan.Namespace.ValueString() + "/" + plan.Name.ValueString())
	fail := func(cause error, exists string) {
		problem := failure{verb: "create", thing: plan.thing(), cause: cause, exists: exists, next: untaintAdvice("capi_management_cluster")}
		if resp.State.Raw.IsNull() {
			problem.next = "mend the cause and run apply again"
		}
		problem.addTo(&resp.Diagnostics)
	}
	options, err := plan.options(ctx, secrets)
	if err != nil {
		fail(err, "nothing was made")
		return
	}
	err = r.data.awake(ctx, plan.Bootstrap, reporter(&plan.Phase))
	var home cluster.Home
	if err == nil {
		home, err = r.bootstrapHome(ctx, &plan)
	}
	if kube.IsAbsent(err) {
		noBootstrap(&plan, err).addTo(&resp.Diagnostics)
		return
	}
	if err != nil {
		fail(err, "nothing was made")
		return
	}
	started := func() {
		plan.Phase = types.StringValue("applying")
		plan.Home = types.StringValue(homeBootstrap)
		unfinished := plan
		unfinished.nothingMadeYet()
		resp.Diagnostics.Append(resp.State.Set(ctx, &unfinished)...)
		resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
	}
	home.Report = reporter(&plan.Phase)
	plan.SecretsHash = secretsHash(plan.Instance.ValueString(), secrets)
	created, err := home.Create(ctx, options, started)
	if err != nil {
		fail(err, "what was applied stays, with its machines, in the bootstrap cluster")
		if !resp.State.Raw.IsNull() {
			resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("phase"), plan.Phase)...)
		}
		return
	}
	resp.Diagnostics.Append(r.finish(ctx, &plan, home, created)...)
	r.warnOfStrays(ctx, home, &resp.Diagnostics)
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
}

// Update applies a changed manifest at the cluster's home. Where neither manifest
// nor Secrets changed it only stores what the configuration says.
func (r *managementClusterResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state managementClusterModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	var secrets types.String
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("secrets_wo"), &secrets)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Update(ctx, managementClusterTimes.Update)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	plan.Instance, plan.ID = state.Instance, state.ID
	if plan.Instance.IsNull() {
		plan.Instance = types.StringValue(uuid.NewString())
	}
	if !plan.Machines.IsUnknown() {
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
		resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
		return
	}
	planned := plan
	options, err := plan.options(ctx, secrets)
	if err == nil {
		plan.SecretsHash = secretsHash(plan.Instance.ValueString(), secrets)
		err = r.update(ctx, &plan, &state, options)
	}
	if err != nil {
		failure{verb: "update", thing: plan.thing(), cause: err, exists: "the cluster runs on; what was applied stays", next: "mend the cause and apply again, which continues"}.addTo(&resp.Diagnostics)
		state.Phase = phaseAfterFailure(plan.Phase, state.Phase)
		resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
		return
	}
	if !planned.Access.IsUnknown() {
		plan.keepCredentials(&planned)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
}

func (r *managementClusterResource) update(ctx context.Context, plan, state *managementClusterModel, options cluster.ApplyOptions) error {
	found, err := r.findHomeAwake(ctx, state, reporter(&plan.Phase))
	if err != nil {
		return err
	}
	plan.Home = types.StringValue(found.kind)
	found.home.Report = reporter(&plan.Phase)
	updated, err := found.home.Update(ctx, options, found.kind == homeSelf, plan.AllowSinglePlane.ValueBool())
	if err != nil {
		return err
	}
	if diags := r.finish(ctx, plan, found.home, updated); diags.HasError() {
		return fmt.Errorf("%s: %s", diags[0].Summary(), diags[0].Detail())
	}
	return nil
}

// Delete removes the cluster and its machines where the bootstrap cluster holds
// it, and leaves an unfinished one to the Create of a plain replacement.
func (r *managementClusterResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state managementClusterModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	forGood, diags := destroyPlanned(ctx, req.Private)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	if !forGood && state.Phase.ValueString() != phaseReady {
		return
	}
	timeout, diags := state.Timeouts.Delete(ctx, managementClusterTimes.Delete)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := r.findHomeAwake(ctx, &state, reporter(&state.Phase))
	switch {
	case kube.IsAbsent(err):
		return
	case err == nil && found.kind == homeBootstrap:
		var left error
		left, err = r.deleteAtHome(ctx, &state, found.home)
		if left != nil {
			failure{
				verb: "look for clones that belong to no machine of", thing: state.thing(), cause: left, exists: "the cluster and its machines are gone",
				next: "look in Proxmox VE for stopped VMs with the name of one of its machines, and remove them",
			}.warn(&resp.Diagnostics)
		}
		if err == nil {
			return
		}
	case state.ForceDestroy.ValueBool():
		if err = r.destroyVMs(ctx, &state, found); err == nil {
			return
		}
	case err == nil:
		refuseSelfDestroy(&state).addTo(&resp.Diagnostics)
		return
	}
	failure{
		verb: "destroy", thing: state.thing(), cause: err, exists: "the cluster and its machines, as far as they were not deleted yet",
		next: "mend the cause and run destroy again. If the cluster that managed it is lost for good, set force_destroy = true, apply, and destroy: " +
			"that deletes exactly the VMs in state",
	}.addTo(&resp.Diagnostics)
}

func (r *managementClusterResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	id, err := importedObject(ctx, req)
	if err != nil {
		failure{verb: "import", thing: "the management cluster", cause: err}.addTo(&resp.Diagnostics)
		return
	}
	imported := managementClusterModel{Namespace: types.StringValue(id.Namespace), Name: types.StringValue(id.Name)}
	for name, value := range map[string]any{
		"id": types.StringValue(id.Namespace + "/" + id.Name), "bootstrap": accessObject(id.access()),
		"namespace": imported.Namespace, "name": imported.Name, "phase": types.StringValue(phaseReady),
		"force_destroy": types.BoolValue(false), "allow_single_control_plane": types.BoolValue(false),
	} {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), value)...)
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, imported.identity())...)
}
