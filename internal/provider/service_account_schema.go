// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
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
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

func (r *serviceAccountResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	resp.Schema = schema.Schema{
		MarkdownDescription: "A user of Proxmox VE with a role, its entries in the access control list and an API token, as one unit, for Cluster API's Proxmox " +
			"provider to work as. Nothing that is there already is adopted; only what this resource has made is deleted.\n\n" +
			"Proxmox VE tells a token's secret once. It lies in the state as the sensitive attribute `credentials`. After an import it is null; a rotation brings a new one.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{
				Computed: true, PlanModifiers: keptValue(),
				MarkdownDescription: "User and token name, `capi@pve!capi-token`, as import takes it.",
			},
			"user_id": schema.StringAttribute{
				Required: true, PlanModifiers: replace, Validators: []validator.String{checked("a user of Proxmox VE", proxmox.CheckUserID)},
				MarkdownDescription: "User to make, as `name@realm`. A user without password of the realm `pve` can only be used through its token.",
			},
			"token_name": schema.StringAttribute{
				Required: true, Validators: []validator.String{checked("a token name", proxmox.CheckTokenName)},
				MarkdownDescription: "Name of the API token to make. Another name is a rotation: the new token stands beside the old one for `rotation_overlap`.",
			},
			"comment": schema.StringAttribute{
				Optional: true, Validators: []validator.String{stringvalidator.LengthBetween(1, 1500), stringvalidator.RegexMatches(oneLine, "must be one line")},
				PlanModifiers:       []planmodifier.String{blanksAside{}},
				MarkdownDescription: "Comment of user and token. This provider's mark is added behind it.",
			},
			"expires_at": schema.StringAttribute{
				Optional: true, Validators: []validator.String{checked("a time", checkTime)},
				MarkdownDescription: "When the token runs out, as an RFC 3339 time such as `2027-01-01T00:00:00Z`. It never does by default. Changed in place.",
			},
			"permissions": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(proxmox.LeastPrivilege),
				Validators: []validator.String{stringvalidator.OneOf(proxmox.LeastPrivilege, proxmox.Article, proxmox.Custom)},
				MarkdownDescription: "`least_privilege` (the default): roles of its own with what Cluster API's Proxmox provider calls for on this release of Proxmox VE, on `/` " +
					"or where `confine_to` says. `article`: the built-in roles PVEVMAdmin, PVEDatastoreAdmin, PVEAuditor and PVESDNAdmin on `/`, which allow more. " +
					"`custom`: those of `grants`.",
			},
			"confine_to": confineToAttribute(),
			"grants":     grantsAttribute(),
			"privilege_separation": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(true),
				MarkdownDescription: "Give the token permissions of its own (the same ones), so that more permissions for the user do not become the token's. Defaults to `true`.",
			},
			"rotate_when_changed": schema.MapAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Any values; another value makes a new token, which stands beside the old one for `rotation_overlap`, so that whatever uses `credentials` " +
					"has time to follow. The first values that are given change nothing.",
			},
			"rotation_overlap": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString("24h"), Validators: []validator.String{checked("a duration", checkOverlap)},
				MarkdownDescription: "How long a token that was replaced goes on working. Proxmox VE itself refuses it after that, and the next refresh removes it. `0s` deletes it " +
					"at once. Defaults to `24h`.",
			},
			"token_id": schema.StringAttribute{
				Computed: true, PlanModifiers: keptValue(),
				MarkdownDescription: "Id of the token in use: that of `token_name`, or after a rotation one with a number, `capi@pve!capi-token.2`.",
			},
			"retiring_tokens": schema.ListNestedAttribute{
				Computed: true, MarkdownDescription: "Tokens that a rotation has replaced and that are not removed yet.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"token_id":   schema.StringAttribute{Computed: true, MarkdownDescription: "Id of the token."},
					"expires_at": schema.StringAttribute{Computed: true, MarkdownDescription: "When Proxmox VE refuses it, RFC 3339."},
				}},
			},
			"credentials": schema.SingleNestedAttribute{
				Computed: true, Sensitive: true, PlanModifiers: []planmodifier.Object{objectplanmodifier.UseStateForUnknown()},
				MarkdownDescription: "How to reach Proxmox VE as this account, as providers and Secrets of Cluster API take it.",
				Attributes: map[string]schema.Attribute{
					"url":      schema.StringAttribute{Computed: true, MarkdownDescription: "Address of the API, `https://pve.example:8006`."},
					"token":    schema.StringAttribute{Computed: true, MarkdownDescription: "Id of the token, `capi@pve!capi-token`."},
					"secret":   schema.StringAttribute{Computed: true, MarkdownDescription: "Secret of the token; null after an import."},
					"insecure": schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the API's certificate is not checked, as in the provider block."},
					"ca":       schema.StringAttribute{Computed: true, MarkdownDescription: "Certificates (PEM) to check it against: those of the provider block, or the one that its fingerprint stands for; empty where it has neither."},
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

// confineToAttribute confines the least privileges.
func confineToAttribute() schema.SingleNestedAttribute {
	names := func(what, pattern, description string) schema.SetAttribute {
		return schema.SetAttribute{
			Optional: true, ElementType: types.StringType,
			Validators: []validator.Set{
				setvalidator.SizeAtLeast(1),
				setvalidator.ValueStringsAre(stringvalidator.RegexMatches(regexp.MustCompile(pattern), "must be "+what)),
			},
			MarkdownDescription: description,
		}
	}
	pool := []validator.String{stringvalidator.RegexMatches(regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}$`), "must be the name of a resource pool")}
	const storage = `^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$`
	return schema.SingleNestedAttribute{
		Optional: true,
		MarkdownDescription: "Confines the least privileges to a pool, to storages and to bridges. What is left out is not confined. To see its nodes the account has " +
			"Sys.Audit on `/` and `/nodes` in any case. Pools and storages must exist.",
		Attributes: map[string]schema.Attribute{
			"pool": schema.StringAttribute{
				Optional: true, Validators: pool,
				MarkdownDescription: "Resource pool of the machines. Name it as `pool` in each ProxmoxMachineTemplate: the account may make machines nowhere else.",
			},
			"template_pool": schema.StringAttribute{
				Optional: true, Validators: pool,
				MarkdownDescription: "Resource pool of the templates that may be cloned, and not changed. Without it and without `template_ids` templates lie where machines do.",
			},
			"template_ids": schema.SetAttribute{
				Optional: true, ElementType: types.Int64Type,
				Validators:          []validator.Set{setvalidator.SizeAtLeast(1), setvalidator.ValueInt64sAre(int64validator.Between(100, 999999999))},
				MarkdownDescription: "Ids of the templates that may be cloned, and not changed.",
			},
			"disk_storages":  names("the name of a storage", storage, "Storages of the machines' disks."),
			"image_storages": names("the name of a storage", storage, "Storages of the cloud-init images. With one alone, Cluster API's Proxmox provider, which takes the first that it sees, has no choice."),
			"bridges": schema.SetAttribute{
				Optional: true, ElementType: types.StringType,
				Validators:          []validator.Set{setvalidator.SizeAtLeast(1), setvalidator.ValueStringsAre(checked("a bridge or network", proxmox.CheckNetwork))},
				MarkdownDescription: "Bridges of the nodes, `vmbr0` or with a VLAN `vmbr0/100`, and networks of a zone, `zone/network`.",
			},
		},
	}
}

// grantsAttribute is the user's own list of permissions.
func grantsAttribute() schema.SetNestedAttribute {
	return schema.SetNestedAttribute{
		Optional: true, Validators: []validator.Set{setvalidator.SizeAtLeast(1)},
		MarkdownDescription: "Permissions of an account with `permissions = \"custom\"`. On Proxmox VE an entry on a deeper path replaces those above it: a path that is named here " +
			"needs all that the account is to do there.",
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"path": schema.StringAttribute{
				Required: true, Validators: []validator.String{checked("a path of the access control list", proxmox.CheckACLPath)},
				MarkdownDescription: "Path of the access control list: `/`, `/pool/NAME`, `/vms/100`, `/storage/NAME`, `/nodes/NAME`, `/sdn/zones/ZONE/NETWORK`.",
			},
			"role": schema.StringAttribute{
				Optional: true, Validators: []validator.String{checked("a role", proxmox.CheckRole)},
				MarkdownDescription: "Role that is there already. Give this or `privileges`.",
			},
			"privileges": schema.SetAttribute{
				Optional: true, ElementType: types.StringType,
				Validators:          []validator.Set{setvalidator.SizeAtLeast(1), setvalidator.ValueStringsAre(checked("a privilege", proxmox.CheckPrivilege))},
				MarkdownDescription: "Privileges, for which a role of the account's own is made. Give this or `role`.",
			},
			"propagate": schema.BoolAttribute{Optional: true, MarkdownDescription: "Hold on the paths below as well. Defaults to `true`."},
		}},
	}
}

// oneLine matches a text without line ends, which Proxmox VE's files do not hold.
var oneLine = regexp.MustCompile(`^[^\r\n]*$`)

func checkTime(text string) error {
	if _, err := time.Parse(time.RFC3339, text); err != nil {
		return fmt.Errorf("%q is not a time such as \"2027-01-01T00:00:00Z\"", text)
	}
	return nil
}

func checkOverlap(text string) error {
	if d, err := time.ParseDuration(text); err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration such as \"24h\" or \"0s\"", text)
	}
	return nil
}
