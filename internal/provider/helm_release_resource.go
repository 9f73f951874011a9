// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

var (
	_ resource.ResourceWithConfigure      = (*helmReleaseResource)(nil)
	_ resource.ResourceWithImportState    = (*helmReleaseResource)(nil)
	_ resource.ResourceWithIdentity       = (*helmReleaseResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*helmReleaseResource)(nil)
	_ resource.ResourceWithMoveState      = (*helmReleaseResource)(nil)
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
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("set_wo"), &plan.SetWO)...)
	started := func() error {
		unfinished := plan
		unfinished.SetWO = types.ListNull(setType)
		unfinished.Phase = types.StringValue("starting")
		unfinished.nothingKnown()
		resp.Diagnostics.Append(resp.State.Set(ctx, &unfinished)...)
		resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
		return firstError(resp.Diagnostics)
	}
	unfinished := func(names []string) { plan.warnUnfinished(names, &resp.Diagnostics) }
	released, err := r.ensure(ctx, &plan, attempt{started: started, unfinished: unfinished})
	if err != nil {
		problem := failure{verb: "install", thing: plan.thing(), cause: err, exists: "no release was made", next: nextAfterHelm(err, "mend the cause and run apply again")}
		if released != nil {
			problem.exists = whatExists(released)
			problem.next = nextAfterHelm(err, untaintAdvice("capi_helm_release"))
		}
		problem.addTo(&resp.Diagnostics)
		if released == nil {
			resp.State.RemoveResource(ctx)
			return
		}
	}
	if err == nil {
		resp.Diagnostics.Append(markApplied(ctx, resp.Private, released)...)
		plan.warnTaken(released, &resp.Diagnostics)
	}
	plan.nothingKnown()
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(resp.Identity.Set(ctx, plan.identity())...)
}

// warnTaken tells of a finished release of the same configuration that was
// there. As a rule a run made it that was killed before it could save its state.
func (m *helmReleaseModel) warnTaken(released *helm.Release, diags *diag.Diagnostics) {
	if released.TakenFrom != "" {
		diags.AddWarning("The Helm release was there already", sentence(fmt.Sprintf("%s was found with this very chart and values, made by another resource of this provider (%s), "+
			"and was taken over. Should another state hold that resource, remove it there: terraform state rm ADDRESS", m.thing(), released.TakenFrom)))
	}
}

// warnUnfinished names what killed runs have left. One of them may be this very
// release, under the name that the configuration gave it then.
func (m *helmReleaseModel) warnUnfinished(names []string, diags *diag.Diagnostics) {
	others := slices.DeleteFunc(names, func(name string) bool { return name == m.ID.ValueString() })
	if len(others) > 0 {
		diags.AddWarning("Unfinished Helm releases are there", sentence(fmt.Sprintf("interrupted runs of this provider have left %s on the cluster of %s. "+
			"An apply that wants one of them takes it up; what nobody wants any more has to be uninstalled", strings.Join(others, ", "), m.thing())))
	}
}

// attempt says what is special about one time that a release is brought about.
type attempt struct {
	// adopt takes the release up whoever made it, repair brings its objects back.
	adopt, repair bool
	// version is what a range of versions came to before; may be empty.
	version string
	// clusterUID is the cluster that the resource's release is on; may be empty.
	clusterUID string
	// started is called before anything is written; may be nil.
	started func() error
	// unfinished is called with the other releases that interrupted runs have left
	// on the cluster; may be nil.
	unfinished func(names []string)
}

// ensure has the engine bring the release about and takes its record over into
// the model. Phase is then ready, or that of the step that failed.
func (r *helmReleaseResource) ensure(ctx context.Context, m *helmReleaseModel, how attempt) (*helm.Release, error) {
	spec, err := m.spec(ctx)
	m.SetWO = types.ListNull(setType)
	if err != nil {
		return nil, err
	}
	if spec.Chart.Logins, err = r.data.registryLogins(); err != nil {
		return nil, err
	}
	spec.Adopt, spec.Repair = how.adopt, how.repair
	if how.version != "" {
		spec.Chart.Version = how.version
	}
	if err := m.asPlanned(spec.Chart); err != nil {
		return nil, err
	}
	if err := r.data.awake(ctx, m.Cluster, reporter(&m.Phase)); err != nil {
		return nil, err
	}
	client, uid, err := r.data.reach(ctx, m.Cluster)
	if err != nil {
		return nil, err
	}
	m.ClusterUID = types.StringValue(uid)
	spec.AdoptUnmarked = how.clusterUID == uid
	if how.unfinished != nil {
		// Where the API server fails, what follows tells it.
		if names, err := helm.Unfinished(ctx, client); err == nil {
			how.unfinished(names)
		}
	}
	released, err := helm.Engine{Leases: helmLeases, Report: reporter(&m.Phase), Started: how.started}.Ensure(ctx, client, spec)
	if released != nil {
		m.store(released)
	}
	if err == nil {
		m.Phase = types.StringValue(phaseReady)
	}
	return released, err
}

// asPlanned refuses a chart on this machine that has changed since the plan.
func (m *helmReleaseModel) asPlanned(chart helm.Chart) error {
	if !chart.Local() || !given(m.ChartDigest) {
		return nil
	}
	content, err := chart.Inspect()
	if err == nil && content.Digest != m.ChartDigest.ValueString() {
		err = errors.New("its files have changed since the plan")
	}
	if err != nil {
		return fmt.Errorf("loading chart %s: %w", chart, err)
	}
	return nil
}

func whatExists(released *helm.Release) string {
	if released.Revision == 0 {
		return "the release, as far as it was made; its record could not be read"
	}
	return fmt.Sprintf("revision %d of the release, with the status %s", released.Revision, released.Status)
}

func nextAfterHelm(err error, otherwise string) string {
	if errors.Is(err, helm.ErrForeign) {
		return "choose another name, uninstall that release, or import it: terraform import ADDRESS CLUSTER#NAMESPACE/NAME, where CLUSTER is the " +
			"path of a kubeconfig file or an entry of the provider's clusters map"
	}
	if errors.Is(err, helm.ErrUnfinished) {
		return "look at the release, and set recover to what shall be done with it: retry, rollback or replace"
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
	if state.Cluster.IsNull() {
		// It was moved here from another provider, and the configuration says how its
		// cluster is reached.
		return
	}
	client, uid, err := r.data.reachSame(ctx, state.Cluster, state.ClusterUID, "it was installed on")
	if err != nil {
		unknown(err)
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
	applied, diags := appliedRevision(ctx, req.Private)
	resp.Diagnostics.Append(diags...)
	if state.Phase.ValueString() != phaseImported {
		state.Phase = types.StringValue(state.phaseOf(ctx, released, applied))
	}
	state.store(released)
	state.Drift = types.StringNull()
	if state.Phase.ValueString() == phaseReady && state.DetectDrift.ValueBool() {
		drift, err := helm.Drift(ctx, client, state.Namespace.ValueString(), state.Name.ValueString(), state.ShowValues.ValueBool())
		if err != nil {
			failure{verb: "compare the objects of", thing: state.thing(), cause: err, exists: "the release; whether its objects were changed is not known"}.warn(&resp.Diagnostics)
		}
		if len(drift) > 0 {
			state.Phase, state.Drift = types.StringValue(phaseDrifted), types.StringValue(strings.Join(drift, "\n"))
		}
	}
	if state.Instance.IsNull() {
		state.Instance = textOrNull(released.Owner)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
}

// Update upgrades the release, finishes an unfinished one, or only stores what
// changes nothing on the cluster.
func (r *helmReleaseResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	updateOnCluster(ctx, req, resp, helmReleaseTimes.Update, func(ctx context.Context, plan, state *helmReleaseModel) *failure {
		resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("set_wo"), &plan.SetWO)...)
		how := attempt{
			adopt:      state.Phase.ValueString() == phaseImported || state.Instance.IsNull(),
			repair:     state.Phase.ValueString() == phaseDrifted && plan.DetectDrift.ValueBool(),
			clusterUID: state.ClusterUID.ValueString(),
		}
		if plan.pinned(state) {
			how.version = state.ChartVersion.ValueString()
		}
		released, err := r.ensure(ctx, plan, how)
		if err == nil {
			resp.Diagnostics.Append(markApplied(ctx, resp.Private, released)...)
			return nil
		}
		problem := &failure{verb: "upgrade", thing: plan.thing(), cause: err, exists: "the release as it was before", next: nextAfterHelm(err, "mend the cause and apply again, which continues")}
		if released != nil {
			problem.exists = whatExists(released)
			state.Revision, state.Status = plan.Revision, plan.Status
		}
		return problem
	})
}

// appliedKey is the key in private state of the revision that the last
// successful apply ended with.
const appliedKey = "revision"

func markApplied(ctx context.Context, private privateWriter, released *helm.Release) diag.Diagnostics {
	return private.SetKey(ctx, appliedKey, []byte(strconv.Itoa(released.Revision)))
}

// appliedRevision answers zero where none was noted.
func appliedRevision(ctx context.Context, private privateReader) (int, diag.Diagnostics) {
	value, diags := private.GetKey(ctx, appliedKey)
	revision, err := strconv.Atoi(string(value))
	if err != nil {
		return 0, diags
	}
	return revision, diags
}
