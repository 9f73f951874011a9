// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
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
	Wait               types.Bool     `tfsdk:"wait"`
	WaitForJobs        types.Bool     `tfsdk:"wait_for_jobs"`
	OnDestroy          types.String   `tfsdk:"on_destroy"`
	Revision           types.Int64    `tfsdk:"revision"`
	Status             types.String   `tfsdk:"status"`
	ChartVersion       types.String   `tfsdk:"chart_version"`
	AppVersion         types.String   `tfsdk:"app_version"`
	ClusterUID         types.String   `tfsdk:"cluster_uid"`
	Instance           types.String   `tfsdk:"instance"`
	Phase              types.String   `tfsdk:"phase"`
	Timeouts           timeouts.Value `tfsdk:"timeouts"`
}

func (m *helmReleaseModel) identity() clusterObjectIdentity { return identityOf(m.Namespace, m.Name) }

func (m *helmReleaseModel) thing() string {
	return "the Helm release " + m.Namespace.ValueString() + "/" + m.Name.ValueString()
}

// check answers what is wrong with the configuration as far as it is known.
func (m *helmReleaseModel) check() diag.Diagnostics {
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
	documents, known := textList(m.Values)
	if !known {
		return diags
	}
	if _, err := helm.MergeValues(documents); err != nil {
		diags.AddAttributeError(path.Root("values"), "Unable to read the values", sentence(err.Error()))
	}
	return diags
}

// spec is what the engine is to bring about. The model is fully known at apply.
func (m *helmReleaseModel) spec() (helm.Spec, error) {
	documents, _ := textList(m.Values)
	values, err := helm.MergeValues(documents)
	return helm.Spec{
		Name: m.Name.ValueString(), Namespace: m.Namespace.ValueString(), CreateNamespace: m.CreateNamespace.ValueBool(),
		Chart: helm.Chart{
			Ref: m.Chart.ValueString(), Repository: m.Repository.ValueString(), Version: m.Version.ValueString(),
			Username: m.RepositoryUsername.ValueString(), Password: m.RepositoryPassword.ValueString(),
		},
		Values: values,
		Wait:   m.Wait.ValueBool(), WaitForJobs: m.WaitForJobs.ValueBool(),
		Owner: m.Instance.ValueString(),
	}, err
}

// wants says whether two models ask the engine for the same release on the same
// cluster. Whether to wait and how to destroy changes nothing there.
func (m *helmReleaseModel) wants(other *helmReleaseModel) bool {
	return m.Chart.Equal(other.Chart) && m.Repository.Equal(other.Repository) && m.Version.Equal(other.Version) && m.Values.Equal(other.Values)
}

// store takes over what is on record of the release.
func (m *helmReleaseModel) store(released *helm.Release) {
	m.Revision = types.Int64Value(int64(released.Revision))
	m.Status = types.StringValue(released.Status)
	m.ChartVersion = types.StringValue(released.Version)
	m.AppVersion = textOrNull(released.AppVersion)
}

// nothingKnown replaces what is unknown by null, so that an unfinished release
// can be written into state.
func (m *helmReleaseModel) nothingKnown() {
	for _, value := range []*types.String{&m.Status, &m.ChartVersion, &m.AppVersion, &m.ClusterUID, &m.Instance, &m.Phase} {
		if value.IsUnknown() {
			*value = types.StringNull()
		}
	}
	if m.Revision.IsUnknown() {
		m.Revision = types.Int64Null()
	}
}

// phaseOf compares what is on record with what the state asked for.
func (m *helmReleaseModel) phaseOf(released *helm.Release) string {
	documents, _ := textList(m.Values)
	values, err := helm.MergeValues(documents)
	switch {
	case !released.Deployed():
		return released.Status
	case err != nil, released.ValuesHash != helm.HashValues(values),
		given(m.ChartVersion) && m.ChartVersion.ValueString() != released.Version:
		return "changed-outside"
	case released.Owner != m.Instance.ValueString():
		return "not-marked"
	}
	return phaseReady
}
