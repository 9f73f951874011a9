// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
)

// Where the charts are published.
const (
	certManagerChart   = "oci://quay.io/jetstack/charts/cert-manager"
	operatorChart      = "cluster-api-operator"
	operatorRepository = "https://kubernetes-sigs.github.io/cluster-api-operator"
)

type providersModel struct {
	ID          types.String   `tfsdk:"id"`
	Cluster     types.Object   `tfsdk:"cluster"`
	Method      types.String   `tfsdk:"method"`
	Operator    types.Object   `tfsdk:"operator"`
	CertManager types.Object   `tfsdk:"cert_manager"`
	Repository  types.String   `tfsdk:"repository"`
	Providers   types.Object   `tfsdk:"providers"`
	OnDestroy   types.String   `tfsdk:"on_destroy"`
	Installed   types.Map      `tfsdk:"installed"`
	ClusterUID  types.String   `tfsdk:"cluster_uid"`
	Instance    types.String   `tfsdk:"instance"`
	Phase       types.String   `tfsdk:"phase"`
	Timeouts    timeouts.Value `tfsdk:"timeouts"`
}

type providersIdentity struct {
	Cluster    types.String `tfsdk:"cluster"`
	ClusterUID types.String `tfsdk:"cluster_uid"`
}

func (m *providersModel) identity() any {
	return providersIdentity{Cluster: types.StringNull(), ClusterUID: m.ClusterUID}
}

func (m *providersModel) updating() updating {
	return updating{Timeouts: m.Timeouts, Instance: &m.Instance, Phase: &m.Phase, Pending: m.Installed.IsUnknown()}
}

func (m *providersModel) thing() string {
	if given(m.ClusterUID) {
		return "the providers on the cluster " + m.ClusterUID.ValueString()
	}
	return "the providers"
}

type chartModel struct {
	Version types.String `tfsdk:"version"`
	Chart   types.String `tfsdk:"chart"`
}

type certManagerChartModel struct {
	Version  types.String `tfsdk:"version"`
	External types.Bool   `tfsdk:"external"`
	Chart    types.String `tfsdk:"chart"`
}

// check answers what is wrong with the configuration as far as it is known.
func (m *providersModel) check(ctx context.Context) diag.Diagnostics {
	diags := checkProviders(ctx, m.Providers, m.Repository)
	_, _, found := m.certManager(ctx)
	diags.Append(found...)
	_, _, found = m.operator(ctx)
	diags.Append(found...)
	return diags
}

// certManager reads cert_manager: nil where somebody else installs it.
func (m *providersModel) certManager(ctx context.Context) (chart *helm.Chart, known bool, diags diag.Diagnostics) {
	if m.CertManager.IsNull() || m.CertManager.IsUnknown() {
		return nil, false, nil
	}
	var model certManagerChartModel
	diags.Append(m.CertManager.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if diags.HasError() || model.Version.IsUnknown() || model.External.IsUnknown() || model.Chart.IsUnknown() {
		return nil, false, diags
	}
	if model.External.ValueBool() == given(model.Version) {
		diags.AddAttributeError(path.Root("cert_manager"), "Unable to choose a cert-manager",
			"Set exactly one of version, for one that is installed here, and external = true, for one that somebody else installs.")
		return nil, false, diags
	}
	if model.External.ValueBool() {
		return nil, true, diags
	}
	chart = &helm.Chart{Ref: certManagerChart, Version: model.Version.ValueString()}
	if given(model.Chart) {
		chart.Ref = model.Chart.ValueString()
	}
	diags.Append(checkChart("cert_manager", *chart)...)
	return chart, !diags.HasError(), diags
}

func (m *providersModel) operator(ctx context.Context) (chart helm.Chart, known bool, diags diag.Diagnostics) {
	if m.Operator.IsNull() || m.Operator.IsUnknown() {
		return chart, false, nil
	}
	var model chartModel
	diags.Append(m.Operator.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if diags.HasError() || model.Version.IsUnknown() || model.Chart.IsUnknown() {
		return chart, false, diags
	}
	chart = helm.Chart{Ref: operatorChart, Repository: operatorRepository, Version: model.Version.ValueString()}
	if given(model.Chart) {
		chart.Ref, chart.Repository = model.Chart.ValueString(), ""
	}
	diags.Append(checkChart("operator", chart)...)
	return chart, !diags.HasError(), diags
}

func checkChart(attribute string, chart helm.Chart) diag.Diagnostics {
	var diags diag.Diagnostics
	if err := errors.Join(chart.Check(), helm.CheckVersion(chart.Version)); err != nil {
		diags.AddAttributeError(path.Root(attribute), "Unable to use the chart", sentence(err.Error()))
	}
	return diags
}

// options is what the engine is to bring about. The model is fully known at
// apply.
func (m *providersModel) options(ctx context.Context) (capi.OperatorOptions, error) {
	providers, known, diags := providersFrom(ctx, m.Providers)
	certManager, certManagerKnown, found := m.certManager(ctx)
	diags.Append(found...)
	operator, operatorKnown, found := m.operator(ctx)
	diags.Append(found...)
	if err := firstError(diags); err != nil {
		return capi.OperatorOptions{}, err
	}
	if !known || !certManagerKnown || !operatorKnown {
		return capi.OperatorOptions{}, errors.New("part of the configuration is still unknown")
	}
	return capi.OperatorOptions{
		Providers: providers, Source: capi.Source{Repository: m.Repository.ValueString()},
		CertManager: certManager, Operator: operator, Owner: m.Instance.ValueString(),
	}, nil
}

// wants says whether two models ask for the same on a cluster.
func (m *providersModel) wants(other *providersModel) bool {
	return m.Providers.Equal(other.Providers) && m.Operator.Equal(other.Operator) && m.CertManager.Equal(other.CertManager) && m.Repository.Equal(other.Repository)
}

// store takes over what a cluster's inventory says. It answers whether each
// provider that the model asks for is there in its version.
func (m *providersModel) store(ctx context.Context, installed []capi.Installed) bool {
	versions := map[string]attr.Value{}
	for _, i := range installed {
		versions[i.Label()] = types.StringValue(i.Version)
	}
	m.Installed = types.MapValueMust(types.StringType, versions)
	wanted, _, _ := providersFrom(ctx, m.Providers)
	for _, p := range wanted {
		if found, ok := versions[p.Label()]; !ok || !found.Equal(types.StringValue(p.Version)) {
			return false
		}
	}
	return true
}

// nothingKnown replaces what is unknown by null, so that something unfinished
// can be written into state.
func (m *providersModel) nothingKnown() {
	for _, value := range []*types.String{&m.ID, &m.ClusterUID, &m.Instance, &m.Phase} {
		if value.IsUnknown() {
			*value = types.StringNull()
		}
	}
	if m.Installed.IsUnknown() {
		m.Installed = types.MapNull(types.StringType)
	}
}
