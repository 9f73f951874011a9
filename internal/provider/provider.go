// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package provider is the Terraform face: schemas, models, plans and
// diagnostics. What the resources do is done by the engine packages beside it.
package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/kind"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
)

const (
	// Address is the provider's source address in the public registry.
	Address = "registry.terraform.io/terraform-provider-capi/capi"
	// ProtocolVersion is the version of the plugin protocol that is served. The
	// file terraform-registry-manifest.json must name the same.
	ProtocolVersion = 6
)

var (
	_ provider.Provider                   = (*capiProvider)(nil)
	_ provider.ProviderWithValidateConfig = (*capiProvider)(nil)
	_ provider.ProviderWithFunctions      = (*capiProvider)(nil)
)

// New answers a maker of the provider, as the plugin server wants it. version
// goes into user agents.
func New(version string) func() provider.Provider {
	return func() provider.Provider { return &capiProvider{version: version, runtimes: runtimes} }
}

type capiProvider struct {
	version string
	// runtimes makes the runtimes of ephemeral clusters that keep their data in
	// a folder; tests put others in their place.
	runtimes func(stateDir string) bootstrap.Manager
}

// runtimes are the runtimes of ephemeral clusters that the provider ships.
func runtimes(stateDir string) bootstrap.Manager {
	return bootstrap.Manager{bootstrap.Local: local.Runtime{State: stateDir}, bootstrap.Kind: kind.Runtime{State: stateDir}}
}

// Resources lists every resource, one a line.
func (p *capiProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{
		newProxmoxTemplateResource,
		newServiceAccountResource,
		newEphemeralClusterResource,
		newManagementClusterResource,
		newProvidersResource,
		newPivotResource,
		newHelmReleaseResource,
	}
}

// DataSources lists every data source, one a line.
func (p *capiProvider) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{
		newTalosImageDataSource,
		newProxmoxPermissionsDataSource,
		newProviderComponentsDataSource,
		newProviderUpgradesDataSource,
	}
}

// Functions lists every function, one a line.
func (p *capiProvider) Functions(context.Context) []func() function.Function {
	return []func() function.Function{
		newTalosSchematicIDFunction,
		newTalosImageURLFunction,
		newProxmoxTokenIDParseFunction,
	}
}

func (p *capiProvider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName = "capi"
	resp.Version = p.version
}

func (p *capiProvider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "Bootstraps Cluster API management clusters in one `apply`: image template, service account, ephemeral " +
			"bootstrap cluster, management cluster, charts, providers and the pivot. Every attribute is optional and may be unknown " +
			"at plan time: nothing is dialled before it is needed.",
		Attributes: map[string]schema.Attribute{
			"proxmox":           proxmoxProviderAttribute(),
			"clusters":          clustersProviderAttribute(),
			"backup_passphrase": backupPassphraseAttribute(),
			"registries":        registriesProviderAttribute(),
			"state_dir": schema.StringAttribute{
				Optional: true,
				MarkdownDescription: "Folder in which ephemeral clusters with `runtime = \"local\"` keep their data. Defaults to the environment " +
					"variable `CAPI_STATE_DIR`, then to `terraform-provider-capi` in the user's state folder (`XDG_STATE_HOME`, else `~/.local/state`).",
				Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			},
		},
	}
}

// providerModel is the provider block. All levels are types.* values, since
// every one of them may be unknown at plan time.
type providerModel struct {
	Proxmox          types.Object `tfsdk:"proxmox"`
	BackupPassphrase types.String `tfsdk:"backup_passphrase"`
	Clusters         types.Map    `tfsdk:"clusters"`
	Registries       types.Map    `tfsdk:"registries"`
	StateDir         types.String `tfsdk:"state_dir"`
}

// ValidateConfig checks what the configuration alone tells.
func (p *capiProvider) ValidateConfig(ctx context.Context, req provider.ValidateConfigRequest, resp *provider.ValidateConfigResponse) {
	var model providerModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(validateProxmoxConnection(ctx, path.Root("proxmox"), model.Proxmox)...)
}

func (p *capiProvider) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var model providerModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	data, diags := newProviderData(ctx, p.version, model)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	data.ephemerals = p.runtimes(data.stateDir)
	resp.ResourceData = data
	resp.DataSourceData = data
	resp.EphemeralResourceData = data
}
