// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

func (r *proxmoxTemplateResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state proxmoxTemplateModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(setTemplateIdentity(ctx, resp.Identity, state)...)
	imported := state.Instance.IsNull()
	if len(state.places()) == 0 {
		return // begun, but nothing there yet that could be read
	}
	timeout, diags := state.Timeouts.Read(ctx, proxmoxTemplateTimeouts.Read)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, err := r.data.proxmoxClient(ctx)
	if err == nil {
		err = r.refresh(ctx, client, &state, imported, &resp.Diagnostics)
	}
	switch {
	case kube.IsAbsent(err):
		resp.State.RemoveResource(ctx)
		return
	case errors.Is(err, errNotOurTemplate):
		failure{verb: "import", thing: state.title(), cause: err, next: "import only templates that this provider has made; let it make a new one here"}.addTo(&resp.Diagnostics)
		return
	case err != nil:
		refreshFailure(failure{verb: "read", thing: state.title(), cause: err}, &resp.Diagnostics)
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, state)...)
	resp.Diagnostics.Append(setTemplateIdentity(ctx, resp.Identity, state)...)
}

// errNotOurTemplate says that a VM bears no mark of this provider.
var errNotOurTemplate = errors.New("the VM was not made by this provider: its notes bear no mark")

// refresh reads the templates into state. On several nodes the first that is not
// as the state says stands for all, so that a plan sees the difference; one that
// is gone leaves the state's maps. All gone is absent.
func (r *proxmoxTemplateResource) refresh(ctx context.Context, client *proxmox.Client, state *proxmoxTemplateModel, imported bool, diags *diag.Diagnostics) error {
	places := state.places()
	there := map[string]proxmox.Template{}
	var shown string
	for _, node := range slices.Sorted(maps.Keys(places)) {
		t, err := client.ReadTemplate(ctx, node, int(places[node].VMID), places[node].UUID)
		if kube.IsAbsent(err) {
			continue
		}
		if err != nil {
			return onNode(err, node, len(places))
		}
		if imported && len(there) == 0 {
			if err := state.importFrom(ctx, t); err != nil {
				return err
			}
		}
		there[node] = t
		if shown == "" || (state.matches(ctx, shown, there[shown]) && !state.matches(ctx, node, t)) {
			shown = node
		}
	}
	if len(there) == 0 {
		return fmt.Errorf("%w: %s", kube.ErrAbsent, state.title())
	}
	if source, err := state.source(ctx, state.ImageID.ValueString()); err == nil {
		state.describe(source)
	}
	if wrong := state.refresh(ctx, shown, there[shown]); wrong.HasError() {
		return fmt.Errorf("reading the template: %s", wrong[0].Detail())
	}
	state.placed(there)
	r.keep(ctx, client, *state, there, diags)
	return nil
}

// placed takes over where the templates are, their tags and whether all of them
// are finished.
func (m *proxmoxTemplateModel) placed(there map[string]proxmox.Template) {
	places, tags := map[string]place{}, map[string][]string{}
	m.Phase = types.StringValue(phaseReady)
	for node, t := range there {
		places[node] = place{VMID: int64(t.VMID), UUID: t.UUID}
		tags[node] = t.Tags
		if !t.Finished {
			m.Phase = types.StringValue("unfinished")
		}
	}
	m.setPlaces(places)
	m.NodeTags = tagMap(tags)
	if nodes, _ := m.nodes(context.Background()); len(there) < len(nodes) {
		m.Phase = types.StringValue("unfinished")
	}
}

// keep marks finished templates as known to a state.
func (r *proxmoxTemplateResource) keep(ctx context.Context, client *proxmox.Client, state proxmoxTemplateModel, there map[string]proxmox.Template, diags *diag.Diagnostics) {
	for node, t := range there {
		if t.Instance != state.Instance.ValueString() {
			notOurs(state.title(), "VM "+placeID(node, int64(t.VMID)), t.Instance).warn(diags)
			continue
		}
		// While one of several is missing, a replacement must find the others.
		if t.Kept() || state.Phase.ValueString() != phaseReady {
			continue
		}
		if err := client.KeepTemplate(ctx, t); err != nil {
			tflog.Debug(ctx, "the template's mark was not changed to kept", map[string]any{"error": err.Error()})
		}
	}
}

// importFrom takes over from a template's mark what its configuration does not
// tell.
func (m *proxmoxTemplateModel) importFrom(ctx context.Context, t proxmox.Template) error {
	if !m.readSource(ctx, t.Labels) {
		return errNotOurTemplate
	}
	m.KeepImage, m.UploadImage = types.BoolValue(false), types.BoolValue(false)
	m.Instance = types.StringValue(t.Instance)
	m.Tags = types.SetNull(types.StringType)
	m.Family = refreshed(types.StringNull(), t.Family())
	m.Name = types.StringValue(t.Name)
	m.settle()
	return nil
}

// describe writes what follows from the source.
func (m *proxmoxTemplateModel) describe(source templateSource) {
	if m.ImageID.IsNull() { // what it was made of is known better than what the source is by now
		m.ImageID = types.StringValue(source.identity)
	}
	m.ImageURL = refreshed(types.StringNull(), source.image.URL())
	if source.talos != nil {
		m.SchematicID = types.StringValue(source.talos.SchematicID())
	}
}

// matches says whether a template is as the state says.
func (m proxmoxTemplateModel) matches(ctx context.Context, node string, t proxmox.Template) bool {
	want := m.hardware(ctx)
	want.DiskGiB = t.DiskGiB // grows with others' hands alone, and means nothing to clones
	return m.settings(ctx, node).Same(t.TemplateSettings) && want == t.TemplateHardware
}

// ImportState takes "node/vmid", several of them with commas between, or the
// identity.
func (r *proxmoxTemplateResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	id := req.ID
	if id == "" {
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("templates"), &id)...)
	}
	places, err := parsePlaces(id)
	if err != nil {
		resp.Diagnostics.AddError("Unable to import the template", sentence(err.Error()))
		return
	}
	names := slices.Sorted(maps.Keys(places))
	ids := map[string]int64{}
	for node, p := range places {
		ids[node] = p.VMID
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("vm_ids"), ids)...)
	if strings.Contains(id, ",") {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("node_names"), names)...)
		return
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("node_name"), names[0])...)
}

// parsePlaces reads an import id.
func parsePlaces(id string) (map[string]place, error) {
	places := map[string]place{}
	for part := range strings.SplitSeq(strings.TrimSuffix(id, ","), ",") {
		node, number, _ := strings.Cut(part, "/")
		vmid, err := strconv.ParseInt(number, 10, 64)
		if _, twice := places[node]; proxmox.CheckNode(node) != nil || err != nil || vmid < 100 || twice {
			return nil, fmt.Errorf("the id %q is not of the form NODE/VMID, such as pve1/9000, or, for a template on several nodes, pve1/9000,pve2/9001", id)
		}
		places[node] = place{VMID: vmid}
	}
	return places, nil
}
