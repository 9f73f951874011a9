// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

// proxmoxTemplateModel is the resource capi_proxmox_template.
type proxmoxTemplateModel struct {
	ID            types.String `tfsdk:"id"`
	NodeName      types.String `tfsdk:"node_name"`
	NodeNames     types.Set    `tfsdk:"node_names"`
	NodeTagPrefix types.String `tfsdk:"node_tag_prefix"`
	VMID          types.Int64  `tfsdk:"vm_id"`
	VMIDRange     types.Object `tfsdk:"vm_id_range"`
	VMIDs         types.Map    `tfsdk:"vm_ids"`
	UUIDs         types.Map    `tfsdk:"uuids"`
	NodeTags      types.Map    `tfsdk:"node_tags"`
	Storage       types.String `tfsdk:"storage"`
	ImportStorage types.String `tfsdk:"import_storage"`
	KeepImage     types.Bool   `tfsdk:"keep_image"`
	UploadImage   types.Bool   `tfsdk:"upload_image"`
	ImageTransfer types.Map    `tfsdk:"image_transfer"`
	Family        types.String `tfsdk:"family"`
	KeepLast      types.Int64  `tfsdk:"keep_last"`

	Talos            types.Object `tfsdk:"talos"`
	URL              types.String `tfsdk:"url"`
	File             types.String `tfsdk:"file"`
	Checksum         types.String `tfsdk:"checksum"`
	ImageFormat      types.String `tfsdk:"image_format"`
	ImageCompression types.String `tfsdk:"image_compression"`
	SchematicID      types.String `tfsdk:"schematic_id"`
	ImageURL         types.String `tfsdk:"image_url"`
	ImageID          types.String `tfsdk:"image_id"`

	DiskSize         types.Int64  `tfsdk:"disk_size"`
	Disk             types.Object `tfsdk:"disk"`
	BIOS             types.String `tfsdk:"bios"`
	PreEnrolledKeys  types.Bool   `tfsdk:"pre_enrolled_keys"`
	TPM              types.Bool   `tfsdk:"tpm"`
	CloudInitStorage types.String `tfsdk:"cloud_init_storage"`

	Name           types.String `tfsdk:"name"`
	Description    types.String `tfsdk:"description"`
	Tags           types.Set    `tfsdk:"tags"`
	Pool           types.String `tfsdk:"pool"`
	CPUType        types.String `tfsdk:"cpu_type"`
	Cores          types.Int64  `tfsdk:"cores"`
	Sockets        types.Int64  `tfsdk:"sockets"`
	NUMA           types.Bool   `tfsdk:"numa"`
	Memory         types.Int64  `tfsdk:"memory"`
	Balloon        types.Int64  `tfsdk:"balloon"`
	OSType         types.String `tfsdk:"os_type"`
	Machine        types.String `tfsdk:"machine"`
	SCSIController types.String `tfsdk:"scsi_controller"`
	VGA            types.String `tfsdk:"vga"`
	Serial         types.Bool   `tfsdk:"serial"`
	RNG            types.Bool   `tfsdk:"rng"`
	Agent          types.Bool   `tfsdk:"agent"`
	StartOnBoot    types.Bool   `tfsdk:"start_on_boot"`
	Protection     types.Bool   `tfsdk:"protection"`
	NetworkDevices types.List   `tfsdk:"network_devices"`

	Instance types.String   `tfsdk:"instance"`
	Phase    types.String   `tfsdk:"phase"`
	Timeouts timeouts.Value `tfsdk:"timeouts"`
}

// networkDeviceModel is an entry of network_devices.
type networkDeviceModel struct {
	Bridge   types.String `tfsdk:"bridge"`
	VLAN     types.Int64  `tfsdk:"vlan_id"`
	Model    types.String `tfsdk:"model"`
	MTU      types.Int64  `tfsdk:"mtu"`
	Queues   types.Int64  `tfsdk:"queues"`
	Rate     types.Int64  `tfsdk:"rate"`
	Firewall types.Bool   `tfsdk:"firewall"`
}

// diskModel is the attribute disk.
type diskModel struct {
	Discard  types.Bool   `tfsdk:"discard"`
	SSD      types.Bool   `tfsdk:"ssd"`
	IOThread types.Bool   `tfsdk:"iothread"`
	Cache    types.String `tfsdk:"cache"`
}

// vmIDRangeModel is the attribute vm_id_range.
type vmIDRangeModel struct {
	Start types.Int64 `tfsdk:"start"`
	End   types.Int64 `tfsdk:"end"`
}

// imageTransferModel is an entry of image_transfer.
type imageTransferModel struct {
	Method types.String `tfsdk:"method"`
	Reason types.String `tfsdk:"reason"`
}

var (
	networkDeviceTypes = map[string]attr.Type{
		"bridge": types.StringType, "vlan_id": types.Int64Type, "model": types.StringType, "mtu": types.Int64Type,
		"queues": types.Int64Type, "rate": types.Int64Type, "firewall": types.BoolType,
	}
	diskTypes          = map[string]attr.Type{"discard": types.BoolType, "ssd": types.BoolType, "iothread": types.BoolType, "cache": types.StringType}
	imageTransferTypes = map[string]attr.Type{"method": types.StringType, "reason": types.StringType}
	nodeTagsType       = types.SetType{ElemType: types.StringType}
)

// nodes are the nodes that the template is to be on, in order. known is false
// where one of them is not known yet.
func (m proxmoxTemplateModel) nodes(ctx context.Context) (names []string, known bool) {
	if m.NodeNames.IsNull() {
		return []string{m.NodeName.ValueString()}, !m.NodeName.IsUnknown()
	}
	names = stringsOf(m.NodeNames.Elements())
	slices.Sort(names)
	return names, wholly(ctx, m.NodeNames)
}

// place is where the template is on a node.
type place struct {
	VMID int64
	UUID string
}

// places are those known to be, by node.
func (m proxmoxTemplateModel) places() map[string]place {
	out := map[string]place{}
	for node, value := range m.VMIDs.Elements() {
		if id, ok := value.(types.Int64); ok && !id.IsNull() && !id.IsUnknown() {
			out[node] = place{VMID: id.ValueInt64()}
		}
	}
	for node, value := range m.UUIDs.Elements() {
		if uuid, ok := value.(types.String); ok {
			if p, there := out[node]; there {
				p.UUID = uuid.ValueString()
				out[node] = p
			}
		}
	}
	return out
}

// setPlaces writes where the template is.
func (m *proxmoxTemplateModel) setPlaces(places map[string]place) {
	ids, uuids := map[string]attr.Value{}, map[string]attr.Value{}
	var names []string
	for _, node := range slices.Sorted(maps.Keys(places)) {
		p := places[node]
		ids[node], uuids[node] = types.Int64Value(p.VMID), types.StringValue(p.UUID)
		names = append(names, placeID(node, p.VMID))
	}
	m.VMIDs, m.UUIDs = types.MapValueMust(types.Int64Type, ids), types.MapValueMust(types.StringType, uuids)
	m.ID = types.StringNull()
	if len(names) > 0 {
		m.ID = types.StringValue(strings.Join(names, ","))
	}
	if m.NodeNames.IsNull() {
		m.VMID = types.Int64Null()
		for _, p := range places {
			m.VMID = types.Int64Value(p.VMID)
		}
	}
}

// nodeTag is what tells the template on a node from those on the others; empty
// where there are no others.
func (m proxmoxTemplateModel) nodeTag(node string) string {
	if m.NodeNames.IsNull() {
		return ""
	}
	prefix := m.NodeTagPrefix.ValueString()
	if prefix == "" {
		prefix = m.Name.ValueString()
	}
	return strings.ToLower(prefix + "-" + node)
}

// tagsOn are the tags of the template on a node.
func (m proxmoxTemplateModel) tagsOn(node string) []string {
	tags := stringsOf(m.Tags.Elements())
	if tag := m.nodeTag(node); tag != "" {
		tags = append(tags, tag)
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// tagMap writes tags by node as the attribute node_tags has them.
func tagMap(tags map[string][]string) types.Map {
	out := map[string]attr.Value{}
	for node, list := range tags {
		values := []attr.Value{}
		for _, tag := range list {
			values = append(values, types.StringValue(tag))
		}
		out[node] = types.SetValueMust(types.StringType, values)
	}
	return types.MapValueMust(nodeTagsType, out)
}

// settings answers what can be changed on the finished template of a node.
func (m proxmoxTemplateModel) settings(ctx context.Context, node string) proxmox.TemplateSettings {
	out := proxmox.TemplateSettings{
		Name:           m.Name.ValueString(),
		Description:    m.Description.ValueString(),
		Tags:           m.tagsOn(node),
		Pool:           m.Pool.ValueString(),
		CPUType:        m.CPUType.ValueString(),
		Cores:          int(m.Cores.ValueInt64()),
		Sockets:        int(m.Sockets.ValueInt64()),
		NUMA:           m.NUMA.ValueBool(),
		MemoryMiB:      int(m.Memory.ValueInt64()),
		OSType:         m.OSType.ValueString(),
		Machine:        m.Machine.ValueString(),
		SCSIController: m.SCSIController.ValueString(),
		VGA:            m.VGA.ValueString(),
		Serial:         m.Serial.ValueBool(),
		RNG:            m.RNG.ValueBool(),
		Agent:          m.Agent.ValueBool(),
		StartOnBoot:    m.StartOnBoot.ValueBool(),
		Protection:     m.Protection.ValueBool(),
	}
	if !m.Balloon.IsNull() {
		out.Balloon = strconv.FormatInt(m.Balloon.ValueInt64(), 10)
	}
	var devices []networkDeviceModel
	_ = m.NetworkDevices.ElementsAs(ctx, &devices, false) // the schema's own type
	for _, d := range devices {
		out.Networks = append(out.Networks, proxmox.NetworkDevice{
			Model: d.Model.ValueString(), Bridge: d.Bridge.ValueString(), VLAN: int(d.VLAN.ValueInt64()), MTU: int(d.MTU.ValueInt64()),
			Queues: int(d.Queues.ValueInt64()), Rate: int(d.Rate.ValueInt64()), Firewall: d.Firewall.ValueBool(),
		})
	}
	return out
}

// hardware answers what a template has for good.
func (m proxmoxTemplateModel) hardware(ctx context.Context) proxmox.TemplateHardware {
	var disk diskModel
	_ = m.Disk.As(ctx, &disk, basetypes.ObjectAsOptions{UnhandledNullAsEmpty: true}) // the schema's own type
	return proxmox.TemplateHardware{
		DiskGiB:          int(m.DiskSize.ValueInt64()),
		Disk:             proxmox.DiskOptions{Discard: disk.Discard.ValueBool(), SSD: disk.SSD.ValueBool(), IOThread: disk.IOThread.ValueBool(), Cache: disk.Cache.ValueString()},
		BIOS:             m.BIOS.ValueString(),
		PreEnrolledKeys:  m.PreEnrolledKeys.ValueBool(),
		TPM:              m.TPM.ValueBool(),
		CloudInitStorage: m.CloudInitStorage.ValueString(),
	}
}

// spec answers what the template on a node is to be.
func (m proxmoxTemplateModel) spec(ctx context.Context, node string) (proxmox.TemplateSpec, error) {
	source, err := m.source(ctx, m.ImageID.ValueString())
	if err != nil {
		return proxmox.TemplateSpec{}, err
	}
	out := proxmox.TemplateSpec{
		Node:             node,
		VMID:             int(m.places()[node].VMID),
		Storage:          m.Storage.ValueString(),
		ImportStorage:    m.ImportStorage.ValueString(),
		KeepImage:        m.KeepImage.ValueBool(),
		Upload:           m.UploadImage.ValueBool(),
		Image:            source.image,
		Identity:         source.identity,
		Family:           m.Family.ValueString(),
		Labels:           m.labels(ctx),
		Instance:         m.Instance.ValueString(),
		TemplateHardware: m.hardware(ctx),
		TemplateSettings: m.settings(ctx, node),
	}
	if out.VMID == 0 && m.NodeNames.IsNull() {
		out.VMID = int(m.VMID.ValueInt64())
	}
	if out.VMID == 0 && !m.VMIDRange.IsNull() {
		var wish vmIDRangeModel
		if diags := m.VMIDRange.As(ctx, &wish, basetypes.ObjectAsOptions{}); diags.HasError() {
			return out, fmt.Errorf("reading vm_id_range: %s", diags[0].Detail())
		}
		out.VMID, out.LastVMID = int(wish.Start.ValueInt64()), int(wish.End.ValueInt64())
	}
	return out, nil
}

// settle turns what is not known into null, or into an empty map, as a state
// must be.
func (m *proxmoxTemplateModel) settle() {
	for _, value := range []*types.String{&m.ID, &m.SchematicID, &m.ImageURL, &m.ImageID, &m.Instance, &m.Phase, &m.Name, &m.Machine} {
		if value.IsUnknown() {
			*value = types.StringNull()
		}
	}
	for _, value := range []*types.Int64{&m.VMID, &m.DiskSize} {
		if value.IsUnknown() {
			*value = types.Int64Null()
		}
	}
	for value, element := range map[*types.Map]attr.Type{
		&m.VMIDs: types.Int64Type, &m.UUIDs: types.StringType, &m.NodeTags: nodeTagsType, &m.ImageTransfer: types.ObjectType{AttrTypes: imageTransferTypes},
	} {
		if value.IsUnknown() || value.IsNull() {
			*value = types.MapValueMust(element, map[string]attr.Value{})
		}
	}
}

// found takes over what identifies the template that was found for a node.
func (m *proxmoxTemplateModel) found(ctx context.Context, node string, t proxmox.Template) {
	if t.Transfer.Method != "" {
		transfers := maps.Clone(m.ImageTransfer.Elements())
		transfers[node], _ = types.ObjectValueFrom(ctx, imageTransferTypes, imageTransferModel{
			Method: types.StringValue(t.Transfer.Method), Reason: types.StringValue(sentence(t.Transfer.Reason)),
		})
		m.ImageTransfer = types.MapValueMust(types.ObjectType{AttrTypes: imageTransferTypes}, transfers)
	}
	if t.VMID == 0 {
		return
	}
	places := m.places()
	places[node] = place{VMID: int64(t.VMID), UUID: t.UUID}
	m.setPlaces(places)
	if t.DiskGiB > 0 {
		m.DiskSize = types.Int64Value(int64(t.DiskGiB))
	}
	tags := m.tags()
	tags[node] = t.Tags
	m.NodeTags = tagMap(tags)
}

// tags reads the attribute node_tags.
func (m proxmoxTemplateModel) tags() map[string][]string {
	out := map[string][]string{}
	for node, value := range m.NodeTags.Elements() {
		if set, ok := value.(types.Set); ok {
			out[node] = stringsOf(set.Elements())
		}
	}
	return out
}

// refresh takes over how the template on a node stands.
func (m *proxmoxTemplateModel) refresh(ctx context.Context, node string, t proxmox.Template) diag.Diagnostics {
	var diags diag.Diagnostics
	m.Storage = types.StringValue(t.Storage)
	m.DiskSize = types.Int64Value(int64(t.DiskGiB))
	m.BIOS = types.StringValue(t.BIOS)
	m.PreEnrolledKeys = types.BoolValue(t.PreEnrolledKeys)
	m.TPM = types.BoolValue(t.TPM)
	m.CloudInitStorage = refreshed(m.CloudInitStorage, t.CloudInitStorage)
	disk := diskModel{
		Discard: types.BoolValue(t.Disk.Discard), SSD: types.BoolValue(t.Disk.SSD), IOThread: types.BoolValue(t.Disk.IOThread),
		Cache: refreshed(types.StringNull(), t.Disk.Cache),
	}
	object, more := types.ObjectValueFrom(ctx, diskTypes, disk)
	m.Disk = object
	diags.Append(more...)

	m.Name = types.StringValue(t.Name)
	m.Description = refreshedText(m.Description, t.Description)
	own := m.nodeTag(node)
	tags := slices.DeleteFunc(slices.Clone(t.Tags), func(tag string) bool { return tag == own })
	if len(tags) > 0 || len(m.Tags.Elements()) > 0 {
		m.Tags, more = types.SetValueFrom(ctx, types.StringType, tags)
		diags.Append(more...)
	}
	m.Pool = refreshed(m.Pool, t.Pool)
	m.refreshMachine(t.TemplateSettings)
	devices := []networkDeviceModel{}
	for _, d := range t.Networks {
		devices = append(devices, networkDeviceModel{
			Bridge: types.StringValue(d.Bridge), VLAN: set(d.VLAN), Model: types.StringValue(d.Model), MTU: set(d.MTU), Queues: set(d.Queues), Rate: set(d.Rate),
			Firewall: types.BoolValue(d.Firewall),
		})
	}
	m.NetworkDevices, more = types.ListValueFrom(ctx, types.ObjectType{AttrTypes: networkDeviceTypes}, devices)
	diags.Append(more...)
	return diags
}

// refreshMachine takes over what the virtual machine is like.
func (m *proxmoxTemplateModel) refreshMachine(t proxmox.TemplateSettings) {
	m.CPUType = types.StringValue(t.CPUType)
	m.Cores = types.Int64Value(int64(t.Cores))
	m.Sockets = types.Int64Value(int64(t.Sockets))
	m.NUMA = types.BoolValue(t.NUMA)
	m.Memory = types.Int64Value(int64(t.MemoryMiB))
	m.Balloon = types.Int64Null()
	if n, err := strconv.ParseInt(t.Balloon, 10, 64); err == nil {
		m.Balloon = types.Int64Value(n)
	}
	m.OSType = types.StringValue(t.OSType)
	m.Machine = refreshed(types.StringNull(), t.Machine)
	m.SCSIController = types.StringValue(t.SCSIController)
	m.VGA = refreshed(types.StringNull(), t.VGA)
	m.Serial = types.BoolValue(t.Serial)
	m.RNG = types.BoolValue(t.RNG)
	m.Agent = types.BoolValue(t.Agent)
	m.StartOnBoot = types.BoolValue(t.StartOnBoot)
	m.Protection = types.BoolValue(t.Protection)
}

// set answers null for what is not set.
func set(n int) types.Int64 {
	if n == 0 {
		return types.Int64Null()
	}
	return types.Int64Value(int64(n))
}

// refreshedText is refreshed for texts that Proxmox VE keeps without the blanks at
// their ends.
func refreshedText(prior types.String, now string) types.String {
	if strings.TrimSpace(prior.ValueString()) == strings.TrimSpace(now) {
		return prior
	}
	return types.StringValue(now)
}

// blanksAside keeps the prior value of a text that differs from it by blanks at the
// ends alone, such as the line end of a heredoc.
type blanksAside struct{}

func (blanksAside) Description(context.Context) string {
	return "Blanks at the ends make no difference."
}

func (m blanksAside) MarkdownDescription(ctx context.Context) string { return m.Description(ctx) }

func (blanksAside) PlanModifyString(_ context.Context, req planmodifier.StringRequest, resp *planmodifier.StringResponse) {
	if !req.StateValue.IsNull() && given(req.PlanValue) && strings.TrimSpace(req.StateValue.ValueString()) == strings.TrimSpace(req.PlanValue.ValueString()) {
		resp.PlanValue = req.StateValue
	}
}

// refreshed keeps null where nothing is set on either side.
func refreshed(prior types.String, now string) types.String {
	if now == "" && prior.ValueString() == "" {
		return prior
	}
	return types.StringValue(now)
}
