// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/boolplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/defaults"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/listdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/objectdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

func stringDefault(value string) defaults.String { return stringdefault.StaticString(value) }

func replacedBool() []planmodifier.Bool {
	return []planmodifier.Bool{boolplanmodifier.RequiresReplace()}
}

func defaultDisk() defaults.Object {
	return objectdefault.StaticValue(types.ObjectValueMust(diskTypes, map[string]attr.Value{
		"discard": types.BoolValue(true), "ssd": types.BoolValue(true), "iothread": types.BoolValue(false), "cache": types.StringNull(),
	}))
}

func defaultNetworkDevices() defaults.List {
	object := types.ObjectType{AttrTypes: networkDeviceTypes}
	return listdefault.StaticValue(types.ListValueMust(object, []attr.Value{types.ObjectValueMust(networkDeviceTypes, map[string]attr.Value{
		"bridge": types.StringValue("vmbr0"), "vlan_id": types.Int64Null(), "model": types.StringValue("virtio"), "mtu": types.Int64Null(),
		"queues": types.Int64Null(), "rate": types.Int64Null(), "firewall": types.BoolValue(false),
	})}))
}

// proxmoxTemplateSettings are the attributes that are changed in place.
func proxmoxTemplateSettings() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"name": schema.StringAttribute{
			Optional: true, Computed: true, Validators: []validator.String{checked("a DNS name", proxmox.CheckName)},
			MarkdownDescription: "Name of the template. Defaults to `talos-<version>-<first eight digits of the schematic>`, or to the name of the image file with the first " +
				"eight digits of its identity.",
		},
		"description": schema.StringAttribute{
			Optional: true, Validators: []validator.String{stringvalidator.LengthBetween(1, 6000)}, PlanModifiers: []planmodifier.String{blanksAside{}},
			MarkdownDescription: "Notes of the template. A line with this provider's mark is added below.",
		},
		"tags": schema.SetAttribute{
			Optional: true, ElementType: types.StringType,
			Validators:          []validator.Set{setvalidator.SizeAtLeast(1), setvalidator.ValueStringsAre(checked("a tag", proxmox.CheckTag))},
			MarkdownDescription: "Tags, in lower case. Clones inherit them. A template selector of Cluster API's Proxmox provider wants one match in the whole cluster.",
		},
		"pool": schema.StringAttribute{
			Optional: true, Validators: []validator.String{checked("a pool", proxmox.CheckPool)},
			MarkdownDescription: "Pool of resources that the template is put into, which must exist. Moving it later needs `Pool.Allocate` on the pools, and `Pool.Audit` to see it.",
		},
		"cpu_type": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringDefault("x86-64-v2-AES"), Validators: []validator.String{checked("a CPU", proxmox.CheckCPU)},
			MarkdownDescription: "Type of the CPU. Defaults to `x86-64-v2-AES`, the least that Talos boots on; `host` is faster where no machine is migrated.",
		},
		"cores": schema.Int64Attribute{
			Optional: true, Computed: true, Default: int64default.StaticInt64(2), Validators: []validator.Int64{int64validator.Between(1, 512)},
			MarkdownDescription: "Cores per socket. Defaults to 2; machines made by Cluster API set their own.",
		},
		"sockets": schema.Int64Attribute{
			Optional: true, Computed: true, Default: int64default.StaticInt64(1), Validators: []validator.Int64{int64validator.Between(1, 4)},
			MarkdownDescription: "Sockets. Defaults to 1.",
		},
		"numa": settingBool(false, "Show the machine's memory as that of a NUMA node for each socket."),
		"memory": schema.Int64Attribute{
			Optional: true, Computed: true, Default: int64default.StaticInt64(2048), Validators: []validator.Int64{int64validator.Between(256, 16777216)},
			MarkdownDescription: "Memory in MiB. Defaults to 2048; machines made by Cluster API set their own.",
		},
		"balloon": schema.Int64Attribute{
			Optional: true, Validators: []validator.Int64{int64validator.Between(0, 16777216)},
			MarkdownDescription: "Least memory in MiB that ballooning leaves; `0` turns ballooning off. Defaults to Proxmox VE's own: the device is there, and the memory stays.",
		},
		"agent": schema.BoolAttribute{
			Optional: true, Computed: true,
			MarkdownDescription: "The guest runs the QEMU guest agent. Defaults to whether the extension `siderolabs/qemu-guest-agent` is named in `talos`; with another " +
				"image, or a schematic given by its id, say so.",
		},
		"start_on_boot": settingBool(false, "Start clones when their node starts."),
		"protection":    settingBool(false, "Have Proxmox VE refuse to delete the template. It has to be taken away, and applied, before a destroy."),
	}
}

// proxmoxTemplateDevices are the devices that are changed in place.
func proxmoxTemplateDevices() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"os_type": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringDefault("l26"), Validators: []validator.String{stringvalidator.OneOf(proxmox.OSTypes...)},
			MarkdownDescription: "Operating system, for which Proxmox VE chooses details of the hardware. Defaults to `l26`, Linux.",
		},
		"machine": schema.StringAttribute{
			Optional: true, Computed: true, Validators: []validator.String{checked("a machine type", proxmox.CheckMachine)},
			MarkdownDescription: "Type of the machine. Defaults to `q35` with `bios = \"ovmf\"`, else to Proxmox VE's own.",
		},
		"scsi_controller": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringDefault("virtio-scsi-pci"), Validators: []validator.String{stringvalidator.OneOf(proxmox.SCSIControllers...)},
			MarkdownDescription: "SCSI controller. Defaults to `virtio-scsi-pci`.",
		},
		"vga": schema.StringAttribute{
			Optional: true, Validators: []validator.String{checked("a display", proxmox.CheckVGA)},
			MarkdownDescription: "Display, such as `std` or `serial0`. Defaults to Proxmox VE's own.",
		},
		"serial": settingBool(true, "A serial port, on which Talos shows its log (`qm terminal`)."),
		"rng":    settingBool(false, "A source of random numbers, fed from the node's `/dev/urandom`."),
		"network_devices": schema.ListNestedAttribute{
			Optional: true, Computed: true, Default: defaultNetworkDevices(), Validators: []validator.List{listvalidator.SizeAtMost(32)},
			MarkdownDescription: "Network devices, `net0` first. Defaults to one on `vmbr0`; an empty list leaves them out. Addresses are Proxmox VE's own, and new in every clone.",
			NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
				"bridge":  schema.StringAttribute{Required: true, Validators: []validator.String{checked("a bridge", proxmox.CheckBridge)}, MarkdownDescription: "Bridge, such as `vmbr0`."},
				"vlan_id": schema.Int64Attribute{Optional: true, Validators: []validator.Int64{int64validator.Between(1, 4094)}, MarkdownDescription: "VLAN tag."},
				"model": schema.StringAttribute{
					Optional: true, Computed: true, Default: stringDefault("virtio"), Validators: []validator.String{stringvalidator.OneOf(proxmox.NetworkModels...)},
					MarkdownDescription: "Model. Defaults to `virtio`.",
				},
				"mtu":    schema.Int64Attribute{Optional: true, Validators: []validator.Int64{int64validator.Between(1, 65520)}, MarkdownDescription: "MTU; `1` takes that of the bridge."},
				"queues": schema.Int64Attribute{Optional: true, Validators: []validator.Int64{int64validator.Between(1, 64)}, MarkdownDescription: "Number of queues."},
				"rate":   schema.Int64Attribute{Optional: true, Validators: []validator.Int64{int64validator.Between(1, 10240)}, MarkdownDescription: "Limit in MB/s."},
				"firewall": schema.BoolAttribute{
					Optional: true, Computed: true, Default: booldefault.StaticBool(false), MarkdownDescription: "Put Proxmox VE's firewall in between. Defaults to `false`.",
				},
			}},
		},
	}
}

// settingBool is a switch with a default, which its description names.
func settingBool(value bool, description string) schema.BoolAttribute {
	text := "`false`"
	if value {
		text = "`true`"
	}
	return schema.BoolAttribute{
		Optional: true, Computed: true, Default: booldefault.StaticBool(value), MarkdownDescription: description + " Defaults to " + text + ".",
	}
}

// checkedValidator runs an engine's own check on a string.
type checkedValidator struct {
	what    string
	summary string
	check   func(string) error
}

func checked(what string, check func(string) error) validator.String {
	return checkedAs(what, "Unable to use the value", check)
}

// checkedAs is checked with an error of its own summary.
func checkedAs(what, summary string, check func(string) error) validator.String {
	return checkedValidator{what: what, summary: summary, check: check}
}

func (v checkedValidator) Description(context.Context) string         { return "must be " + v.what }
func (v checkedValidator) MarkdownDescription(context.Context) string { return "must be " + v.what }

// ValidateString reports the check's own words.
func (v checkedValidator) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if !given(req.ConfigValue) {
		return
	}
	if err := v.check(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, v.summary, sentence(err.Error()))
	}
}
