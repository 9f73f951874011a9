// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
)

// What a destroy does with a release on its cluster.
const (
	onDestroyAuto   = "auto"
	onDestroyRemove = "remove"
	onDestroyForget = "forget"
)

type helmReleaseModel struct {
	ID                 types.String   `tfsdk:"id"`
	Cluster            types.Object   `tfsdk:"cluster"`
	Name               types.String   `tfsdk:"name"`
	Namespace          types.String   `tfsdk:"namespace"`
	CreateNamespace    types.Bool     `tfsdk:"create_namespace"`
	Chart              types.String   `tfsdk:"chart"`
	Repository         types.String   `tfsdk:"repository"`
	RepositoryUsername types.String   `tfsdk:"repository_username"`
	RepositoryPassword types.String   `tfsdk:"repository_password"`
	Version            types.String   `tfsdk:"version"`
	Values             types.List     `tfsdk:"values"`
	Set                types.List     `tfsdk:"set"`
	SetList            types.List     `tfsdk:"set_list"`
	SetWO              types.List     `tfsdk:"set_wo"`
	SetWOVersion       types.String   `tfsdk:"set_wo_version"`
	ShowValues         types.Bool     `tfsdk:"show_values"`
	Wait               types.Bool     `tfsdk:"wait"`
	WaitForJobs        types.Bool     `tfsdk:"wait_for_jobs"`
	Atomic             types.Bool     `tfsdk:"atomic"`
	SkipCRDs           types.Bool     `tfsdk:"skip_crds"`
	Recover            types.String   `tfsdk:"recover"`
	DetectDrift        types.Bool     `tfsdk:"detect_drift"`
	DeleteCRDs         types.Bool     `tfsdk:"delete_crds"`
	OnDestroy          types.String   `tfsdk:"on_destroy"`
	Revision           types.Int64    `tfsdk:"revision"`
	Status             types.String   `tfsdk:"status"`
	ChartVersion       types.String   `tfsdk:"chart_version"`
	ChartDigest        types.String   `tfsdk:"chart_digest"`
	Changes            types.String   `tfsdk:"changes"`
	Drift              types.String   `tfsdk:"drift"`
	AppVersion         types.String   `tfsdk:"app_version"`
	ClusterUID         types.String   `tfsdk:"cluster_uid"`
	Instance           types.String   `tfsdk:"instance"`
	Phase              types.String   `tfsdk:"phase"`
	Timeouts           timeouts.Value `tfsdk:"timeouts"`
}

func (m *helmReleaseModel) identity() any { return identityOf(m.Namespace, m.Name) }

func (m *helmReleaseModel) updating() updating {
	return updating{Timeouts: m.Timeouts, Instance: &m.Instance, Phase: &m.Phase, Pending: m.Revision.IsUnknown()}
}

func (m *helmReleaseModel) thing() string {
	return "the Helm release " + m.Namespace.ValueString() + "/" + m.Name.ValueString()
}

// check answers what is wrong with the configuration as far as it is known.
func (m *helmReleaseModel) check(ctx context.Context) diag.Diagnostics {
	var diags diag.Diagnostics
	if given(m.Name) {
		if err := helm.CheckName(m.Name.ValueString()); err != nil {
			diags.AddAttributeError(path.Root("name"), "Unable to use the release's name", sentence(err.Error()))
		}
	}
	if given(m.Version) {
		if err := helm.CheckVersion(m.Version.ValueString()); err != nil {
			diags.AddAttributeError(path.Root("version"), "Unable to use the chart's version", sentence(err.Error()))
		}
	}
	if given(m.Chart) && !m.Repository.IsUnknown() {
		if err := (helm.Chart{Ref: m.Chart.ValueString(), Repository: m.Repository.ValueString()}).Check(); err != nil {
			diags.AddAttributeError(path.Root("chart"), "Unable to use the chart", sentence(err.Error()))
		}
	}
	for _, values := range []struct {
		list types.List
		at   string
	}{{m.Set, "set"}, {m.SetWO, "set_wo"}} {
		sets, _ := setsFrom(ctx, values.list)
		if err := helm.SetValues(map[string]any{}, sets); err != nil {
			diags.AddAttributeError(path.Root(values.at), "Unable to set a value", sentence(err.Error()))
		}
	}
	if lists, _ := setListsFrom(ctx, m.SetList); helm.SetValues(map[string]any{}, lists) != nil {
		diags.AddAttributeError(path.Root("set_list"), "Unable to set a list", sentence(helm.SetValues(map[string]any{}, lists).Error()))
	}
	documents, known := textList(m.Values)
	if !known {
		return diags
	}
	if _, err := helm.MergeValues(documents); err != nil {
		diags.AddAttributeError(path.Root("values"), "Unable to read the values", sentence(err.Error()))
	}
	return diags
}

// values are what the release is given, and whether all of it is known. Those
// that are write-only are in configurations alone.
func (m *helmReleaseModel) values(ctx context.Context) (values map[string]any, known bool, err error) {
	documents, known := textList(m.Values)
	sets, setsKnown := setsFrom(ctx, m.Set)
	lists, listsKnown := setListsFrom(ctx, m.SetList)
	secrets, secretsKnown := setsFrom(ctx, m.SetWO)
	if !known || !setsKnown || !listsKnown || !secretsKnown {
		return nil, false, nil
	}
	if values, err = helm.MergeValues(documents); err != nil {
		return nil, true, err
	}
	return values, true, helm.SetValues(values, slices.Concat(sets, lists, secrets))
}

// setType is the type of an element of set and set_wo.
var setType = types.ObjectType{AttrTypes: map[string]attr.Type{"name": types.StringType, "value": types.StringType, "type": types.StringType}}

type setModel struct {
	Name  types.String `tfsdk:"name"`
	Value types.String `tfsdk:"value"`
	Type  types.String `tfsdk:"type"`
}

// setsFrom reads the single values that are known, and says whether all are.
func setsFrom(ctx context.Context, list types.List) (sets []helm.Set, known bool) {
	if list.IsNull() {
		return nil, true
	}
	var models []setModel
	if list.IsUnknown() || list.ElementsAs(ctx, &models, false).HasError() {
		return nil, false
	}
	known = true
	for _, model := range models {
		if model.Name.IsUnknown() || model.Value.IsUnknown() || model.Type.IsUnknown() {
			known = false
			continue
		}
		sets = append(sets, helm.Set{Name: model.Name.ValueString(), Value: model.Value.ValueString(), Kind: model.Type.ValueString()})
	}
	return sets, known
}

type setListModel struct {
	Name  types.String `tfsdk:"name"`
	Value types.List   `tfsdk:"value"`
}

func setListsFrom(ctx context.Context, list types.List) (sets []helm.Set, known bool) {
	if list.IsNull() {
		return nil, true
	}
	var models []setListModel
	if list.IsUnknown() || list.ElementsAs(ctx, &models, false).HasError() {
		return nil, false
	}
	known = true
	for _, model := range models {
		elements, elementsKnown := textList(model.Value)
		if model.Name.IsUnknown() || !elementsKnown {
			known = false
			continue
		}
		sets = append(sets, helm.Set{Name: model.Name.ValueString(), List: append([]string{}, elements...)})
	}
	return sets, known
}

// chart is where the release's chart comes from. The model is fully known at
// apply.
func (m *helmReleaseModel) chart() helm.Chart {
	return helm.Chart{
		Ref: m.Chart.ValueString(), Repository: m.Repository.ValueString(), Version: m.Version.ValueString(),
		Username: m.RepositoryUsername.ValueString(), Password: m.RepositoryPassword.ValueString(),
	}
}

// spec is what the engine is to bring about.
func (m *helmReleaseModel) spec(ctx context.Context) (helm.Spec, error) {
	values, known, err := m.values(ctx)
	if err == nil && !known {
		err = errors.New("part of the values is still unknown")
	}
	var secrets []string
	sets, _ := setsFrom(ctx, m.SetWO)
	for _, set := range sets {
		secrets = append(secrets, set.Value)
	}
	return helm.Spec{
		Name: m.Name.ValueString(), Namespace: m.Namespace.ValueString(), CreateNamespace: m.CreateNamespace.ValueBool(),
		Chart: m.chart(), Values: values, Secrets: secrets,
		Wait: m.Wait.ValueBool(), WaitForJobs: m.WaitForJobs.ValueBool(),
		Atomic: m.Atomic.ValueBool(), SkipCRDs: m.SkipCRDs.ValueBool(), Recover: helm.Recovery(m.Recover.ValueString()),
		Owner: m.Instance.ValueString(),
	}, err
}

// wants says whether two models ask the engine for the same release. Whether to
// wait and how to destroy changes nothing on the cluster.
func (m *helmReleaseModel) wants(other *helmReleaseModel) bool {
	return m.sameChart(other) && m.sameValues(other)
}

func (m *helmReleaseModel) sameChart(other *helmReleaseModel) bool {
	return m.Chart.Equal(other.Chart) && m.Repository.Equal(other.Repository) && m.Version.Equal(other.Version)
}

func (m *helmReleaseModel) sameValues(other *helmReleaseModel) bool {
	return m.Values.Equal(other.Values) && m.Set.Equal(other.Set) && m.SetList.Equal(other.SetList) && m.SetWOVersion.Equal(other.SetWOVersion)
}

// store takes over what is on record of the release.
func (m *helmReleaseModel) store(released *helm.Release) {
	m.Revision = types.Int64Value(int64(released.Revision))
	m.Status = types.StringValue(released.Status)
	m.ChartVersion = textOrNull(released.Version)
	m.ChartDigest = textOrNull(released.Digest)
	m.AppVersion = textOrNull(released.AppVersion)
}

// nothingKnown replaces what is unknown by null, so that an unfinished release
// can be written into state.
func (m *helmReleaseModel) nothingKnown() {
	for _, value := range []*types.String{&m.Status, &m.ChartVersion, &m.ChartDigest, &m.Changes, &m.Drift, &m.AppVersion, &m.ClusterUID, &m.Instance, &m.Phase} {
		if value.IsUnknown() {
			*value = types.StringNull()
		}
	}
	if m.Revision.IsUnknown() {
		m.Revision = types.Int64Null()
	}
}

// phaseOf compares what is on record with what the state asked for. applied is
// the revision that the last apply ended with: where some of the values are not
// in state, a record's values cannot be compared, and another revision means
// that somebody else was here. Zero means that it is not known.
func (m *helmReleaseModel) phaseOf(ctx context.Context, released *helm.Release, applied int) string {
	if !released.Deployed() {
		return released.Status
	}
	values, known, err := m.values(ctx)
	changed := err != nil || !known || released.ValuesHash != helm.HashValues(values)
	if given(m.SetWOVersion) {
		changed = applied != released.Revision
	}
	switch {
	case changed, given(m.ChartVersion) && m.ChartVersion.ValueString() != released.Version:
		return "changed-outside"
	case released.Owner != m.Instance.ValueString():
		return "not-marked"
	}
	return phaseReady
}
