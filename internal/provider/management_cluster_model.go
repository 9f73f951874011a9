// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
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
	ForceDestroy         types.Bool     `tfsdk:"force_destroy"`
	Access               types.Object   `tfsdk:"access"`
	Kubeconfig           types.String   `tfsdk:"kubeconfig"`
	Talosconfig          types.String   `tfsdk:"talosconfig"`
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
	for _, text := range []*types.String{&m.ID, &m.Kubeconfig, &m.Talosconfig, &m.ControlPlaneEndpoint, &m.Home, &m.Instance, &m.Phase} {
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

// values answers the substitutions that are known, and whether one is not.
func (m *managementClusterModel) values(ctx context.Context) (values map[string]string, unknown []string, diags diag.Diagnostics) {
	values = map[string]string{}
	if m.Substitutions.IsNull() || m.Substitutions.IsUnknown() {
		return values, nil, nil
	}
	members := map[string]types.String{}
	diags = m.Substitutions.ElementsAs(ctx, &members, false)
	for name, value := range members {
		if value.IsUnknown() {
			unknown = append(unknown, name)
			continue
		}
		values[name] = value.ValueString()
	}
	return values, unknown, diags
}

// check judges the manifest from the text alone, with stand-ins for what is not
// known yet.
func (m *managementClusterModel) check(ctx context.Context) diag.Diagnostics {
	if m.Manifest.IsUnknown() || m.Manifest.IsNull() || m.Name.IsUnknown() || m.Namespace.IsUnknown() {
		return nil
	}
	values, unknown, diags := m.values(ctx)
	if diags.HasError() {
		return diags
	}
	for _, name := range unknown {
		values[name] = cluster.UnknownStandIn
	}
	if m.Substitutions.IsUnknown() {
		for _, name := range cluster.Placeholders(m.Manifest.ValueString()) {
			values[name] = cluster.UnknownStandIn
		}
	}
	_, err := m.parse(values)
	for _, problem := range flatten(err) {
		diags.AddAttributeError(path.Root("manifest"), "Unable to use the manifest", sentence(problem.Error()))
	}
	return diags
}

// parse fills and parses the manifest and answers all problems joined.
func (m *managementClusterModel) parse(values map[string]string) (*cluster.Manifest, error) {
	text, err := cluster.Fill(m.Manifest.ValueString(), values)
	if err != nil {
		return nil, err
	}
	manifest, err := cluster.Parse(text)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, problem := range manifest.Check(m.Namespace.ValueString(), m.Name.ValueString()) {
		problems = append(problems, problem)
	}
	return manifest, errors.Join(problems...)
}

// flatten answers the single errors of a joined one.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}

// options puts together what the engine applies. secrets is the write-only text,
// which only the configuration has.
func (m *managementClusterModel) options(ctx context.Context, secrets types.String) (cluster.ApplyOptions, error) {
	values, _, diags := m.values(ctx)
	if diags.HasError() {
		return cluster.ApplyOptions{}, errors.New("the substitutions cannot be read")
	}
	manifest, err := m.parse(values)
	if err != nil {
		return cluster.ApplyOptions{}, err
	}
	options := cluster.ApplyOptions{Instance: m.Instance.ValueString(), Manifest: manifest}
	if secrets.ValueString() == "" {
		return options, nil
	}
	options.Secrets, err = cluster.ParseSecrets(secrets.ValueString())
	return options, err
}

// set takes over what the engine found.
func (m *managementClusterModel) set(ctx context.Context, credentials cluster.Credentials, machines []cluster.Machine, uid string) diag.Diagnostics {
	m.Kubeconfig = textOrNull(string(credentials.Kubeconfig))
	m.Talosconfig = textOrNull(string(credentials.Talosconfig))
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
