// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

// proxmoxTemplateModel is the resource capi_proxmox_template.
type proxmoxTemplateModel struct {
	ID            types.String   `tfsdk:"id"`
	NodeName      types.String   `tfsdk:"node_name"`
	VMID          types.Int64    `tfsdk:"vm_id"`
	Name          types.String   `tfsdk:"name"`
	Description   types.String   `tfsdk:"description"`
	Tags          types.Set      `tfsdk:"tags"`
	Storage       types.String   `tfsdk:"storage"`
	ImportStorage types.String   `tfsdk:"import_storage"`
	KeepImage     types.Bool     `tfsdk:"keep_image"`
	Talos         types.Object   `tfsdk:"talos"`
	SchematicID   types.String   `tfsdk:"schematic_id"`
	ImageURL      types.String   `tfsdk:"image_url"`
	DiskSize      types.Int64    `tfsdk:"disk_size"`
	BIOS          types.String   `tfsdk:"bios"`
	CPUType       types.String   `tfsdk:"cpu_type"`
	Cores         types.Int64    `tfsdk:"cores"`
	Memory        types.Int64    `tfsdk:"memory"`
	Agent         types.Bool     `tfsdk:"agent"`
	Bridge        types.String   `tfsdk:"bridge"`
	VLAN          types.Int64    `tfsdk:"vlan_id"`
	UUID          types.String   `tfsdk:"uuid"`
	Instance      types.String   `tfsdk:"instance"`
	Phase         types.String   `tfsdk:"phase"`
	Timeouts      timeouts.Value `tfsdk:"timeouts"`
}

// talosImageModel is the attribute talos.
type talosImageModel struct {
	Version         types.String `tfsdk:"version"`
	Extensions      types.Set    `tfsdk:"extensions"`
	ExtraKernelArgs types.List   `tfsdk:"extra_kernel_args"`
	Architecture    types.String `tfsdk:"architecture"`
	FactoryURL      types.String `tfsdk:"factory_url"`
}

var talosImageTypes = map[string]attr.Type{
	"version":           types.StringType,
	"extensions":        types.SetType{ElemType: types.StringType},
	"extra_kernel_args": types.ListType{ElemType: types.StringType},
	"architecture":      types.StringType,
	"factory_url":       types.StringType,
}

// readTalos reads the attribute talos. known is false where part of it is not
// known yet.
func readTalos(ctx context.Context, object types.Object) (m talosImageModel, known bool, diags diag.Diagnostics) {
	if object.IsNull() || object.IsUnknown() {
		return m, false, nil
	}
	diags = object.As(ctx, &m, basetypes.ObjectAsOptions{})
	if diags.HasError() {
		return m, false, diags
	}
	known = !m.Version.IsUnknown() && !m.Extensions.IsUnknown() && !m.ExtraKernelArgs.IsUnknown() &&
		!m.Architecture.IsUnknown() && !m.FactoryURL.IsUnknown()
	for _, list := range [][]attr.Value{m.Extensions.Elements(), m.ExtraKernelArgs.Elements()} {
		for _, element := range list {
			known = known && !element.IsUnknown()
		}
	}
	return m, known, diags
}

// image answers the image that the attribute names. All of it is known.
func (m talosImageModel) image() (*talos.DiskImage, error) {
	schematic, err := talos.NewSchematic(stringsOf(m.Extensions.Elements()), stringsOf(m.ExtraKernelArgs.Elements()))
	if err != nil {
		return nil, err
	}
	return talos.NewDiskImage(schematic, talos.Image{
		Factory:      m.FactoryURL.ValueString(),
		Version:      m.Version.ValueString(),
		Architecture: m.Architecture.ValueString(),
	}, talos.Factory{})
}

// hasAgent says whether the image has the guest agent.
func (m talosImageModel) hasAgent() bool {
	return slices.Contains(stringsOf(m.Extensions.Elements()), talos.QEMUGuestAgent)
}

func stringsOf(values []attr.Value) []string {
	var out []string
	for _, value := range values {
		if text, ok := value.(types.String); ok && !text.IsNull() && !text.IsUnknown() {
			out = append(out, text.ValueString())
		}
	}
	return out
}

// labels are what import needs to find again.
func (m talosImageModel) labels() map[string]string {
	list := func(values []attr.Value) string {
		text, err := json.Marshal(stringsOf(values))
		if err != nil {
			return "[]"
		}
		return string(text)
	}
	extensions := m.Extensions.Elements()
	slices.SortFunc(extensions, func(a, b attr.Value) int { return strings.Compare(a.String(), b.String()) })
	return map[string]string{
		"talos":        m.Version.ValueString(),
		"extensions":   list(extensions),
		"kernel_args":  list(m.ExtraKernelArgs.Elements()),
		"architecture": m.Architecture.ValueString(),
		"factory":      m.FactoryURL.ValueString(),
	}
}

// talosOf reads the attribute talos out of a template's labels, for import. ok
// is false where the template was not made by this provider.
func talosOf(ctx context.Context, labels map[string]string) (object types.Object, ok bool) {
	if labels["talos"] == "" {
		return types.ObjectNull(talosImageTypes), false
	}
	list := func(name string) []string {
		var out []string
		if json.Unmarshal([]byte(labels[name]), &out) != nil {
			return nil
		}
		return out
	}
	m := talosImageModel{
		Version:         types.StringValue(labels["talos"]),
		Extensions:      types.SetNull(types.StringType),
		ExtraKernelArgs: types.ListNull(types.StringType),
		Architecture:    types.StringValue(labels["architecture"]),
		FactoryURL:      types.StringValue(labels["factory"]),
	}
	if extensions := list("extensions"); len(extensions) > 0 {
		m.Extensions, _ = types.SetValueFrom(ctx, types.StringType, extensions)
	}
	if args := list("kernel_args"); len(args) > 0 {
		m.ExtraKernelArgs, _ = types.ListValueFrom(ctx, types.StringType, args)
	}
	object, diags := types.ObjectValueFrom(ctx, talosImageTypes, m)
	return object, !diags.HasError()
}

// settings answers what can be changed on the finished template.
func (m proxmoxTemplateModel) settings() proxmox.TemplateSettings {
	return proxmox.TemplateSettings{
		Name:        m.Name.ValueString(),
		Description: m.Description.ValueString(),
		Tags:        stringsOf(m.Tags.Elements()),
		CPUType:     m.CPUType.ValueString(),
		Cores:       int(m.Cores.ValueInt64()),
		MemoryMiB:   int(m.Memory.ValueInt64()),
		Agent:       m.Agent.ValueBool(),
		Bridge:      m.Bridge.ValueString(),
		VLAN:        int(m.VLAN.ValueInt64()),
	}
}

// spec answers what the template is to be.
func (m proxmoxTemplateModel) spec(ctx context.Context) (proxmox.TemplateSpec, error) {
	source, known, diags := readTalos(ctx, m.Talos)
	if diags.HasError() || !known {
		return proxmox.TemplateSpec{}, fmt.Errorf("the attribute talos is not known")
	}
	image, err := source.image()
	if err != nil {
		return proxmox.TemplateSpec{}, err
	}
	return proxmox.TemplateSpec{
		Node:             m.NodeName.ValueString(),
		VMID:             int(m.VMID.ValueInt64()),
		Storage:          m.Storage.ValueString(),
		ImportStorage:    m.ImportStorage.ValueString(),
		KeepImage:        m.KeepImage.ValueBool(),
		Image:            image,
		Identity:         image.Identity(),
		Labels:           source.labels(),
		DiskGiB:          int(m.DiskSize.ValueInt64()),
		BIOS:             m.BIOS.ValueString(),
		TemplateSettings: m.settings(),
	}, nil
}

// settle turns what is not known into null, as a state must be.
func (m *proxmoxTemplateModel) settle() {
	for _, value := range []*types.String{&m.ID, &m.ImportStorage, &m.SchematicID, &m.ImageURL, &m.UUID, &m.Instance, &m.Phase, &m.Name} {
		if value.IsUnknown() {
			*value = types.StringNull()
		}
	}
	for _, value := range []*types.Int64{&m.VMID, &m.DiskSize} {
		if value.IsUnknown() {
			*value = types.Int64Null()
		}
	}
}

// found takes over what identifies a template that was found.
func (m *proxmoxTemplateModel) found(t proxmox.Template) {
	if t.ImportStorage != "" && (m.ImportStorage.IsNull() || m.ImportStorage.IsUnknown()) {
		m.ImportStorage = types.StringValue(t.ImportStorage)
	}
	if t.VMID == 0 {
		return
	}
	m.NodeName = types.StringValue(t.Node)
	m.VMID = types.Int64Value(int64(t.VMID))
	m.ID = types.StringValue(fmt.Sprintf("%s/%d", t.Node, t.VMID))
	m.UUID = types.StringValue(t.UUID)
	if size := t.DiskGiB(); size > 0 {
		m.DiskSize = types.Int64Value(int64(size))
	}
}

// refresh takes over how a template stands.
func (m *proxmoxTemplateModel) refresh(ctx context.Context, t proxmox.Template) diag.Diagnostics {
	var diags diag.Diagnostics
	m.found(t)
	m.Storage = types.StringValue(t.Storage)
	m.BIOS = types.StringValue(t.BIOS)
	m.Name = types.StringValue(t.Name)
	m.Description = refreshed(m.Description, t.Description)
	if len(t.Tags) > 0 || len(m.Tags.Elements()) > 0 {
		m.Tags, diags = types.SetValueFrom(ctx, types.StringType, t.Tags)
	}
	m.CPUType = types.StringValue(t.CPUType)
	m.Cores = types.Int64Value(int64(t.Cores))
	m.Memory = types.Int64Value(int64(t.MemoryMiB))
	m.Agent = types.BoolValue(t.Agent)
	m.Bridge = types.StringValue(t.Bridge)
	if t.VLAN != 0 || m.VLAN.ValueInt64() != 0 {
		m.VLAN = types.Int64Value(int64(t.VLAN))
	}
	if t.Finished {
		m.Phase = types.StringValue(phaseReady)
	} else {
		m.Phase = types.StringValue("unfinished")
	}
	return diags
}

// refreshed keeps null where nothing is set on either side.
func refreshed(prior types.String, now string) types.String {
	if now == "" && prior.ValueString() == "" {
		return prior
	}
	return types.StringValue(now)
}
