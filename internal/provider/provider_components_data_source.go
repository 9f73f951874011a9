// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/controlplane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
)

// publicationsPatience bounds the reading of all releases.
const publicationsPatience = 2 * time.Minute

var (
	_ datasource.DataSource                   = (*providerComponentsDataSource)(nil)
	_ datasource.DataSourceWithValidateConfig = (*providerComponentsDataSource)(nil)
)

type providerComponentsDataSource struct{}

func newProviderComponentsDataSource() datasource.DataSource { return &providerComponentsDataSource{} }

// providerComponentsModel is the data source capi_provider_components.
type providerComponentsModel struct {
	Providers         types.Object              `tfsdk:"providers"`
	CertManager       types.Object              `tfsdk:"cert_manager"`
	Repository        types.String              `tfsdk:"repository"`
	KubernetesVersion types.String              `tfsdk:"kubernetes_version"`
	Releases          []publishedComponentModel `tfsdk:"releases"`
	Files             types.Map                 `tfsdk:"files"`
	Images            types.List                `tfsdk:"images"`
}

type publishedComponentModel struct {
	Label    types.String `tfsdk:"label"`
	Version  types.String `tfsdk:"version"`
	Contract types.String `tfsdk:"contract"`
	Images   types.List   `tfsdk:"images"`
}

func (d *providerComponentsDataSource) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "capi_provider_components"
}

func (d *providerComponentsDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	text := func(description string) schema.StringAttribute {
		return schema.StringAttribute{Computed: true, MarkdownDescription: description}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "What a mirror must hold so that providers can be installed without a way to where they are published: the files of their releases and the " +
			"container images that they run. It is read from the releases at each plan.",
		Attributes: map[string]schema.Attribute{
			"providers": providersOfDataSource(),
			"cert_manager": schema.SingleNestedAttribute{
				Optional:            true,
				MarkdownDescription: "The cert-manager that is installed with them. None, or an `external` one, adds nothing.",
				Attributes: map[string]schema.Attribute{
					"version":  schema.StringAttribute{Optional: true, MarkdownDescription: "The release, with its v: `v1.21.0`.", Validators: []validator.String{releaseVersion()}},
					"external": schema.BoolAttribute{Optional: true, MarkdownDescription: "Somebody else installs it."},
				},
			},
			"repository": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "A mirror to read the releases from, as in `capi_providers`. Defaults to the projects' own releases.",
				Validators:          []validator.String{repositoryAddress()},
			},
			"kubernetes_version": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "Adds the images of an ephemeral cluster of this version with `runtime = \"local\"`: `v1.36.2`.",
				Validators:          []validator.String{releaseVersion()},
			},
			"releases": schema.ListNestedAttribute{
				Computed: true, MarkdownDescription: "The releases, in the order of their labels.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"label":    text("Label of the provider, such as `infrastructure-proxmox`, or `cert-manager`."),
					"version":  text("The release."),
					"contract": text("Version of Cluster API's contract that the release keeps. Null for cert-manager."),
					"images":   schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "The container images of the release."},
				}},
			},
			"files": schema.MapAttribute{
				Computed: true, ElementType: types.StringType,
				MarkdownDescription: "Addresses of all files, by the path at which a folder that serves as `repository` holds them.",
			},
			"images": schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "All container images, sorted."},
		},
	}
}

// providersOfDataSource has the shape of the attribute providers of resources, so
// that one local value serves both.
func providersOfDataSource() schema.SingleNestedAttribute {
	credentials := map[string]schema.Attribute{"insecure": schema.BoolAttribute{Optional: true, MarkdownDescription: "Plays no part here."}}
	for _, name := range []string{"url", "token", "secret", "ca"} {
		credentials[name] = schema.StringAttribute{Optional: true, Sensitive: true, MarkdownDescription: "Plays no part here."}
	}
	entry := map[string]schema.Attribute{
		"version":     schema.StringAttribute{Required: true, MarkdownDescription: "The release, with its v.", Validators: []validator.String{releaseVersion()}},
		"url":         schema.StringAttribute{Optional: true, MarkdownDescription: "Where the components file lies, as in `capi_providers`."},
		"variables":   schema.MapAttribute{Optional: true, Sensitive: true, ElementType: types.StringType, MarkdownDescription: "Plays no part here."},
		"credentials": schema.SingleNestedAttribute{Optional: true, Sensitive: true, MarkdownDescription: "Plays no part here.", Attributes: credentials},
	}
	kinds := map[string]schema.Attribute{}
	for member := range providerMaps {
		kinds[member] = schema.MapNestedAttribute{
			Optional: true, MarkdownDescription: "Providers of the kind `" + strings.ReplaceAll(member, "_", " ") + "`, by name.",
			NestedObject: schema.NestedAttributeObject{Attributes: entry},
		}
	}
	return schema.SingleNestedAttribute{Required: true, MarkdownDescription: "The providers, as `capi_providers` takes them.", Attributes: kinds}
}

func (d *providerComponentsDataSource) ValidateConfig(ctx context.Context, req datasource.ValidateConfigRequest, resp *datasource.ValidateConfigResponse) {
	var config providerComponentsModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(checkProviders(ctx, config.Providers, config.Repository)...)
	if !config.CertManager.IsNull() {
		_, _, diags := certManagerFrom(ctx, config.CertManager)
		resp.Diagnostics.Append(diags...)
	}
}

func (d *providerComponentsDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var model providerComponentsModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	named, _, diags := providersFrom(ctx, model.Providers)
	resp.Diagnostics.Append(diags...)
	var certManager *capi.CertManager
	if !model.CertManager.IsNull() {
		found, _, diags := certManagerFrom(ctx, model.CertManager)
		resp.Diagnostics.Append(diags...)
		certManager = &found
	}
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, publicationsPatience)
	defer cancel()
	published, err := capi.Publications(ctx, named, certManager, capi.Source{Repository: model.Repository.ValueString()})
	if err != nil {
		failure{
			verb: "read", thing: "the providers' releases", cause: err,
			next: "mend the cause, or give the address of a mirror as repository",
		}.addTo(&resp.Diagnostics)
		return
	}
	model.store(published)
	resp.Diagnostics.Append(resp.State.Set(ctx, model)...)
}

func (m *providerComponentsModel) store(published []capi.Published) {
	slices.SortFunc(published, func(a, b capi.Published) int { return strings.Compare(a.Label, b.Label) })
	files, images := map[string]string{}, []string{}
	for _, p := range published {
		maps.Copy(files, p.Files)
		images = append(images, p.Images...)
		m.Releases = append(m.Releases, publishedComponentModel{
			Label: types.StringValue(p.Label), Version: types.StringValue(p.Version), Contract: textOrNull(p.Contract), Images: listOfTexts(p.Images),
		})
	}
	if version := m.KubernetesVersion.ValueString(); version != "" {
		of := controlplane.ImagesOf(version)
		images = append(images, of.Etcd, of.APIServer, of.ControllerManager, of.Scheduler)
	}
	slices.Sort(images)
	m.Images = listOfTexts(slices.Compact(images))
	elements := map[string]attr.Value{}
	for name, address := range files {
		elements[name] = types.StringValue(address)
	}
	m.Files = types.MapValueMust(types.StringType, elements)
}

func listOfTexts(values []string) types.List {
	elements := make([]attr.Value, len(values))
	for i, value := range values {
		elements[i] = types.StringValue(value)
	}
	return types.ListValueMust(types.StringType, elements)
}
