// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
)

// offersPatience bounds the listing of all releases.
const offersPatience = 2 * time.Minute

var (
	_ datasource.DataSource                   = (*providerUpgradesDataSource)(nil)
	_ datasource.DataSourceWithValidateConfig = (*providerUpgradesDataSource)(nil)
)

type providerUpgradesDataSource struct{}

func newProviderUpgradesDataSource() datasource.DataSource { return &providerUpgradesDataSource{} }

// providerUpgradesModel is the data source capi_provider_upgrades.
type providerUpgradesModel struct {
	Providers   types.Object                    `tfsdk:"providers"`
	Repository  types.String                    `tfsdk:"repository"`
	GitHubToken types.String                    `tfsdk:"github_token"`
	Upgrades    map[string]providerUpgradeModel `tfsdk:"upgrades"`
}

type providerUpgradeModel struct {
	Version  types.String           `tfsdk:"version"`
	Contract types.String           `tfsdk:"contract"`
	Patch    types.String           `tfsdk:"patch"`
	Latest   types.String           `tfsdk:"latest"`
	Newer    []providerReleaseModel `tfsdk:"newer"`
}

type providerReleaseModel struct {
	Version  types.String `tfsdk:"version"`
	Contract types.String `tfsdk:"contract"`
}

func (d *providerUpgradesDataSource) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "capi_provider_upgrades"
}

func (d *providerUpgradesDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	text := func(description string) schema.StringAttribute {
		return schema.StringAttribute{Computed: true, MarkdownDescription: description}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "The releases of providers that came after the versions in the configuration, with the contract of Cluster API that each keeps. " +
			"It is for a pipeline that tells what could be upgraded: nothing is upgraded by it, since versions are pinned. It is read at each plan, from a " +
			"repository folder or from where the projects publish: their releases on GitHub, which are listed by the Go module proxy (`GOPROXY`) as clusterctl does, " +
			"and by GitHub itself where that cannot be asked.",
		Attributes: map[string]schema.Attribute{
			"providers": providersOfDataSource(),
			"repository": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "A mirror, as in `capi_providers`: a folder (`file:///`). One behind `https://` cannot be listed. Defaults to the projects' own releases.",
				Validators:          []validator.String{repositoryAddress()},
			},
			"github_token": schema.StringAttribute{
				Optional: true, Sensitive: true,
				MarkdownDescription: "A token for GitHub, which answers few questions of those who have none.",
			},
			"upgrades": schema.MapNestedAttribute{
				Computed: true, MarkdownDescription: "What there is for each provider, by its label, such as `infrastructure-proxmox`.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"version":  text("The version in `providers`."),
					"contract": text("The version of Cluster API's contract that it keeps. Null where no release says."),
					"patch":    text("The newest release of the same minor version. Null where there is none."),
					"latest":   text("The newest release. Null where there is none."),
					"newer": schema.ListNestedAttribute{
						Computed: true, MarkdownDescription: "All later releases, oldest first, without pre-releases.",
						NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
							"version":  text("The release."),
							"contract": text("The version of Cluster API's contract that it keeps."),
						}},
					},
				}},
			},
		},
	}
}

func (d *providerUpgradesDataSource) ValidateConfig(ctx context.Context, req datasource.ValidateConfigRequest, resp *datasource.ValidateConfigResponse) {
	var config providerUpgradesModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(checkProviders(ctx, config.Providers, config.Repository)...)
	}
}

func (d *providerUpgradesDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var model providerUpgradesModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	named, _, diags := providersFrom(ctx, model.Providers)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, offersPatience)
	defer cancel()
	offers, err := capi.Offers(ctx, named, capi.Source{Repository: model.Repository.ValueString()}, model.GitHubToken.ValueString())
	if err != nil {
		problem := failure{
			verb: "list", thing: "the releases of all providers", cause: err,
			exists: "the others are listed", next: "mend the cause, or give the address of a repository folder as repository",
		}
		// A pipeline that tells of upgrades should tell of those it can.
		if len(offers) > 0 {
			problem.warn(&resp.Diagnostics)
		} else {
			problem.exists = ""
			problem.addTo(&resp.Diagnostics)
			return
		}
	}
	model.store(offers)
	resp.Diagnostics.Append(resp.State.Set(ctx, model)...)
}

func (m *providerUpgradesModel) store(offers []capi.Offer) {
	m.Upgrades = map[string]providerUpgradeModel{}
	for _, o := range offers {
		found := providerUpgradeModel{Version: types.StringValue(o.Provider.Version), Contract: textOrNull(o.Contract), Newer: []providerReleaseModel{}}
		if patch, ok := o.Patch(); ok {
			found.Patch = types.StringValue(patch.Version)
		}
		for _, r := range o.Newer {
			found.Latest = types.StringValue(r.Version)
			found.Newer = append(found.Newer, providerReleaseModel{Version: types.StringValue(r.Version), Contract: textOrNull(r.Contract)})
		}
		m.Upgrades[o.Provider.Label()] = found
	}
}
