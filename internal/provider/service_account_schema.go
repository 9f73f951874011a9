// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/objectplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

func (r *serviceAccountResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	resp.Schema = schema.Schema{
		MarkdownDescription: "A user of Proxmox VE with a role, its entries in the access control list and an API token, as one unit, for Cluster API's Proxmox " +
			"provider to work as. Nothing that is there already is adopted; only what this resource has made is deleted.\n\n" +
			"Proxmox VE tells a token's secret once. It lies in the state as the sensitive attribute `credentials`. After an import it is null.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{
				Computed: true, PlanModifiers: keptValue(),
				MarkdownDescription: "Id of the token, `capi@pve!capi-token`, as import takes it.",
			},
			"user_id": schema.StringAttribute{
				Required: true, PlanModifiers: replace, Validators: []validator.String{checked("a user of Proxmox VE", proxmox.CheckUserID)},
				MarkdownDescription: "User to make, as `name@realm`. A user without password of the realm `pve` can only be used through its token.",
			},
			"token_name": schema.StringAttribute{
				Required: true, PlanModifiers: replace, Validators: []validator.String{checked("a token name", proxmox.CheckTokenName)},
				MarkdownDescription: "Name of the API token to make.",
			},
			"comment": schema.StringAttribute{
				Optional: true, Validators: []validator.String{stringvalidator.LengthBetween(1, 1500)},
				MarkdownDescription: "Comment of user and token. This provider's mark is added behind it.",
			},
			"permissions": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(proxmox.LeastPrivilege),
				Validators: []validator.String{stringvalidator.OneOf(proxmox.LeastPrivilege, proxmox.Article)},
				MarkdownDescription: "`least_privilege` (the default): a role of its own with what Cluster API's Proxmox provider calls for. `article`: the built-in roles " +
					"PVEVMAdmin, PVEDatastoreAdmin, PVEAuditor and PVESDNAdmin, which allow more. Either way on `/`.",
			},
			"privilege_separation": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(true),
				MarkdownDescription: "Give the token permissions of its own (the same ones), so that more permissions for the user do not become the token's. Defaults to `true`.",
			},
			"credentials": schema.SingleNestedAttribute{
				Computed: true, Sensitive: true, PlanModifiers: []planmodifier.Object{objectplanmodifier.UseStateForUnknown()},
				MarkdownDescription: "How to reach Proxmox VE as this account, as providers and Secrets of Cluster API take it.",
				Attributes: map[string]schema.Attribute{
					"url":      schema.StringAttribute{Computed: true, MarkdownDescription: "Address of the API, `https://pve.example:8006`."},
					"token":    schema.StringAttribute{Computed: true, MarkdownDescription: "Id of the token, `capi@pve!capi-token`."},
					"secret":   schema.StringAttribute{Computed: true, MarkdownDescription: "Secret of the token; null after an import."},
					"insecure": schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the API's certificate is not checked, as in the provider block."},
					"ca":       schema.StringAttribute{Computed: true, MarkdownDescription: "Certificates (PEM) to check it against, as in the provider block; empty where it has none."},
				},
			},
			"credentials_version": schema.Int64Attribute{
				Computed: true, PlanModifiers: []planmodifier.Int64{int64planmodifier.UseStateForUnknown()},
				MarkdownDescription: "Number that grows whenever `credentials` changes, for `secrets_wo_version` and the like.",
			},
			"instance": schema.StringAttribute{
				Computed: true, PlanModifiers: keptValue(),
				MarkdownDescription: "UUID that marks user and token in their comments as this resource's. Only what bears it is changed or deleted.",
			},
			"phase":    phaseAttribute(),
			"timeouts": timeoutsAttribute(ctx, serviceAccountTimeouts),
		},
	}
}
