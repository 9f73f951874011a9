// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// clustersProviderAttribute is the provider block's map of named connections.
func clustersProviderAttribute() schema.MapNestedAttribute {
	return schema.MapNestedAttribute{
		Optional: true,
		MarkdownDescription: "Named connections to clusters that exist already. A resource refers to one by `{ cluster_name = \"...\" }`, so that no " +
			"credential lies in its state; the map may be fed by ephemeral values.",
		NestedObject: schema.NestedAttributeObject{
			Attributes: map[string]schema.Attribute{
				"kubeconfig": schema.StringAttribute{
					Optional:            true,
					Sensitive:           true,
					MarkdownDescription: "Content of a kubeconfig file. Give this or `kubeconfig_path`.",
					Validators: []validator.String{
						stringvalidator.ExactlyOneOf(path.MatchRelative().AtParent().AtName("kubeconfig_path")),
					},
				},
				"kubeconfig_path": schema.StringAttribute{
					Optional:            true,
					MarkdownDescription: "Path of a kubeconfig file on the machine that runs Terraform.",
				},
				"context": schema.StringAttribute{
					Optional:            true,
					MarkdownDescription: "Context of the kubeconfig to use. Defaults to its current context.",
				},
			},
		},
	}
}

// clusterEntry is one entry of the provider's clusters map.
type clusterEntry struct {
	access kube.Access
	// unknown says that part of the entry is not known yet.
	unknown bool
}

type clusterEntryModel struct {
	Kubeconfig     types.String `tfsdk:"kubeconfig"`
	KubeconfigPath types.String `tfsdk:"kubeconfig_path"`
	Context        types.String `tfsdk:"context"`
}

// clusterEntries reads the map as far as it is known.
func clusterEntries(ctx context.Context, clusters types.Map) (map[string]clusterEntry, diag.Diagnostics) {
	var diags diag.Diagnostics
	entries := map[string]clusterEntry{}
	for name, element := range clusters.Elements() {
		object, ok := element.(types.Object)
		if !ok || element.IsNull() {
			continue
		}
		if object.IsUnknown() {
			entries[name] = clusterEntry{unknown: true}
			continue
		}
		var model clusterEntryModel
		diags.Append(object.As(ctx, &model, basetypes.ObjectAsOptions{})...)
		entry := clusterEntry{
			access: kube.Access{
				KubeconfigPath: model.KubeconfigPath.ValueString(),
				Context:        model.Context.ValueString(),
			},
			unknown: model.Kubeconfig.IsUnknown() || model.KubeconfigPath.IsUnknown() || model.Context.IsUnknown(),
		}
		if given(model.Kubeconfig) {
			entry.access.Kubeconfig = []byte(model.Kubeconfig.ValueString())
		}
		entries[name] = entry
	}
	return entries, diags
}
