// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
)

// providerMaps pairs the members of the attribute providers with Cluster API's
// kinds of providers.
var providerMaps = map[string]capi.Type{
	"core":              capi.Core,
	"bootstrap":         capi.Bootstrap,
	"control_plane":     capi.ControlPlane,
	"infrastructure":    capi.Infrastructure,
	"ipam":              capi.IPAM,
	"runtime_extension": capi.RuntimeExtension,
	"addon":             capi.Addon,
}

// providersAttribute is the attribute providers of whatever installs them. One
// local value can serve several resources.
func providersAttribute() schema.SingleNestedAttribute {
	kind := func(what, example string) schema.MapNestedAttribute {
		return schema.MapNestedAttribute{
			Optional:            true,
			MarkdownDescription: what + " by name, for example `" + example + "`.",
			NestedObject:        schema.NestedAttributeObject{Attributes: providerEntryAttributes()},
		}
	}
	return schema.SingleNestedAttribute{
		Required:            true,
		MarkdownDescription: "The Cluster API providers, by kind and name, in exact versions.",
		Attributes: map[string]schema.Attribute{
			"core":              kind("The core provider: exactly one", "cluster-api"),
			"bootstrap":         kind("Bootstrap providers", "talos"),
			"control_plane":     kind("Control-plane providers", "talos"),
			"infrastructure":    kind("Infrastructure providers", "proxmox"),
			"ipam":              kind("IPAM providers", "in-cluster"),
			"runtime_extension": kind("Runtime extension providers", "test"),
			"addon":             kind("Add-on providers", "helm"),
		},
	}
}

func providerEntryAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"version": schema.StringAttribute{
			Required:            true,
			MarkdownDescription: "The release, with its v: `v1.14.2`.",
			Validators:          []validator.String{releaseVersion()},
		},
		"url": schema.StringAttribute{
			Optional: true,
			MarkdownDescription: "Where the components file lies, as clusterctl's configuration has it: a `file:///` or `https://` address that ends in " +
				"`{version or latest}/{file}`. Needed for a provider that clusterctl does not know; else the `repository` or the provider's releases.",
			Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
		},
		"variables": schema.MapAttribute{
			Optional: true, Sensitive: true, ElementType: types.StringType,
			MarkdownDescription: "Values for the `${VARIABLES}` of this provider's components. The environment of the runner plays no part.",
		},
		"credentials": schema.SingleNestedAttribute{
			Optional: true, Sensitive: true,
			MarkdownDescription: "What the provider `proxmox` logs in to Proxmox VE with, usually the `credentials` of a `capi_service_account`. A change restarts the provider.",
			Attributes: map[string]schema.Attribute{
				"url":      schema.StringAttribute{Required: true, MarkdownDescription: "Address of the API."},
				"token":    schema.StringAttribute{Required: true, MarkdownDescription: "Id of the token, `user@realm!name`."},
				"secret":   schema.StringAttribute{Required: true, MarkdownDescription: "Secret of the token."},
				"insecure": schema.BoolAttribute{Optional: true, MarkdownDescription: "Do not check the API's certificate. Defaults to `false`."},
				"ca":       schema.StringAttribute{Optional: true, MarkdownDescription: "Certificates (PEM) that the API's certificate is checked against besides the image's own."},
			},
		},
	}
}

// releaseVersion checks that a text is a release such as v1.2.3.
func releaseVersion() validator.String {
	return checkedAs("a release with its v, such as v1.2.3", "Unable to use the version", capi.CheckVersion)
}

type providerEntryModel struct {
	Version     types.String `tfsdk:"version"`
	URL         types.String `tfsdk:"url"`
	Variables   types.Map    `tfsdk:"variables"`
	Credentials types.Object `tfsdk:"credentials"`
}

type proxmoxCredentialsModel struct {
	URL      types.String `tfsdk:"url"`
	Token    types.String `tfsdk:"token"`
	Secret   types.String `tfsdk:"secret"`
	Insecure types.Bool   `tfsdk:"insecure"`
	CA       types.String `tfsdk:"ca"`
}

// providersFrom reads the attribute providers. named holds all providers whose
// version is known; known says that this is all there is to know, credentials
// included.
func providersFrom(ctx context.Context, object types.Object) (named []capi.Provider, known bool, diags diag.Diagnostics) {
	if object.IsNull() || object.IsUnknown() {
		return nil, false, nil
	}
	known = true
	for member, kind := range providerMaps {
		entries, ok := object.Attributes()[member].(types.Map)
		if !ok || entries.IsNull() {
			continue
		}
		if entries.IsUnknown() {
			known = false
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(entries.Elements())) {
			entry, ok := entries.Elements()[name].(types.Object)
			if !ok || entry.IsUnknown() {
				known = false
				continue
			}
			p, complete, found := providerFrom(ctx, entry)
			diags.Append(found...)
			known = known && complete
			if p.Version != "" {
				p.Type, p.Name = kind, name
				named = append(named, p)
			}
		}
	}
	return named, known && !diags.HasError(), diags
}

func providerFrom(ctx context.Context, entry types.Object) (p capi.Provider, known bool, diags diag.Diagnostics) {
	var model providerEntryModel
	diags.Append(entry.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if diags.HasError() {
		return p, false, diags
	}
	p = capi.Provider{Version: model.Version.ValueString(), URL: model.URL.ValueString()}
	known = !model.Version.IsUnknown() && !model.URL.IsUnknown()
	variables, complete := textMap(model.Variables)
	p.Variables, known = variables, known && complete
	credentials, complete, found := proxmoxCredentials(ctx, model.Credentials)
	diags.Append(found...)
	p.Credentials = credentials
	return p, known && complete, diags
}

// textMap reads a map of texts as far as it is known.
func textMap(values types.Map) (texts map[string]string, known bool) {
	if values.IsUnknown() {
		return nil, false
	}
	known = true
	for key, element := range values.Elements() {
		text, ok := element.(types.String)
		if !ok || text.IsUnknown() {
			known = false
			continue
		}
		if texts == nil {
			texts = map[string]string{}
		}
		texts[key] = text.ValueString()
	}
	return texts, known
}

func proxmoxCredentials(ctx context.Context, object types.Object) (credentials *capi.ProxmoxCredentials, known bool, diags diag.Diagnostics) {
	if object.IsNull() {
		return nil, true, nil
	}
	if object.IsUnknown() {
		return nil, false, nil
	}
	var model proxmoxCredentialsModel
	diags.Append(object.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if diags.HasError() || model.URL.IsUnknown() || model.Token.IsUnknown() || model.Secret.IsUnknown() || model.Insecure.IsUnknown() || model.CA.IsUnknown() {
		return nil, false, diags
	}
	return &capi.ProxmoxCredentials{
		URL: model.URL.ValueString(), Token: model.Token.ValueString(), Secret: model.Secret.ValueString(),
		Insecure: model.Insecure.ValueBool(), CA: model.CA.ValueString(),
	}, true, diags
}

// checkProviders judges a set of providers from the configuration alone, once
// every version in it is known.
func checkProviders(ctx context.Context, providers types.Object, repository types.String) diag.Diagnostics {
	if providers.IsNull() || providers.IsUnknown() || repository.IsUnknown() {
		return nil
	}
	named, _, diags := providersFrom(ctx, providers)
	if diags.HasError() || len(named) < countProviders(providers) {
		return diags
	}
	for i := range named {
		if named[i].Credentials != nil && named[i].Label() != "infrastructure-proxmox" {
			diags.AddAttributeError(path.Root("providers"), "Unable to use the providers",
				"The credentials of "+named[i].Label()+" are not known to it: only the infrastructure provider proxmox takes any. Use its variables.")
		}
	}
	if err := capi.Check(ctx, named, capi.Source{Repository: repository.ValueString()}); err != nil {
		diags.AddAttributeError(path.Root("providers"), "Unable to use the providers", sentence(err.Error()))
	}
	return diags
}

// countProviders counts the entries. One that is not known counts beyond any
// number of known ones.
func countProviders(object types.Object) int {
	count := 0
	for member := range providerMaps {
		entries, ok := object.Attributes()[member].(types.Map)
		if !ok {
			continue
		}
		count += len(entries.Elements())
		if entries.IsUnknown() {
			count++
		}
	}
	return count
}

// certManagerAttribute is the attribute cert_manager of whatever installs
// providers.
func certManagerAttribute() schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		Required:            true,
		MarkdownDescription: "The cert-manager that issues the certificates of the providers' webhooks.",
		Attributes: map[string]schema.Attribute{
			"version": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "The release, with its v: `v1.21.0`. Required unless `external` is set.",
				Validators:          []validator.String{releaseVersion()},
			},
			"external": schema.BoolAttribute{
				Optional:            true,
				MarkdownDescription: "Somebody else installs it; it is only waited for.",
			},
		},
	}
}

type certManagerModel struct {
	Version  types.String `tfsdk:"version"`
	External types.Bool   `tfsdk:"external"`
}

func certManagerFrom(ctx context.Context, object types.Object) (certManager capi.CertManager, known bool, diags diag.Diagnostics) {
	if object.IsNull() || object.IsUnknown() {
		return certManager, false, nil
	}
	var model certManagerModel
	diags.Append(object.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if diags.HasError() || model.Version.IsUnknown() || model.External.IsUnknown() {
		return certManager, false, diags
	}
	certManager = capi.CertManager{Version: model.Version.ValueString(), External: model.External.ValueBool()}
	if certManager.External == (certManager.Version != "") {
		diags.AddAttributeError(path.Root("cert_manager"), "Unable to choose a cert-manager",
			"Set exactly one of version, for one that is installed here, and external = true, for one that somebody else installs.")
	}
	return certManager, !diags.HasError(), diags
}
