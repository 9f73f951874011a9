// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

var (
	_ resource.ResourceWithConfigure      = (*helmReleaseResource)(nil)
	_ resource.ResourceWithImportState    = (*helmReleaseResource)(nil)
	_ resource.ResourceWithIdentity       = (*helmReleaseResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*helmReleaseResource)(nil)
	_ resource.ResourceWithValidateConfig = (*helmReleaseResource)(nil)
)

var helmReleaseTimes = defaultTimeouts{Create: 20 * time.Minute, Read: 2 * time.Minute, Update: 20 * time.Minute, Delete: 10 * time.Minute}

// helmLeases are the times of the leases on unfinished releases.
var helmLeases kube.Leases

type helmReleaseResource struct {
	data *providerData
}

func newHelmReleaseResource() resource.Resource { return &helmReleaseResource{} }

func (r *helmReleaseResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_helm_release"
}

func (r *helmReleaseResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configuredData(req, resp)
}

func (r *helmReleaseResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"cluster":   identityschema.StringAttribute{OptionalForImport: true, Description: "Path of a kubeconfig file, or entry of the provider's clusters map, of the cluster that the release is on."},
		"namespace": identityschema.StringAttribute{RequiredForImport: true, Description: "Namespace of the release."},
		"name":      identityschema.StringAttribute{RequiredForImport: true, Description: "Name of the release."},
	}}
}

func (r *helmReleaseResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var config helmReleaseModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(config.check()...)
	}
}

// ModifyPlan keeps what an update that changes nothing on the cluster leaves as
// it is: a new kubeconfig of the same cluster, another timeout.
func (r *helmReleaseResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		return
	}
	planPhase(ctx, resp)
	if req.State.Raw.IsNull() || resp.Diagnostics.HasError() {
		return
	}
	var plan, state helmReleaseModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	cluster := compareAccess(ctx, state.Cluster, plan.Cluster)
	if cluster == otherCluster {
		resp.Diagnostics.AddAttributeWarning(path.Root("cluster"), "The release goes to another cluster",
			sentence(plan.thing()+" will be installed there, and the one on the first cluster stays and is forgotten"))
	}
	computed := map[string]any{
		"revision": types.Int64Unknown(), "status": types.StringUnknown(), "chart_version": types.StringUnknown(),
		"app_version": types.StringUnknown(), "cluster_uid": types.StringUnknown(),
	}
	if cluster == sameCluster {
		computed["cluster_uid"] = state.ClusterUID
	}
	if cluster == sameCluster && state.Phase.ValueString() == phaseReady && plan.wants(&state) {
		computed = map[string]any{
			"revision": state.Revision, "status": state.Status, "chart_version": state.ChartVersion,
			"app_version": state.AppVersion, "cluster_uid": state.ClusterUID,
		}
	}
	for name, value := range computed {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root(name), value)...)
	}
}

func (r *helmReleaseResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan helmReleaseModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Create(ctx, helmReleaseTimes.Create)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	plan.Instance = types.StringValue(uuid.NewString())
	plan.ID = types.StringValue(plan.Namespace.ValueString() + "/" + plan.Name.ValueString())

	released, err := r.ensure(ctx, &plan, false)
	if err != nil {
		problem := failure{verb: "install", thing: plan.thing(), cause: err, exists: "no release was made", next: nextAfterHelm(err, "mend the cause and run apply again")}
		if released != nil {
			problem.exists = fmt.Sprintf("revision %d of the release, with the status %s", released.Revision, released.Status)
			problem.next = untaintAdvice("capi_helm_release")
		}
		problem.addTo(&resp.Diagnostics)
		if released == nil {
			return
		}
	}
	plan.nothingKnown()
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
}

// ensure has the engine bring the release about and takes its record over into
// the model. Phase is then ready, or that of the step that failed.
func (r *helmReleaseResource) ensure(ctx context.Context, m *helmReleaseModel, adopt bool) (*helm.Release, error) {
	spec, err := m.spec()
	if err != nil {
		return nil, err
	}
	spec.Adopt = adopt
	client, uid, err := r.reach(ctx, m)
	if err != nil {
		return nil, err
	}
	m.ClusterUID = types.StringValue(uid)
	released, err := helm.Engine{Leases: helmLeases, Report: reporter(&m.Phase)}.Ensure(ctx, client, spec)
	if released != nil {
		m.store(released)
	}
	if err == nil {
		m.Phase = types.StringValue(phaseReady)
	}
	return released, err
}

// reach answers a client for the release's cluster and the cluster's identity.
func (r *helmReleaseResource) reach(ctx context.Context, m *helmReleaseModel) (*kube.Client, string, error) {
	access, known, diags := accessFrom(ctx, m.Cluster)
	if err := firstError(diags); err != nil {
		return nil, "", err
	}
	if !known {
		return nil, "", errConfigurationUnknown
	}
	client, err := r.data.connect(ctx, access)
	if err != nil {
		return nil, "", err
	}
	uid, err := client.UID(ctx)
	return client, uid, err
}

func nextAfterHelm(err error, otherwise string) string {
	if errors.Is(err, helm.ErrForeign) {
		return "choose another name, uninstall that release, or import it: terraform import ADDRESS CLUSTER#NAMESPACE/NAME, where CLUSTER is the " +
			"path of a kubeconfig file or an entry of the provider's clusters map"
	}
	return otherwise
}

// Read drops the release from state only when the very cluster that it was
// installed on says that it is not there.
func (r *helmReleaseResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state helmReleaseModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, state.identity())...)
	timeout, diags := state.Timeouts.Read(ctx, helmReleaseTimes.Read)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	unknown := func(cause error) {
		failure{verb: "refresh", thing: state.thing(), cause: cause, exists: "the prior state is kept"}.warn(&resp.Diagnostics)
	}
	client, uid, err := r.reach(ctx, &state)
	if err != nil {
		unknown(err)
		return
	}
	if given(state.ClusterUID) && state.ClusterUID.ValueString() != uid {
		unknown(fmt.Errorf("another cluster (%s) answers at %s than the one that it was installed on (%s)", uid, client.Config.Host, state.ClusterUID.ValueString()))
		return
	}
	released, err := helm.Read(ctx, client, state.Namespace.ValueString(), state.Name.ValueString())
	switch {
	case kube.IsAbsent(err):
		resp.State.RemoveResource(ctx)
		return
	case err != nil:
		unknown(err)
		return
	}
	state.ClusterUID = types.StringValue(uid)
	if state.Phase.ValueString() != phaseImported {
		state.Phase = types.StringValue(state.phaseOf(released))
	}
	state.store(released)
	if state.Instance.IsNull() {
		state.Instance = textOrNull(released.Owner)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
}

// Update upgrades the release, finishes an unfinished one, or only stores what
// changes nothing on the cluster.
func (r *helmReleaseResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state helmReleaseModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Update(ctx, helmReleaseTimes.Update)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	adopt := state.Phase.ValueString() == phaseImported || state.Instance.IsNull()
	if plan.Instance.IsUnknown() || plan.Instance.IsNull() {
		plan.Instance = types.StringValue(uuid.NewString())
	}
	if !plan.Revision.IsUnknown() {
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
		resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
		return
	}
	if released, err := r.ensure(ctx, &plan, adopt); err != nil {
		problem := failure{verb: "upgrade", thing: plan.thing(), cause: err, exists: "the release as it was before", next: nextAfterHelm(err, "mend the cause and apply again, which continues")}
		if released != nil {
			problem.exists = fmt.Sprintf("revision %d of the release, with the status %s", released.Revision, released.Status)
		}
		problem.addTo(&resp.Diagnostics)
		// What was asked for before stays in state, so that the next plan shows the
		// change again; the phase says that it is unfinished.
		state.Instance, state.Phase = plan.Instance, types.StringValue("update-failed")
		if released != nil {
			state.Revision, state.Status = plan.Revision, plan.Status
		}
		plan = state
	}
	plan.nothingKnown()
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
}

// Delete does as on_destroy says. In a replacement it leaves an unfinished
// release to the Create that follows.
func (r *helmReleaseResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state helmReleaseModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	forGood, diags := destroyPlanned(ctx, req.Private)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() || !forGood && state.Phase.ValueString() != phaseReady || state.OnDestroy.ValueString() == onDestroyForget {
		return
	}
	timeout, diags := state.Timeouts.Delete(ctx, helmReleaseTimes.Delete)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := r.remove(ctx, &state, forGood, &resp.Diagnostics); err != nil {
		failure{
			verb: "uninstall", thing: state.thing(), cause: err, exists: "the release, as far as it was not removed yet",
			next: "mend the cause and run destroy again. If the cluster is lost for good, set on_destroy = \"forget\", apply, and destroy",
		}.addTo(&resp.Diagnostics)
	}
}

func (r *helmReleaseResource) remove(ctx context.Context, state *helmReleaseModel, forGood bool, diags *diag.Diagnostics) error {
	client, uid, err := r.reach(ctx, state)
	switch {
	case kube.IsAbsent(err):
		return nil
	case err != nil:
		return err
	case given(state.ClusterUID) && state.ClusterUID.ValueString() != uid:
		return fmt.Errorf("another cluster (%s) answers at %s than the one that it was installed on (%s)", uid, client.Config.Host, state.ClusterUID.ValueString())
	}
	if state.OnDestroy.ValueString() != onDestroyRemove && forGood {
		clusters, err := capi.Clusters(ctx, client.Config)
		if err != nil {
			return err
		}
		if len(clusters) > 0 {
			diags.AddWarning("The Helm release stays", sentence(fmt.Sprintf("%s was forgotten and not uninstalled, since its cluster holds Cluster API clusters: %s. "+
				"Set on_destroy = \"remove\" and apply before a destroy that shall uninstall it", state.thing(), strings.Join(clusters, ", "))))
			return nil
		}
	}
	return helm.Remove(ctx, client, state.Namespace.ValueString(), state.Name.ValueString(), state.Instance.ValueString(), reporter(nil))
}

// ImportState takes CLUSTER#NAMESPACE/NAME, or the resource identity.
func (r *helmReleaseResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	id, err := importedObject(ctx, req)
	if err != nil {
		failure{verb: "import", thing: "the Helm release", cause: err}.addTo(&resp.Diagnostics)
		return
	}
	imported := helmReleaseModel{Namespace: types.StringValue(id.Namespace), Name: types.StringValue(id.Name)}
	for name, value := range map[string]any{
		"id": types.StringValue(id.Namespace + "/" + id.Name), "cluster": accessObject(id.access()),
		"namespace": imported.Namespace, "name": imported.Name, "phase": types.StringValue(phaseImported),
	} {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), value)...)
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, imported.identity())...)
}
