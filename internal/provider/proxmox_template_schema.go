// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"maps"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/objectplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

func (r *proxmoxTemplateResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	attributes := proxmoxTemplatePlace()
	maps.Copy(attributes, proxmoxTemplateSource())
	maps.Copy(attributes, proxmoxTemplateHardware())
	maps.Copy(attributes, proxmoxTemplateSettings())
	maps.Copy(attributes, proxmoxTemplateDevices())
	attributes["timeouts"] = timeoutsAttribute(ctx, proxmoxTemplateTimeouts)
	attributes["phase"] = phaseAttribute()
	resp.Schema = schema.Schema{
		MarkdownDescription: "A VM template on Proxmox VE (8.1 or newer), made over the REST API alone: no SSH. Its image is one of Talos from an Image Factory, " +
			"or any qcow2, raw or vmdk image at a URL or in a file, such as one of image-builder for kubeadm, RKE2 or k3s machines. Its content is its identity: a new " +
			"Talos version, another extension or another checksum makes a new template, a changed size upstream does not.\n\n" +
			"How the image comes to the node is chosen from the release, the login, the storages, the compression and the privileges, and told in `image_transfer`: " +
			"the node downloads it where it may (`Sys.AccessNetwork`); else it goes by way of the machine that runs Terraform, which also unpacks what Proxmox VE " +
			"does not. From 8.4 on an API token is enough. From 8.1 to 8.3 Proxmox VE imports disks from paths alone, which it allows to no token: log in as " +
			"`root@pam` with its password there. An apply that was interrupted is continued by the next one.",
		Attributes: attributes,
	}
}

func keptValue() []planmodifier.String {
	return []planmodifier.String{stringplanmodifier.UseStateForUnknown()}
}

// proxmoxTemplatePlace are the attributes about where the template is made.
func proxmoxTemplatePlace() map[string]schema.Attribute {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	storage := []validator.String{checked("a storage", proxmox.CheckStorage)}
	return map[string]schema.Attribute{
		"id": schema.StringAttribute{
			Computed:            true,
			MarkdownDescription: "Node and id of the template as import takes them, `pve1/9000`; on several nodes `pve1/9000,pve2/9001`.",
		},
		"node_name": schema.StringAttribute{
			Optional: true, PlanModifiers: replace,
			Validators:          []validator.String{checked("a node", proxmox.CheckNode), stringvalidator.ExactlyOneOf(path.MatchRoot("node_name"), path.MatchRoot("node_names"))},
			MarkdownDescription: "Node that the template is made on. With local storage it can be cloned on that node only; `node_names` makes one on each.",
		},
		"node_names": schema.SetAttribute{
			Optional: true, ElementType: types.StringType,
			Validators: []validator.Set{setvalidator.SizeAtLeast(1), setvalidator.ValueStringsAre(checked("a node", proxmox.CheckNode))},
			MarkdownDescription: "Nodes that a template is made on each, for storage that is local to each. Every one gets a tag of its own, see `node_tags`. " +
				"Nodes can be added and taken away in place.",
		},
		"node_tag_prefix": schema.StringAttribute{
			Optional: true, Validators: []validator.String{checked("the beginning of a tag", proxmox.CheckTag)},
			MarkdownDescription: "The tag that tells a template from those on the other `node_names` is this, a dash and the node. Defaults to the template's name.",
		},
		"vm_id": schema.Int64Attribute{
			Optional: true, Computed: true,
			PlanModifiers: []planmodifier.Int64{int64planmodifier.RequiresReplaceIfConfigured()},
			Validators: []validator.Int64{int64validator.Between(100, 999999999),
				int64validator.ConflictsWith(path.MatchRoot("node_names"), path.MatchRoot("vm_id_range"))},
			MarkdownDescription: "Id of the template. Defaults to the next free one of the cluster. Null where there are several, see `vm_ids`.",
		},
		"vm_id_range": schema.SingleNestedAttribute{
			Optional:            true,
			MarkdownDescription: "Range of ids of which the lowest free one is taken when a template is made. Proxmox VE reserves none: set one aside for templates.",
			Attributes: map[string]schema.Attribute{
				"start": schema.Int64Attribute{Required: true, Validators: []validator.Int64{int64validator.Between(100, 999999999)}, MarkdownDescription: "First id."},
				"end":   schema.Int64Attribute{Required: true, Validators: []validator.Int64{int64validator.Between(100, 999999999)}, MarkdownDescription: "Last id."},
			},
		},
		"vm_ids": schema.MapAttribute{
			Computed: true, ElementType: types.Int64Type,
			MarkdownDescription: "Id of the template by node.",
		},
		"uuids": schema.MapAttribute{
			Computed: true, ElementType: types.StringType,
			MarkdownDescription: "SMBIOS UUID of the template by node: its identity, since Proxmox VE uses ids again.",
		},
		"node_tags": schema.MapAttribute{
			Computed: true, ElementType: nodeTagsType,
			MarkdownDescription: "All tags of the template by node, as a template selector (`matchTags`) of Cluster API's Proxmox provider takes them: it wants one " +
				"match in the whole cluster. Make one ProxmoxMachineTemplate for each node.",
		},
		"storage": schema.StringAttribute{
			Required: true, PlanModifiers: replace, Validators: storage,
			MarkdownDescription: "Storage for the template's disks, with content `images`. A shared one serves all nodes with a single template.",
		},
		"import_storage": schema.StringAttribute{
			Optional: true, Validators: storage,
			MarkdownDescription: "Storage that the image file is brought to: one with content `import` from Proxmox VE 8.4 on, with content `iso` before. Defaults to the " +
				"node's first. Used when a template is made.",
		},
		"keep_image": schema.BoolAttribute{
			Optional: true, Computed: true, Default: booldefault.StaticBool(false),
			MarkdownDescription: "Leave the image file in the import storage until the template is destroyed. Defaults to `false`: it is deleted once it is imported.",
		},
		"upload_image": schema.BoolAttribute{
			Optional: true, Computed: true, Default: booldefault.StaticBool(false),
			MarkdownDescription: "Let the image go by way of the machine that runs Terraform, for nodes that cannot reach it. Defaults to `false`. A node whose download " +
				"fails is helped in this way anyhow. Used when a template is made.",
		},
		"image_transfer": schema.MapNestedAttribute{
			Computed:            true,
			MarkdownDescription: "How the image came to each node, and why so. Empty for nodes whose template was imported into the state.",
			NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
				"method": schema.StringAttribute{Computed: true, MarkdownDescription: "`download` (by the node), `upload` (by way of this machine), or `download_iso` and " +
					"`upload_iso`, the same among the ISO images."},
				"reason": schema.StringAttribute{Computed: true, MarkdownDescription: "Why this one was chosen."},
			}},
		},
		"family": schema.StringAttribute{
			Optional: true, Validators: []validator.String{stringvalidator.LengthBetween(1, familyLabelLength)},
			MarkdownDescription: "What the templates that follow one another have in common, for `keep_last`: a name that no other resource uses on these nodes.",
		},
		"keep_last": schema.Int64Attribute{
			Optional: true, Validators: []validator.Int64{int64validator.Between(0, 100)},
			MarkdownDescription: "How many earlier templates of the `family` stay when a new one takes their place, so that machines can still be made of them by id. " +
				"They lose their tags. Older ones are deleted, unless linked clones use them or they are protected. Defaults to `0`. A destroy deletes all of them.",
		},
		"instance": schema.StringAttribute{
			Computed: true, PlanModifiers: keptValue(),
			MarkdownDescription: "UUID that marks the template in its notes as this resource's. Only what bears it is changed or deleted.",
		},
	}
}

// proxmoxTemplateHardware are the attributes that a template has for good.
func proxmoxTemplateHardware() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"disk_size": schema.Int64Attribute{
			Optional: true, Computed: true,
			PlanModifiers:       []planmodifier.Int64{int64planmodifier.RequiresReplaceIfConfigured(), int64planmodifier.UseStateForUnknown()},
			Validators:          []validator.Int64{int64validator.Between(1, 131072)},
			MarkdownDescription: "Size of the boot disk in GiB. Defaults to that of the image; clones can be larger. A Talos machine needs about 10 GiB.",
		},
		"disk": schema.SingleNestedAttribute{
			Optional: true, Computed: true, Default: defaultDisk(), PlanModifiers: []planmodifier.Object{objectplanmodifier.RequiresReplace()},
			MarkdownDescription: "Options of the boot disk, `scsi0`.",
			Attributes: map[string]schema.Attribute{
				"discard":  schema.BoolAttribute{Optional: true, Computed: true, Default: booldefault.StaticBool(true), MarkdownDescription: "Pass the guest's TRIM on to the storage. Defaults to `true`."},
				"ssd":      schema.BoolAttribute{Optional: true, Computed: true, Default: booldefault.StaticBool(true), MarkdownDescription: "Show the disk as a solid state disk. Defaults to `true`."},
				"iothread": schema.BoolAttribute{Optional: true, Computed: true, Default: booldefault.StaticBool(false), MarkdownDescription: "A thread of its own, with `scsi_controller = \"virtio-scsi-single\"`. Defaults to `false`."},
				"cache": schema.StringAttribute{
					Optional: true, Validators: []validator.String{stringvalidator.OneOf(proxmox.DiskCaches...)},
					MarkdownDescription: "Cache mode, such as `writeback`. Defaults to Proxmox VE's own.",
				},
			},
		},
		"bios": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringDefault("ovmf"), PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()},
			Validators:          []validator.String{stringvalidator.OneOf("ovmf", "seabios")},
			MarkdownDescription: "Firmware: `ovmf` (UEFI with an EFI disk; the default) or `seabios`.",
		},
		"pre_enrolled_keys": schema.BoolAttribute{
			Optional: true, Computed: true, Default: booldefault.StaticBool(false), PlanModifiers: replacedBool(),
			MarkdownDescription: "Put the keys of Microsoft and the distributions into the EFI disk, which turns Secure Boot on with them. Defaults to `false`, as Talos wants it: " +
				"its plain images are not signed, and its Secure Boot images enrol their own keys at the first boot.",
		},
		"tpm": schema.BoolAttribute{
			Optional: true, Computed: true, Default: booldefault.StaticBool(false), PlanModifiers: replacedBool(),
			MarkdownDescription: "Give machines a TPM 2.0, for example for disk encryption bound to it. Defaults to `false`.",
		},
		"cloud_init_storage": schema.StringAttribute{
			Optional: true, PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()}, Validators: []validator.String{checked("a storage", proxmox.CheckStorage)},
			MarkdownDescription: "Storage for Proxmox VE's own cloud-init drive. By default there is none: Cluster API's Proxmox provider attaches a drive of its own, and the two would compete.",
		},
	}
}
