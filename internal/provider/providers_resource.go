// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

var (
	_ resource.ResourceWithConfigure      = (*providersResource)(nil)
	_ resource.ResourceWithImportState    = (*providersResource)(nil)
	_ resource.ResourceWithIdentity       = (*providersResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*providersResource)(nil)
	_ resource.ResourceWithValidateConfig = (*providersResource)(nil)
)

var providersTimes = defaultTimeouts{Create: 45 * time.Minute, Read: 2 * time.Minute, Update: 45 * time.Minute, Delete: 30 * time.Minute}

type providersResource struct {
	data *providerData
}

func newProvidersResource() resource.Resource { return &providersResource{} }

func (r *providersResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_providers"
}

func (r *providersResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configuredData(req, resp)
}

// ValidateConfig judges versions and the set of providers from the text alone.
func (r *providersResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var config providersModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(config.check(ctx)...)
	}
}

// ModifyPlan keeps what an update that changes nothing on the cluster leaves as
// it is: a new kubeconfig of the same cluster, another timeout.
func (r *providersResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		return
	}
	planPhase(ctx, resp)
	if req.State.Raw.IsNull() || resp.Diagnostics.HasError() {
		return
	}
	var plan, state providersModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	cluster := compareAccess(ctx, state.Cluster, plan.Cluster)
	if cluster == otherCluster {
		resp.Diagnostics.AddAttributeWarning(path.Root("cluster"), "The providers go to another cluster",
			"They will be installed there, and those on the first cluster stay and are forgotten.")
	}
	plan.Installed, plan.ClusterUID, plan.ID = types.MapUnknown(types.StringType), types.StringUnknown(), types.StringUnknown()
	if cluster == sameCluster {
		plan.ClusterUID, plan.ID = state.ClusterUID, state.ID
	}
	if cluster == sameCluster && state.Phase.ValueString() == phaseReady && plan.wants(&state) {
		plan.Installed = state.Installed
	} else if cluster == sameCluster {
		resp.Diagnostics.Append(planChanges(ctx, &plan, &state)...)
	}
	if state.Instance.IsNull() {
		plan.Instance = types.StringUnknown()
	}
	for name, value := range map[string]any{"installed": plan.Installed, "cluster_uid": plan.ClusterUID, "id": plan.ID, "instance": plan.Instance} {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root(name), value)...)
	}
}

// Create installs everything, and takes up what an earlier run left unfinished.
func (r *providersResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan providersModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Create(ctx, providersTimes.Create)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	plan.Instance = types.StringValue(uuid.NewString())
	started := func() error {
		unfinished := plan
		unfinished.Phase = types.StringValue("starting")
		unfinished.nothingKnown()
		resp.Diagnostics.Append(resp.State.Set(ctx, &unfinished)...)
		resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
		return firstError(resp.Diagnostics)
	}
	err := r.ensure(ctx, &plan, false, started)
	if err != nil {
		problem := failure{verb: "install", thing: plan.thing(), cause: err, exists: "nothing was made", next: "mend the cause and run apply again"}
		if !resp.State.Raw.IsNull() {
			problem.exists = "what was installed before the step " + plan.Phase.ValueString() + " and during it"
			problem.next = untaintAdvice("capi_providers")
		}
		problem.addTo(&resp.Diagnostics)
		if resp.State.Raw.IsNull() {
			return
		}
	}
	plan.nothingKnown()
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
}

// ensure has the engine bring everything about. started is called once the
// cluster has answered, before anything is made.
func (r *providersResource) ensure(ctx context.Context, m *providersModel, adopt bool, started func() error) error {
	install, err := m.engine(ctx, adopt)
	if err != nil {
		return err
	}
	if err := r.data.awake(ctx, m.Cluster, reporter(&m.Phase)); err != nil {
		return err
	}
	client, uid, err := r.data.reach(ctx, m.Cluster)
	if err != nil {
		return err
	}
	m.ClusterUID, m.ID = types.StringValue(uid), types.StringValue(uid)
	if err := started(); err != nil {
		return err
	}
	if err := install(client); err != nil {
		return err
	}
	installed, err := capi.Inventory(ctx, client.Config)
	if err != nil {
		return err
	}
	m.store(ctx, installed)
	m.Phase = types.StringValue(phaseReady)
	return nil
}

// engine answers the engine of the method, with what it is to bring about.
func (m *providersModel) engine(ctx context.Context, adopt bool) (func(*kube.Client) error, error) {
	if m.method() == capi.Clusterctl {
		options, err := m.clusterctlOptions(ctx)
		options.Adopt = adopt
		return func(c *kube.Client) error { return capi.Init(ctx, c.Config, options, reporter(&m.Phase)) }, err
	}
	options, err := m.operatorOptions(ctx)
	options.Adopt = adopt
	return func(c *kube.Client) error { return capi.EnsureOperator(ctx, c, options, reporter(&m.Phase)) }, err
}

// Read drops the providers from state only when the very cluster that they were
// installed on says that it has none of the method.
func (r *providersResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state providersModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, state.identity())...)
	timeout, diags := state.Timeouts.Read(ctx, providersTimes.Read)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, uid, installed, err := r.look(ctx, &state)
	if err != nil {
		failure{verb: "refresh", thing: state.thing(), cause: err, exists: "the prior state is kept"}.warn(&resp.Diagnostics)
		return
	}
	there := slices.ContainsFunc(installed, func(i capi.Installed) bool { return i.Method == state.method() })
	if !there && state.Phase.ValueString() == phaseReady {
		resp.State.RemoveResource(ctx)
		return
	}
	state.ClusterUID, state.ID = types.StringValue(uid), types.StringValue(uid)
	if complete := state.store(ctx, installed); !complete && state.Phase.ValueString() == phaseReady {
		state.Phase = types.StringValue(phaseDrifted)
	}
	if err := state.finish(ctx, client); err != nil {
		failure{verb: "refresh", thing: state.thing(), cause: err, exists: "the providers work"}.warn(&resp.Diagnostics)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, state.identity())...)
}

// finish writes the mark that keeps other resources off. It is written here,
// where the state holds the resource for sure: until then a run that lost its
// state takes the providers up.
func (m *providersModel) finish(ctx context.Context, client *kube.Client) error {
	if m.method() != capi.Clusterctl || m.Phase.ValueString() != phaseReady || m.Instance.IsNull() {
		return nil
	}
	return capi.Finish(ctx, client.Config, m.Instance.ValueString())
}

// look reads the inventory of the cluster that the providers were installed on.
func (r *providersResource) look(ctx context.Context, state *providersModel) (*kube.Client, string, []capi.Installed, error) {
	client, uid, err := r.data.reachSame(ctx, state.Cluster, state.ClusterUID, "they were installed on")
	if err != nil {
		return nil, "", nil, err
	}
	installed, err := capi.Inventory(ctx, client.Config)
	return client, uid, installed, err
}

// Update changes versions and variables in place, finishes what is unfinished,
// or only stores what changes nothing on the cluster.
func (r *providersResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	updateOnCluster(ctx, req, resp, providersTimes.Update, func(ctx context.Context, plan, state *providersModel) *failure {
		err := r.ensure(ctx, plan, state.Phase.ValueString() == phaseImported, func() error { return nil })
		if err == nil {
			return nil
		}
		return &failure{
			verb: "update", thing: plan.thing(), cause: err, exists: "what was installed before, and what was changed before the step " + plan.Phase.ValueString(),
			next: "mend the cause and apply again, which continues",
		}
	})
}

// Delete does as on_destroy says. In a replacement it leaves what is unfinished
// to the Create that follows.
func (r *providersResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state providersModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	forGood, diags := destroyPlanned(ctx, req.Private)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() || !forGood && state.Phase.ValueString() != phaseReady || state.OnDestroy.ValueString() == onDestroyForget {
		return
	}
	timeout, diags := state.Timeouts.Delete(ctx, providersTimes.Delete)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stay, err := r.remove(ctx, &state)
	if err != nil {
		failure{
			verb: "remove", thing: state.thing(), cause: err, exists: "the providers, as far as they were not removed yet",
			next: "mend the cause and run destroy again. If the cluster is lost for good, set on_destroy = \"forget\", apply, and destroy",
		}.addTo(&resp.Diagnostics)
	}
	if len(stay) > 0 {
		resp.Diagnostics.AddWarning("The providers stay", sentence(fmt.Sprintf("%s were forgotten and not removed, since their cluster holds Cluster API clusters: %s. "+
			"Set on_destroy = \"remove\" and apply before a destroy that shall remove them", state.thing(), strings.Join(stay, ", "))))
	}
}

// remove answers the Clusters for whose sake nothing was removed.
func (r *providersResource) remove(ctx context.Context, state *providersModel) (stay []string, err error) {
	if err := r.data.awake(ctx, state.Cluster, reporter(nil)); err != nil {
		return nil, err
	}
	client, _, err := r.data.reachSame(ctx, state.Cluster, state.ClusterUID, "they were installed on")
	switch {
	case kube.IsAbsent(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if state.OnDestroy.ValueString() != onDestroyRemove {
		stay, err = capi.Clusters(ctx, client.Config)
		if err != nil || len(stay) > 0 {
			return stay, err
		}
	}
	if state.method() == capi.Clusterctl {
		return nil, capi.RemoveClusterctl(ctx, client.Config, state.Instance.ValueString(), reporter(nil))
	}
	certManager, _, _ := state.certManager(ctx)
	return nil, capi.RemoveOperator(ctx, client, state.Instance.ValueString(), certManager != nil, reporter(nil))
}

// ImportState takes the path of a kubeconfig file or an entry of the provider's
// clusters map. The configuration brings the rest, with an update in place.
func (r *providersResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	cluster := req.ID
	if cluster == "" {
		var identity providersIdentity
		resp.Diagnostics.Append(req.Identity.Get(ctx, &identity)...)
		cluster = identity.Cluster.ValueString()
	}
	if cluster == "" {
		failure{verb: "import", thing: "the providers", cause: errors.New("the import needs the path of a kubeconfig file or an entry of the provider's clusters map")}.addTo(&resp.Diagnostics)
		return
	}
	model := providersModel{Cluster: accessObject(clusterObjectID{Cluster: cluster}.access())}
	_, uid, err := r.data.reach(ctx, model.Cluster)
	if err != nil {
		failure{verb: "import", thing: "the providers on " + cluster, cause: err}.addTo(&resp.Diagnostics)
		return
	}
	model.ClusterUID = types.StringValue(uid)
	for name, value := range map[string]any{"cluster": model.Cluster, "id": model.ClusterUID, "cluster_uid": model.ClusterUID, "phase": types.StringValue(phaseImported)} {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), value)...)
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, model.identity())...)
}
