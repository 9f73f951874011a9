// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

// destroyVMs deletes exactly the VMs in state. A cluster that answers and still
// manages other Clusters is refused, since their machines would lose their
// manager.
func (r *managementClusterResource) destroyVMs(ctx context.Context, m *managementClusterModel, found foundHome) error {
	if found.kind == homeSelf {
		if err := r.refuseManager(ctx, m); err != nil {
			return err
		}
	}
	refs, err := m.vms(ctx)
	if err != nil {
		return err
	}
	client, err := r.data.proxmoxClient(ctx)
	if err != nil {
		return err
	}
	return client.DestroyVMs(ctx, refs, reporter(&m.Phase))
}

func (r *managementClusterResource) refuseManager(ctx context.Context, m *managementClusterModel) error {
	client, err := r.data.connect(ctx, kube.Access{Kubeconfig: []byte(m.Kubeconfig.ValueString())})
	if err != nil {
		return err
	}
	managed, err := capi.Clusters(ctx, client.Config)
	if err != nil {
		return err
	}
	var others []string
	for _, name := range managed {
		if name != m.ID.ValueString() {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("it still manages %s: without it nothing manages their machines; delete or move them first", strings.Join(others, ", "))
	}
	return nil
}

// vms answers the VMs of the machines in state. A machine without a VM's UUID
// cannot be deleted with certainty, and so is an error unless it has no VM.
func (m *managementClusterModel) vms(ctx context.Context) ([]proxmox.VMRef, error) {
	var machines []machineModel
	if diags := m.Machines.ElementsAs(ctx, &machines, false); diags.HasError() {
		return nil, errors.New("the machines in state cannot be read")
	}
	var refs []proxmox.VMRef
	for _, machine := range machines {
		if machine.VMID.ValueInt64() == 0 {
			continue
		}
		if machine.VMUUID.ValueString() == "" {
			return nil, fmt.Errorf("machine %s is VM %d, but its UUID is not in state, so it cannot be told from another VM of that id; delete it by hand", machine.Name.ValueString(), machine.VMID.ValueInt64())
		}
		refs = append(refs, proxmox.VMRef{Node: machine.VMNode.ValueString(), ID: int(machine.VMID.ValueInt64()), UUID: machine.VMUUID.ValueString()})
	}
	return refs, nil
}
