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
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Where the charts are published.
const (
	certManagerChart   = "oci://quay.io/jetstack/charts/cert-manager"
	operatorChart      = "cluster-api-operator"
	operatorRepository = "https://kubernetes-sigs.github.io/cluster-api-operator"
)

type providersModel struct {
	ID           types.String   `tfsdk:"id"`
	Cluster      types.Object   `tfsdk:"cluster"`
	Method       types.String   `tfsdk:"method"`
	Operator     types.Object   `tfsdk:"operator"`
	CertManager  types.Object   `tfsdk:"cert_manager"`
	Repository   types.String   `tfsdk:"repository"`
	Providers    types.Object   `tfsdk:"providers"`
	Availability types.Object   `tfsdk:"availability"`
	OnDestroy    types.String   `tfsdk:"on_destroy"`
	Installed    types.Map      `tfsdk:"installed"`
	ClusterUID   types.String   `tfsdk:"cluster_uid"`
	Instance     types.String   `tfsdk:"instance"`
	Phase        types.String   `tfsdk:"phase"`
	Timeouts     timeouts.Value `tfsdk:"timeouts"`
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
	_, _, found = availabilityFrom(ctx, m.Availability)
	diags.Append(found...)
	diags.Append(m.checkMethod(ctx)...)
	return diags
}

// method is who looks after the providers.
func (m *providersModel) method() capi.Method {
	if given(m.Method) {
		return capi.Method(m.Method.ValueString())
	}
	return capi.Operator
}

// checkMethod finds what does not go with the method.
func (m *providersModel) checkMethod(ctx context.Context) diag.Diagnostics {
	var diags diag.Diagnostics
	if m.Method.IsUnknown() {
		return diags
	}
	byOperator := m.method() == capi.Operator
	if byOperator && m.Operator.IsNull() {
		diags.AddAttributeError(path.Root("operator"), "Unable to install the operator", "method = \"operator\" needs operator = { version = ... }.")
	}
	if !byOperator && !m.Operator.IsNull() {
		diags.AddAttributeError(path.Root("operator"), "Unable to install the operator", "method = \"clusterctl\" installs no operator: leave it out, or change the method.")
	}
	var certManager certManagerChartModel
	if !byOperator && !m.CertManager.IsNull() && !m.CertManager.IsUnknown() {
		diags.Append(m.CertManager.As(ctx, &certManager, basetypes.ObjectAsOptions{})...)
		if !certManager.Chart.IsNull() {
			diags.AddAttributeError(path.Root("cert_manager").AtName("chart"), "Unable to use the chart",
				"method = \"clusterctl\" installs cert-manager from its manifest, which lies in the repository or in its releases, and not from a chart.")
		}
	}
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

// ask is what an engine is to bring about, whichever it is.
type ask struct {
	providers    []capi.Provider
	availability *capi.Availability
	source       capi.Source
}

// ask reads what both engines need. The model is fully known at apply.
func (m *providersModel) ask(ctx context.Context) (ask, error) {
	providers, known, diags := providersFrom(ctx, m.Providers)
	availability, availabilityKnown, found := availabilityFrom(ctx, m.Availability)
	diags.Append(found...)
	if err := firstError(diags); err != nil {
		return ask{}, err
	}
	if !known || !availabilityKnown {
		return ask{}, errStillUnknown
	}
	for i := range providers {
		providers[i].Availability = availability
	}
	return ask{providers: providers, availability: availability, source: capi.Source{Repository: m.Repository.ValueString()}}, nil
}

var errStillUnknown = errors.New("part of the configuration is still unknown")

// operatorOptions is what the operator's engine is to bring about.
func (m *providersModel) operatorOptions(ctx context.Context) (capi.OperatorOptions, error) {
	asked, err := m.ask(ctx)
	if err != nil {
		return capi.OperatorOptions{}, err
	}
	certManager, certManagerKnown, diags := m.certManager(ctx)
	operator, operatorKnown, found := m.operator(ctx)
	diags.Append(found...)
	if err := firstError(diags); err != nil {
		return capi.OperatorOptions{}, err
	}
	if !certManagerKnown || !operatorKnown {
		return capi.OperatorOptions{}, errStillUnknown
	}
	return capi.OperatorOptions{
		Providers: asked.providers, Source: asked.source, Availability: asked.availability,
		CertManager: certManager, Operator: operator, Owner: m.Instance.ValueString(),
	}, nil
}

// clusterctlOptions is what clusterctl's engine is to bring about.
func (m *providersModel) clusterctlOptions(ctx context.Context) (capi.InitOptions, error) {
	asked, err := m.ask(ctx)
	if err != nil {
		return capi.InitOptions{}, err
	}
	chart, known, diags := m.certManager(ctx)
	if err := firstError(diags); err != nil {
		return capi.InitOptions{}, err
	}
	if !known {
		return capi.InitOptions{}, errStillUnknown
	}
	certManager := capi.CertManager{External: chart == nil}
	if chart != nil {
		certManager.Version = chart.Version
	}
	return capi.InitOptions{Providers: asked.providers, Source: asked.source, CertManager: certManager, Owner: m.Instance.ValueString(), Leases: providersLeases}, nil
}

// providersLeases can be given other times for tests.
var providersLeases kube.Leases

// wants says whether two models ask for the same on a cluster.
func (m *providersModel) wants(other *providersModel) bool {
	return m.Providers.Equal(other.Providers) && m.Operator.Equal(other.Operator) && m.CertManager.Equal(other.CertManager) &&
		m.Repository.Equal(other.Repository) && m.Availability.Equal(other.Availability) && m.method() == other.method()
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
