// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
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
	strays, err := client.StrayClones(ctx, refs)
	if err != nil {
		return err
	}
	return client.DestroyVMs(ctx, append(refs, strays...), reporter(&m.Phase))
}

// strayTime bounds the look for stray clones: a hypervisor that does not answer
// must not hold up what can be done without it.
const strayTime = time.Minute

// deleteAtHome deletes the cluster where its objects are, and afterwards the
// clones that no object names, which are found before: they bear the names of
// machines that are gone then.
func (r *managementClusterResource) deleteAtHome(ctx context.Context, m *managementClusterModel, home cluster.Home) (warning, err error) {
	client, strays, warning := r.strayClones(ctx, home)
	if err := home.Delete(ctx, m.Instance.ValueString()); err != nil {
		return nil, err
	}
	if len(strays) > 0 {
		warning = client.DestroyVMs(ctx, strays, reporter(&m.Phase))
	}
	return warning, nil
}

// strayClones answers the clones of the cluster's machines that no object names.
// Clusters without VMs on Proxmox VE have none.
func (r *managementClusterResource) strayClones(ctx context.Context, home cluster.Home) (*proxmox.Client, []proxmox.VMRef, error) {
	ctx, cancel := context.WithTimeout(ctx, strayTime)
	defer cancel()
	machines, err := home.Machines(ctx)
	if err != nil {
		return nil, nil, err
	}
	var refs []proxmox.VMRef
	for _, machine := range machines {
		if machine.VMID != 0 && machine.VMUUID != "" {
			refs = append(refs, proxmox.VMRef{Node: machine.VMNode, ID: int(machine.VMID), UUID: machine.VMUUID})
		}
	}
	if len(refs) == 0 {
		return nil, nil, nil
	}
	client, err := r.data.proxmoxClient(ctx)
	if err != nil {
		return nil, nil, err
	}
	strays, err := client.StrayClones(ctx, refs)
	return client, strays, err
}

// warnOfStrays says which clones of the cluster's machines belong to nobody.
// They are left alone until the cluster is destroyed.
func (r *managementClusterResource) warnOfStrays(ctx context.Context, home cluster.Home, diags *diag.Diagnostics) {
	_, strays, err := r.strayClones(ctx, home)
	if err != nil {
		tflog.Warn(ctx, "could not look for clones that belong to no machine", map[string]any{"error": err.Error()})
		return
	}
	for _, stray := range strays {
		failure{
			verb: "account for", thing: fmt.Sprintf("%s on node %s", stray, stray.Node),
			cause:  errors.New("it has the name of a machine of this cluster, but no machine is this VM: the infrastructure provider cloned twice"),
			exists: "the cluster works; the VM is stopped and only takes room",
			next:   fmt.Sprintf("remove it (qm destroy %d --purge on node %s), or leave it to the destroy of the cluster, which removes it", stray.ID, stray.Node),
		}.warn(diags)
	}
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
