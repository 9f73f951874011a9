// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

var (
	_ resource.Resource                   = (*proxmoxTemplateResource)(nil)
	_ resource.ResourceWithConfigure      = (*proxmoxTemplateResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*proxmoxTemplateResource)(nil)
	_ resource.ResourceWithValidateConfig = (*proxmoxTemplateResource)(nil)
	_ resource.ResourceWithImportState    = (*proxmoxTemplateResource)(nil)
	_ resource.ResourceWithIdentity       = (*proxmoxTemplateResource)(nil)
)

const proxmoxTemplateType = "capi_proxmox_template"

var proxmoxTemplateTimeouts = defaultTimeouts{
	Create: 30 * time.Minute, Read: 2 * time.Minute, Update: 30 * time.Minute, Delete: 10 * time.Minute,
}

// phaseBegin is the phase of a template of which nothing is there yet.
const phaseBegin = "begin"

type proxmoxTemplateResource struct{ data *providerData }

func newProxmoxTemplateResource() resource.Resource { return &proxmoxTemplateResource{} }

func (r *proxmoxTemplateResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = proxmoxTemplateType
	// A template can be migrated to another node, and has no id before it is there.
	resp.ResourceBehavior = resource.ResourceBehavior{MutableIdentity: true}
}

func (r *proxmoxTemplateResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"node_name": identityschema.StringAttribute{RequiredForImport: true, Description: "Node that the template is on."},
		"vm_id":     identityschema.Int64Attribute{RequiredForImport: true, Description: "Id of the template."},
	}}
}

func (r *proxmoxTemplateResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configuredData(req, resp)
}

// ValidateConfig checks what the configuration alone tells.
func (r *proxmoxTemplateResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var object types.Object
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("talos"), &object)...)
	var bridge types.String
	var vlan types.Int64
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("bridge"), &bridge)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("vlan_id"), &vlan)...)
	if given(bridge) && bridge.ValueString() == "" && !vlan.IsNull() {
		resp.Diagnostics.AddAttributeError(path.Root("vlan_id"), "Unable to use the VLAN", "There is no network device to tag: bridge is empty.")
	}
	source, known, diags := readTalos(ctx, object)
	resp.Diagnostics.Append(diags...)
	if diags.HasError() || !known {
		return
	}
	if _, err := source.image(); err != nil {
		resp.Diagnostics.AddAttributeError(path.Root("talos"), "Unable to name the Talos image", sentence(err.Error()))
	}
}

// ModifyPlan computes what the configuration tells about the image, so that the
// plan shows it, and plans a new template where its content changes.
func (r *proxmoxTemplateResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		return
	}
	var plan, config proxmoxTemplateModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	source, known, diags := readTalos(ctx, plan.Talos)
	resp.Diagnostics.Append(diags...)
	if diags.HasError() {
		return
	}
	if known {
		image, err := source.image()
		if err != nil {
			resp.Diagnostics.AddAttributeError(path.Root("talos"), "Unable to name the Talos image", sentence(err.Error()))
			return
		}
		plan.SchematicID = types.StringValue(image.SchematicID())
		plan.ImageURL = types.StringValue(image.URL())
		if config.Name.IsNull() {
			plan.Name = types.StringValue("talos-" + source.Version.ValueString() + "-" + image.SchematicID()[:8])
		}
		if config.Agent.IsNull() {
			plan.Agent = types.BoolValue(source.hasAgent())
		}
	} else {
		plan.SchematicID, plan.ImageURL = types.StringUnknown(), types.StringUnknown()
		if config.Name.IsNull() {
			plan.Name = types.StringUnknown()
		}
		if config.Agent.IsNull() {
			plan.Agent = types.BoolUnknown()
		}
	}
	resp.Diagnostics.Append(resp.Plan.Set(ctx, plan)...)
	planPhase(ctx, resp)
	r.planReplacement(ctx, req, plan, resp)
}

// planReplacement makes a new template out of one whose schematic changes.
func (r *proxmoxTemplateResource) planReplacement(ctx context.Context, req resource.ModifyPlanRequest, plan proxmoxTemplateModel, resp *resource.ModifyPlanResponse) {
	if req.State.Raw.IsNull() {
		return
	}
	var prior types.String
	resp.Diagnostics.Append(req.State.GetAttribute(ctx, path.Root("schematic_id"), &prior)...)
	if !prior.IsNull() && !prior.Equal(plan.SchematicID) {
		resp.RequiresReplace = append(resp.RequiresReplace, path.Root("schematic_id"))
	}
}

func (r *proxmoxTemplateResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan proxmoxTemplateModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Create(ctx, proxmoxTemplateTimeouts.Create)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	plan.settle()
	plan.Instance = types.StringValue(uuid.NewString())
	client, template, cause := r.ensure(ctx, &plan, &resp.State, resp.Identity, &resp.Diagnostics)
	if cause != nil {
		f := failure{verb: "create", thing: plan.title(), cause: cause, exists: plan.exists(), next: "remove the cause and run apply again"}
		if !resp.State.Raw.IsNull() {
			f.next = untaintAdvice(proxmoxTemplateType)
		}
		f.addTo(&resp.Diagnostics)
		return
	}
	keepLater(ctx, plan.title(), func(ctx context.Context) error {
		fresh, err := client.ReadTemplate(ctx, template.Node, template.VMID, template.UUID)
		if err != nil || fresh.Instance != template.Instance {
			return err
		}
		return client.KeepTemplate(ctx, fresh)
	})
}

// ensure makes or finishes the template and writes the state at each stage.
func (r *proxmoxTemplateResource) ensure(ctx context.Context, model *proxmoxTemplateModel, state *tfsdk.State, identity *tfsdk.ResourceIdentity,
	diags *diag.Diagnostics,
) (*proxmox.Client, proxmox.Template, error) {
	client, err := r.data.proxmoxClient(ctx)
	if err != nil {
		return nil, proxmox.Template{}, err
	}
	spec, err := model.spec(ctx)
	if err != nil {
		return nil, proxmox.Template{}, err
	}
	begun := false
	save := func() {
		diags := state.Set(ctx, model)
		diags.Append(setTemplateIdentity(ctx, identity, *model)...)
		if diags.HasError() {
			tflog.Error(ctx, "the state was not written: "+diags[0].Detail())
		}
	}
	model.Phase = types.StringValue(phaseBegin)
	report := func(ctx context.Context, step, message string) {
		if step == proxmox.PhaseLeftover {
			diags.AddWarning("An unfinished template was found", sentence(message))
			return
		}
		reporter(&model.Phase)(ctx, step, message)
	}
	template, err := client.EnsureTemplate(ctx, spec, model.Instance.ValueString(), report, func(t proxmox.Template) {
		begun = true
		model.found(t)
		save()
	})
	if err != nil {
		if begun {
			save()
		}
		return nil, template, err
	}
	model.found(template)
	model.Phase = types.StringValue(phaseReady)
	save()
	return client, template, nil
}

func setTemplateIdentity(ctx context.Context, identity *tfsdk.ResourceIdentity, m proxmoxTemplateModel) (diags diag.Diagnostics) {
	if identity == nil {
		return nil
	}
	diags.Append(identity.SetAttribute(ctx, path.Root("node_name"), m.NodeName)...)
	diags.Append(identity.SetAttribute(ctx, path.Root("vm_id"), m.VMID)...)
	return diags
}

// title names the template in diagnostics.
func (m proxmoxTemplateModel) title() string {
	return fmt.Sprintf("the template %s on node %s", m.Name.ValueString(), m.NodeName.ValueString())
}

// exists says what a failed operation has left.
func (m proxmoxTemplateModel) exists() string {
	switch {
	case m.VMID.ValueInt64() != 0 && !m.UUID.IsNull():
		return fmt.Sprintf("VM %d on node %s, unfinished (phase %s)", m.VMID.ValueInt64(), m.NodeName.ValueString(), m.Phase.ValueString())
	case !m.ImportStorage.IsNull() && m.Phase.ValueString() != phaseBegin:
		return fmt.Sprintf("at most the image file in storage %s on node %s", m.ImportStorage.ValueString(), m.NodeName.ValueString())
	}
	return ""
}

func (r *proxmoxTemplateResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state proxmoxTemplateModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(setTemplateIdentity(ctx, resp.Identity, state)...)
	imported := state.Instance.IsNull()
	if state.VMID.IsNull() || (state.UUID.IsNull() && !imported) {
		return // begun, but nothing there yet that could be read
	}
	timeout, diags := state.Timeouts.Read(ctx, proxmoxTemplateTimeouts.Read)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, err := r.data.proxmoxClient(ctx)
	if err == nil {
		err = r.refresh(ctx, client, &state, imported)
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

// refresh reads the template into state.
func (r *proxmoxTemplateResource) refresh(ctx context.Context, client *proxmox.Client, state *proxmoxTemplateModel, imported bool) error {
	template, err := client.ReadTemplate(ctx, state.NodeName.ValueString(), int(state.VMID.ValueInt64()), state.UUID.ValueString())
	if err != nil {
		return err
	}
	if imported {
		object, ok := talosOf(ctx, template.Labels)
		if !ok {
			return errNotOurTemplate
		}
		state.Talos = object
		state.KeepImage = types.BoolValue(false)
		state.Instance = types.StringValue(template.Instance)
		state.Tags = types.SetNull(types.StringType)
	}
	if source, known, _ := readTalos(ctx, state.Talos); known {
		if image, err := source.image(); err == nil {
			state.SchematicID, state.ImageURL = types.StringValue(image.SchematicID()), types.StringValue(image.URL())
		}
	}
	if diags := state.refresh(ctx, template); diags.HasError() {
		return fmt.Errorf("reading the template's tags: %s", diags[0].Detail())
	}
	if template.Instance != state.Instance.ValueString() {
		tflog.Warn(ctx, "template "+state.ID.ValueString()+" bears another resource's mark, or none: it will not be deleted here")
		return nil
	}
	if !template.Kept() {
		if err := client.KeepTemplate(ctx, template); err != nil {
			tflog.Debug(ctx, "the template's mark was not changed to kept", map[string]any{"error": err.Error()})
		}
	}
	return nil
}

func (r *proxmoxTemplateResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state proxmoxTemplateModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Update(ctx, proxmoxTemplateTimeouts.Update)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	plan.settle()
	var err error
	if state.Phase.ValueString() != phaseReady || state.VMID.IsNull() {
		_, _, err = r.ensure(ctx, &plan, &resp.State, resp.Identity, &resp.Diagnostics)
	}
	if err == nil {
		err = r.change(ctx, &plan, &resp.State, resp.Identity)
	}
	if err != nil {
		failure{verb: "update", thing: plan.title(), cause: err, exists: plan.exists(), next: "run apply again, which goes on from there"}.addTo(&resp.Diagnostics)
	}
}

// change brings the settings of a finished template to the plan.
func (r *proxmoxTemplateResource) change(ctx context.Context, plan *proxmoxTemplateModel, state *tfsdk.State, identity *tfsdk.ResourceIdentity) error {
	client, err := r.data.proxmoxClient(ctx)
	if err != nil {
		return err
	}
	spec, err := plan.spec(ctx)
	if err != nil {
		return err
	}
	template, err := client.ReadTemplate(ctx, plan.NodeName.ValueString(), int(plan.VMID.ValueInt64()), plan.UUID.ValueString())
	if err != nil {
		return err
	}
	if template, err = client.UpdateTemplate(ctx, template, plan.settings(), spec.Labels); err != nil {
		return err
	}
	if !plan.KeepImage.ValueBool() {
		if err := client.DropImage(ctx, template); err != nil {
			return err
		}
	}
	plan.found(template)
	plan.Phase = types.StringValue(phaseReady)
	diags := state.Set(ctx, plan)
	diags.Append(setTemplateIdentity(ctx, identity, *plan)...)
	if diags.HasError() {
		return fmt.Errorf("writing the state: %s", diags[0].Detail())
	}
	return nil
}

func (r *proxmoxTemplateResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state proxmoxTemplateModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	forGood, diags := destroyPlanned(ctx, req.Private)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := state.Timeouts.Delete(ctx, proxmoxTemplateTimeouts.Delete)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if state.Phase.ValueString() != phaseReady && !forGood {
		tflog.Info(ctx, "leaving the unfinished template "+state.Name.ValueString()+" to the Create that follows")
		return
	}
	client, err := r.data.proxmoxClient(ctx)
	if err == nil {
		err = r.destroy(ctx, client, state, &resp.Diagnostics)
	}
	if err != nil && !kube.IsAbsent(err) {
		failure{verb: "delete", thing: state.title(), cause: err, exists: "the template is still there as VM " + state.ID.ValueString(),
			next: "remove the cause and run destroy again"}.addTo(&resp.Diagnostics)
	}
}

// destroy deletes the template where it still bears this resource's mark.
func (r *proxmoxTemplateResource) destroy(ctx context.Context, client *proxmox.Client, state proxmoxTemplateModel, diags *diag.Diagnostics) error {
	if state.UUID.IsNull() {
		spec, err := state.spec(ctx)
		if err != nil {
			return err
		}
		return client.DiscardTemplate(ctx, spec, state.Instance.ValueString(), reporter(nil))
	}
	template, err := client.ReadTemplate(ctx, state.NodeName.ValueString(), int(state.VMID.ValueInt64()), state.UUID.ValueString())
	if err != nil {
		return err
	}
	if template.Instance != state.Instance.ValueString() {
		failure{
			verb: "delete", thing: state.title(),
			cause:  errors.New("its notes bear the mark of another resource, or none"),
			exists: fmt.Sprintf("the template, as VM %d on node %s; it is left alone", template.VMID, template.Node),
			next:   fmt.Sprintf("where nothing uses it, remove it: qm destroy %d", template.VMID),
		}.warn(diags)
		return nil
	}
	return client.DeleteTemplate(ctx, template, reporter(nil))
}

// ImportState takes "node/vmid" or the identity.
func (r *proxmoxTemplateResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	var node string
	var id int64
	if req.ID != "" {
		name, number, _ := strings.Cut(req.ID, "/")
		parsed, err := strconv.ParseInt(number, 10, 64)
		if name == "" || err != nil {
			resp.Diagnostics.AddError("Unable to import the template", fmt.Sprintf("The id %q is not of the form NODE/VMID, such as pve1/9000.", req.ID))
			return
		}
		node, id = name, parsed
	} else {
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("node_name"), &node)...)
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("vm_id"), &id)...)
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("node_name"), node)...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("vm_id"), id)...)
}
