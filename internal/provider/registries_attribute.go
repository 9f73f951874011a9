// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
)

// registriesProviderAttribute is the provider block's map of credentials for
// chart registries and repositories.
func registriesProviderAttribute() schema.MapNestedAttribute {
	return schema.MapNestedAttribute{
		Optional: true,
		MarkdownDescription: "How to get into chart registries and repositories, by host (with the port, if its URL has one). Nothing of it lies in " +
			"state, and it may be fed by ephemeral values. Neither Helm's nor Docker's own files are read.",
		Validators: []validator.Map{mapvalidator.KeysAre(stringvalidator.RegexMatches(hostAndPort, "must be a host, as `quay.io` or `registry.example:5000`"))},
		NestedObject: schema.NestedAttributeObject{
			Attributes: map[string]schema.Attribute{
				"username": schema.StringAttribute{
					Optional: true, MarkdownDescription: "User name.",
					Validators: []validator.String{stringvalidator.AlsoRequires(path.MatchRelative().AtParent().AtName("password"))},
				},
				"password": schema.StringAttribute{
					Optional: true, Sensitive: true, MarkdownDescription: "Password or token. It is sent over TLS alone, but for hosts on this machine.",
					Validators: []validator.String{stringvalidator.AlsoRequires(path.MatchRelative().AtParent().AtName("username"))},
				},
				"ca_pem": schema.StringAttribute{
					Optional: true, MarkdownDescription: "Certificates (PEM) that the host's certificate is checked against instead of the system's.",
				},
			},
		},
	}
}

type registryModel struct {
	Username types.String `tfsdk:"username"`
	Password types.String `tfsdk:"password"`
	CAPEM    types.String `tfsdk:"ca_pem"`
}

// registries is the map as far as it is known.
type registries struct {
	logins map[string]helm.Login
	// unknown names an entry that is not known yet; the whole map is "the map".
	unknown string
}

func registriesFrom(ctx context.Context, entries types.Map) (registries, diag.Diagnostics) {
	var diags diag.Diagnostics
	found := registries{logins: map[string]helm.Login{}}
	if entries.IsUnknown() {
		found.unknown = "the map"
	}
	for host, element := range entries.Elements() {
		object, ok := element.(types.Object)
		if !ok || element.IsNull() {
			continue
		}
		if object.IsUnknown() {
			found.unknown = host
			continue
		}
		var model registryModel
		diags.Append(object.As(ctx, &model, basetypes.ObjectAsOptions{})...)
		if model.Username.IsUnknown() || model.Password.IsUnknown() || model.CAPEM.IsUnknown() {
			found.unknown = host
			continue
		}
		found.logins[host] = helm.Login{Username: model.Username.ValueString(), Password: model.Password.ValueString(), CAPEM: model.CAPEM.ValueString()}
	}
	return found, diags
}

// registryLogins answers the credentials for chart registries. At apply all of
// them are known.
func (d *providerData) registryLogins() (map[string]helm.Login, error) {
	if d.registries.unknown != "" {
		return nil, fmt.Errorf("registries (%s): %w", d.registries.unknown, errConfigurationUnknown)
	}
	return d.registries.logins, nil
}
