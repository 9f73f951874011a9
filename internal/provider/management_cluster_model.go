// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Homes of a management cluster, as the attribute home says them.
const (
	homeBootstrap = "bootstrap"
	homeSelf      = "self"
)

type managementClusterModel struct {
	ID                   types.String   `tfsdk:"id"`
	Bootstrap            types.Object   `tfsdk:"bootstrap"`
	Name                 types.String   `tfsdk:"name"`
	Namespace            types.String   `tfsdk:"namespace"`
	Manifest             types.String   `tfsdk:"manifest"`
	Substitutions        types.Map      `tfsdk:"substitutions"`
	SecretsWO            types.String   `tfsdk:"secrets_wo"`
	SecretsWOVersion     types.String   `tfsdk:"secrets_wo_version"`
	IgnoreFields         types.List     `tfsdk:"ignore_fields"`
	AllowSinglePlane     types.Bool     `tfsdk:"allow_single_control_plane"`
	ForceDestroy         types.Bool     `tfsdk:"force_destroy"`
	Access               types.Object   `tfsdk:"access"`
	Kubeconfig           types.String   `tfsdk:"kubeconfig"`
	KubeconfigExpiry     types.String   `tfsdk:"kubeconfig_expires_at"`
	Talosconfig          types.String   `tfsdk:"talosconfig"`
	TalosconfigExpiry    types.String   `tfsdk:"talosconfig_expires_at"`
	SecretsHash          types.String   `tfsdk:"secrets_hash"`
	Drift                types.String   `tfsdk:"drift"`
	ControlPlaneEndpoint types.String   `tfsdk:"control_plane_endpoint"`
	Home                 types.String   `tfsdk:"home"`
	Machines             types.List     `tfsdk:"machines"`
	Instance             types.String   `tfsdk:"instance"`
	Phase                types.String   `tfsdk:"phase"`
	Timeouts             timeouts.Value `tfsdk:"timeouts"`
}

var machineTypes = map[string]attr.Type{
	"name":          types.StringType,
	"control_plane": types.BoolType,
	"provider_id":   types.StringType,
	"vm_node":       types.StringType,
	"vm_id":         types.Int64Type,
	"vm_uuid":       types.StringType,
}

type machineModel struct {
	Name         types.String `tfsdk:"name"`
	ControlPlane types.Bool   `tfsdk:"control_plane"`
	ProviderID   types.String `tfsdk:"provider_id"`
	VMNode       types.String `tfsdk:"vm_node"`
	VMID         types.Int64  `tfsdk:"vm_id"`
	VMUUID       types.String `tfsdk:"vm_uuid"`
}

// nothingMadeYet replaces what is unknown by null, so that an unfinished
// resource can be written into state.
func (m *managementClusterModel) nothingMadeYet() {
	for _, text := range []*types.String{&m.ID, &m.Kubeconfig, &m.KubeconfigExpiry, &m.Talosconfig, &m.TalosconfigExpiry, &m.ControlPlaneEndpoint, &m.Home, &m.SecretsHash, &m.Drift, &m.Instance, &m.Phase} {
		if text.IsUnknown() {
			*text = types.StringNull()
		}
	}
	if m.Access.IsUnknown() {
		m.Access = types.ObjectNull(accessTypes)
	}
	if m.Machines.IsUnknown() {
		m.Machines = types.ListNull(types.ObjectType{AttrTypes: machineTypes})
	}
	m.SecretsWO = types.StringNull()
}

// set takes over what the engine found.
func (m *managementClusterModel) set(ctx context.Context, credentials cluster.Credentials, machines []cluster.Machine, uid string) diag.Diagnostics {
	m.Kubeconfig = textOrNull(string(credentials.Kubeconfig))
	m.Talosconfig = textOrNull(string(credentials.Talosconfig))
	m.setExpiry()
	m.Access = accessObject(kube.Access{Kubeconfig: credentials.Kubeconfig, UID: uid})
	return m.setMachines(ctx, machines)
}

func (m *managementClusterModel) setMachines(ctx context.Context, machines []cluster.Machine) diag.Diagnostics {
	models := make([]machineModel, 0, len(machines))
	for _, machine := range machines {
		models = append(models, machineModel{
			Name: types.StringValue(machine.Name), ControlPlane: types.BoolValue(machine.ControlPlane),
			ProviderID: textOrNull(machine.ProviderID), VMNode: textOrNull(machine.VMNode),
			VMID: types.Int64Value(machine.VMID), VMUUID: textOrNull(machine.VMUUID),
		})
	}
	list, diags := types.ListValueFrom(ctx, types.ObjectType{AttrTypes: machineTypes}, models)
	m.Machines = list
	return diags
}

func (m *managementClusterModel) thing() string {
	return fmt.Sprintf("the management cluster %s/%s", m.Namespace.ValueString(), m.Name.ValueString())
}
