// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

func (r *proxmoxTemplateResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	attributes := proxmoxTemplatePlace()
	for name, attribute := range proxmoxTemplateSettings() {
		attributes[name] = attribute
	}
	attributes["talos"] = talosImageAttribute()
	attributes["timeouts"] = timeoutsAttribute(ctx, proxmoxTemplateTimeouts)
	attributes["phase"] = phaseAttribute()
	resp.Schema = schema.Schema{
		MarkdownDescription: "A VM template with Talos Linux on Proxmox VE (8.4 or newer), made over the REST API alone, with an API token: no SSH, no " +
			"root password. The image comes from an Image Factory and carries the extensions that are listed. Its content is its identity: a new Talos " +
			"version or another extension makes a new template, a changed size upstream does not.\n\n" +
			"Proxmox VE itself downloads the image where the account may let it (`Sys.AccessNetwork` on the node); else the image goes by way of the " +
			"machine that runs Terraform. An apply that was interrupted is continued by the next one.",
		Attributes: attributes,
	}
}

func keptValue() []planmodifier.String {
	return []planmodifier.String{stringplanmodifier.UseStateForUnknown()}
}

// proxmoxTemplatePlace are the attributes about where the template is made and
// what of.
func proxmoxTemplatePlace() map[string]schema.Attribute {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	return map[string]schema.Attribute{
		"id": schema.StringAttribute{
			Computed: true, PlanModifiers: keptValue(),
			MarkdownDescription: "Node and id of the template, `pve1/9000`, as import takes it.",
		},
		"node_name": schema.StringAttribute{
			Required: true, PlanModifiers: replace, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			MarkdownDescription: "Node that the template is made on. With local storage it can be cloned on that node only.",
		},
		"vm_id": schema.Int64Attribute{
			Optional: true, Computed: true,
			PlanModifiers:       []planmodifier.Int64{int64planmodifier.RequiresReplaceIfConfigured(), int64planmodifier.UseStateForUnknown()},
			Validators:          []validator.Int64{int64validator.Between(100, 999999999)},
			MarkdownDescription: "Id of the template. Defaults to the next free one of the cluster.",
		},
		"storage": schema.StringAttribute{
			Required: true, PlanModifiers: replace, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			MarkdownDescription: "Storage for the template's disks, with content `images`.",
		},
		"import_storage": schema.StringAttribute{
			Optional: true, Computed: true, PlanModifiers: keptValue(),
			MarkdownDescription: "Storage with content `import` that the image file is brought to. Defaults to the node's first. Used when a template is made.",
		},
		"keep_image": schema.BoolAttribute{
			Optional: true, Computed: true, Default: booldefault.StaticBool(false),
			MarkdownDescription: "Leave the image file in the import storage until the template is destroyed. Defaults to `false`: it is deleted once it is imported.",
		},
		"schematic_id": schema.StringAttribute{
			Computed:            true,
			MarkdownDescription: "Id of the image's schematic at any Image Factory, computed at plan time from extensions and kernel arguments.",
		},
		"image_url": schema.StringAttribute{
			Computed: true, MarkdownDescription: "Address of the image, computed at plan time.",
		},
		"disk_size": schema.Int64Attribute{
			Optional: true, Computed: true,
			PlanModifiers:       []planmodifier.Int64{int64planmodifier.RequiresReplaceIfConfigured(), int64planmodifier.UseStateForUnknown()},
			Validators:          []validator.Int64{int64validator.Between(1, 131072)},
			MarkdownDescription: "Size of the boot disk in GiB. Defaults to that of the image; clones can be larger. A machine needs about 10 GiB.",
		},
		"bios": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringdefault.StaticString("ovmf"), PlanModifiers: replace,
			Validators:          []validator.String{stringvalidator.OneOf("ovmf", "seabios")},
			MarkdownDescription: "Firmware: `ovmf` (UEFI, with an EFI disk without enrolled keys, machine type q35; the default) or `seabios`.",
		},
		"uuid": schema.StringAttribute{
			Computed: true, PlanModifiers: keptValue(),
			MarkdownDescription: "SMBIOS UUID of the template: its identity, since Proxmox VE uses ids again.",
		},
		"instance": schema.StringAttribute{
			Computed: true, PlanModifiers: keptValue(),
			MarkdownDescription: "UUID that marks the template in its notes as this resource's. Only what bears it is changed or deleted.",
		},
	}
}

// proxmoxTemplateSettings are the attributes that are changed in place.
func proxmoxTemplateSettings() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"name": schema.StringAttribute{
			Optional: true, Computed: true, Validators: []validator.String{checked("a DNS name", proxmox.CheckName)},
			MarkdownDescription: "Name of the template. Defaults to `talos-<version>-<first eight digits of the schematic>`.",
		},
		"description": schema.StringAttribute{
			Optional: true, Validators: []validator.String{stringvalidator.LengthBetween(1, 6000)},
			MarkdownDescription: "Notes of the template. A line with this provider's mark is added below.",
		},
		"tags": schema.SetAttribute{
			Optional: true, ElementType: types.StringType,
			Validators:          []validator.Set{setvalidator.SizeAtLeast(1), setvalidator.ValueStringsAre(checked("a tag", proxmox.CheckTag))},
			MarkdownDescription: "Tags, in lower case. Clones inherit them. A template selector of Cluster API's Proxmox provider wants one match in the whole cluster.",
		},
		"cpu_type": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringdefault.StaticString("x86-64-v2-AES"), Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			MarkdownDescription: "Type of the CPU. Defaults to `x86-64-v2-AES`, the least that Talos boots on; `host` is faster where no machine is migrated.",
		},
		"cores": schema.Int64Attribute{
			Optional: true, Computed: true, Default: int64default.StaticInt64(2), Validators: []validator.Int64{int64validator.Between(1, 512)},
			MarkdownDescription: "Cores. Defaults to 2; machines made by Cluster API set their own.",
		},
		"memory": schema.Int64Attribute{
			Optional: true, Computed: true, Default: int64default.StaticInt64(2048), Validators: []validator.Int64{int64validator.Between(256, 16777216)},
			MarkdownDescription: "Memory in MiB. Defaults to 2048; machines made by Cluster API set their own.",
		},
		"agent": schema.BoolAttribute{
			Optional: true, Computed: true,
			MarkdownDescription: "The guest runs the QEMU guest agent. Defaults to whether the extension `siderolabs/qemu-guest-agent` is in the image.",
		},
		"bridge": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringdefault.StaticString("vmbr0"),
			MarkdownDescription: "Bridge of the first network device. Defaults to `vmbr0`; an empty string leaves the device out.",
		},
		"vlan_id": schema.Int64Attribute{
			Optional: true, Validators: []validator.Int64{int64validator.Between(1, 4094)},
			MarkdownDescription: "VLAN tag of the first network device.",
		},
	}
}

func talosImageAttribute() schema.SingleNestedAttribute {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	return schema.SingleNestedAttribute{
		Required:            true,
		MarkdownDescription: "The Talos image. Everything in it but `factory_url` makes a new template when it changes.",
		Attributes: map[string]schema.Attribute{
			"version": schema.StringAttribute{
				Required: true, PlanModifiers: replace, Validators: []validator.String{checked("a Talos version", talos.CheckVersion)},
				MarkdownDescription: "Talos release, for example `v1.13.7`.",
			},
			"extensions": schema.SetAttribute{
				Optional: true, ElementType: types.StringType, Validators: []validator.Set{setvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Official system extensions, for example `siderolabs/qemu-guest-agent`.",
			},
			"extra_kernel_args": schema.ListAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Kernel arguments to add, in this order.",
			},
			"architecture": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(talos.Architectures[0]), PlanModifiers: replace,
				Validators:          []validator.String{stringvalidator.OneOf(talos.Architectures...)},
				MarkdownDescription: "`amd64` (the default) or `arm64`.",
			},
			"factory_url": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(talos.DefaultFactory),
				MarkdownDescription: "Address of the Image Factory, which both Proxmox VE and this machine must reach. Defaults to `" + talos.DefaultFactory + "`.",
			},
		},
	}
}

// checkedValidator runs an engine's own check on a string.
type checkedValidator struct {
	what  string
	check func(string) error
}

func checked(what string, check func(string) error) validator.String {
	return checkedValidator{what: what, check: check}
}

func (v checkedValidator) Description(context.Context) string         { return "must be " + v.what }
func (v checkedValidator) MarkdownDescription(context.Context) string { return "must be " + v.what }

// ValidateString reports the check's own words.
func (v checkedValidator) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if !given(req.ConfigValue) {
		return
	}
	if err := v.check(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "Unable to use the value", sentence(err.Error()))
	}
}
