// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
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
		"templates": identityschema.StringAttribute{
			RequiredForImport: true, Description: "Node and id of the template, pve1/9000; on several nodes, pve1/9000,pve2/9001.",
		},
	}}
}

func (r *proxmoxTemplateResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configuredData(req, resp)
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
	nodes, _ := plan.nodes(ctx)
	client, templates, cause := r.ensure(ctx, &plan, nodes, &resp.State, resp.Identity, &resp.Diagnostics)
	if cause != nil {
		f := failure{verb: "create", thing: plan.title(), cause: cause, exists: plan.exists(), next: "remove the cause and run apply again"}
		if !resp.State.Raw.IsNull() {
			f.next = untaintAdvice(proxmoxTemplateType)
		}
		f.addTo(&resp.Diagnostics)
		return
	}
	keepLater(ctx, plan.title(), func(ctx context.Context) error {
		var failures []error
		for _, t := range templates {
			fresh, err := client.ReadTemplate(ctx, t.Node, t.VMID, t.UUID)
			if err == nil && fresh.Instance == t.Instance {
				err = client.KeepTemplate(ctx, fresh)
			}
			failures = append(failures, err)
		}
		return errors.Join(failures...)
	})
}

// ensure makes or finishes the template on each of the nodes and writes the state
// at each stage.
func (r *proxmoxTemplateResource) ensure(ctx context.Context, model *proxmoxTemplateModel, nodes []string, state *tfsdk.State, identity *tfsdk.ResourceIdentity,
	diags *diag.Diagnostics,
) (*proxmox.Client, []proxmox.Template, error) {
	client, err := r.data.proxmoxClient(ctx)
	if err != nil {
		return nil, nil, err
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
	report := warning(diags, reporter(&model.Phase))
	var templates []proxmox.Template
	for _, node := range nodes {
		if err = model.identify(); err != nil {
			break
		}
		var spec proxmox.TemplateSpec
		if spec, err = model.spec(ctx, node); err != nil {
			break
		}
		var t proxmox.Template
		t, err = client.EnsureTemplate(ctx, spec, model.Instance.ValueString(), report, func(t proxmox.Template) {
			begun = true
			model.found(ctx, node, t)
			save()
		})
		if err != nil {
			err = onNode(err, node, len(nodes))
			break
		}
		model.found(ctx, node, t)
		templates = append(templates, t)
	}
	if err != nil {
		if begun {
			save()
		}
		return nil, nil, err
	}
	model.Phase = types.StringValue(phaseReady)
	save()
	return client, templates, nil
}

// warning tells what a run leaves on Proxmox VE as warnings, and everything else
// to next.
func warning(diags *diag.Diagnostics, next progress.Reporter) progress.Reporter {
	return func(ctx context.Context, step, message string) {
		switch step {
		case proxmox.PhaseLeftover:
			diags.AddWarning("An unfinished template was found", sentence(message))
		case proxmox.PhaseImageStays:
			diags.AddWarning("An image file stays on Proxmox VE", sentence(message))
		default:
			next.Report(ctx, step, message)
		}
	}
}

// onNode names the node in an error where there are several.
func onNode(err error, node string, nodes int) error {
	if nodes < 2 {
		return err
	}
	return fmt.Errorf("on node %s: %w", node, err)
}

// identify completes at apply what the plan could not know of a source: a file
// that was made in the same apply.
func (m *proxmoxTemplateModel) identify() error {
	if !m.ImageID.IsNull() || !given(m.File) || !m.Checksum.IsNull() {
		return nil
	}
	identity, err := proxmox.FileChecksum(m.File.ValueString())
	if err != nil {
		return err
	}
	m.ImageID = types.StringValue(identity)
	return nil
}

func setTemplateIdentity(ctx context.Context, identity *tfsdk.ResourceIdentity, m proxmoxTemplateModel) (diags diag.Diagnostics) {
	if identity == nil {
		return nil
	}
	// Before there is an id, the nodes stand for it: an identity is never empty.
	where := m.ID.ValueString()
	if where == "" {
		nodes, _ := m.nodes(ctx)
		where = strings.Join(nodes, ",")
	}
	diags.Append(identity.SetAttribute(ctx, path.Root("templates"), where)...)
	return diags
}

// title names the template in diagnostics.
func (m proxmoxTemplateModel) title() string {
	nodes, _ := m.nodes(context.Background())
	if len(nodes) > 1 {
		return fmt.Sprintf("the template %s on the nodes %s", m.Name.ValueString(), strings.Join(nodes, ", "))
	}
	return fmt.Sprintf("the template %s on node %s", m.Name.ValueString(), strings.Join(nodes, ""))
}

// exists says what a failed operation has left.
func (m proxmoxTemplateModel) exists() string {
	var there []string
	places := m.places()
	for _, node := range slices.Sorted(maps.Keys(places)) {
		there = append(there, fmt.Sprintf("VM %d on node %s", places[node].VMID, node))
	}
	switch {
	case len(there) > 0:
		return fmt.Sprintf("%s, unfinished (phase %s)", strings.Join(there, ", "), m.Phase.ValueString())
	case m.Phase.ValueString() != phaseBegin && len(m.ImageTransfer.Elements()) > 0:
		return "at most the image file on the node"
	}
	return ""
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
	have := state.places()
	nodes, _ := plan.nodes(ctx)
	err := r.leaveNodes(ctx, state, nodes, &resp.Diagnostics)
	plan.adopt(ctx, have, state)
	missing := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		_, ok := have[node]
		return ok && state.Phase.ValueString() == phaseReady
	})
	if err == nil && len(missing) > 0 {
		_, _, err = r.ensure(ctx, &plan, missing, &resp.State, resp.Identity, &resp.Diagnostics)
	}
	if err == nil {
		err = r.change(ctx, &plan, nodes, &resp.State, resp.Identity, &resp.Diagnostics)
	}
	if err != nil {
		failure{verb: "update", thing: plan.title(), cause: err, exists: plan.exists(), next: "run apply again, which goes on from there"}.addTo(&resp.Diagnostics)
	}
}

// adopt takes over into a plan what the state knows of the nodes that stay.
func (m *proxmoxTemplateModel) adopt(ctx context.Context, have map[string]place, state proxmoxTemplateModel) {
	nodes, _ := m.nodes(ctx)
	places := map[string]place{}
	for node, p := range have {
		if slices.Contains(nodes, node) {
			places[node] = p
		}
	}
	wished := m.VMID
	m.setPlaces(places)
	if m.NodeNames.IsNull() && len(places) == 0 {
		m.VMID = wished
	}
	m.ImageTransfer = types.MapValueMust(types.ObjectType{AttrTypes: imageTransferTypes}, state.ImageTransfer.Elements())
}

// leaveNodes deletes the templates on nodes that are no longer wanted.
func (r *proxmoxTemplateResource) leaveNodes(ctx context.Context, state proxmoxTemplateModel, wanted []string, diags *diag.Diagnostics) error {
	places := state.places()
	for _, node := range slices.Sorted(maps.Keys(places)) {
		if slices.Contains(wanted, node) {
			continue
		}
		client, err := r.data.proxmoxClient(ctx)
		if err == nil {
			err = r.destroyOn(ctx, client, state, node, true, diags)
		}
		if err != nil && !kube.IsAbsent(err) {
			return err
		}
	}
	return nil
}

// change brings the settings of the finished templates to the plan.
func (r *proxmoxTemplateResource) change(ctx context.Context, plan *proxmoxTemplateModel, nodes []string, state *tfsdk.State, identity *tfsdk.ResourceIdentity, diags *diag.Diagnostics) error {
	client, err := r.data.proxmoxClient(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		spec, err := plan.spec(ctx, node)
		if err != nil {
			return err
		}
		p := plan.places()[node]
		template, err := client.ReadTemplate(ctx, node, int(p.VMID), p.UUID)
		if err == nil {
			template, err = client.UpdateTemplate(ctx, template, spec)
		}
		if err == nil && !plan.KeepImage.ValueBool() {
			err = client.DropImage(ctx, template, warning(diags, reporter(nil)))
		}
		if err != nil {
			return onNode(err, node, len(nodes))
		}
		left, err := client.PruneTemplates(ctx, node, plan.Family.ValueString(), int(plan.KeepLast.ValueInt64()), reporter(nil))
		warnLeft(left, diags)
		if err != nil {
			return onNode(err, node, len(nodes))
		}
		plan.found(ctx, node, template)
	}
	tags := plan.tags()
	maps.DeleteFunc(tags, func(node string, _ []string) bool { return !slices.Contains(nodes, node) })
	plan.NodeTags = tagMap(tags)
	transfers := maps.Clone(plan.ImageTransfer.Elements())
	maps.DeleteFunc(transfers, func(node string, _ attr.Value) bool { return !slices.Contains(nodes, node) })
	plan.ImageTransfer = types.MapValueMust(types.ObjectType{AttrTypes: imageTransferTypes}, transfers)
	plan.Phase = types.StringValue(phaseReady)
	written := state.Set(ctx, plan)
	written.Append(setTemplateIdentity(ctx, identity, *plan)...)
	if written.HasError() {
		return fmt.Errorf("writing the state: %s", written[0].Detail())
	}
	return nil
}

// warnLeft tells of earlier templates that could not be deleted.
func warnLeft(left []string, diags *diag.Diagnostics) {
	for _, text := range left {
		diags.AddWarning("An earlier template stays", sentence(text)+"\n\nIt is looked at again when the next one retires.")
	}
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
		err = r.destroy(ctx, client, state, forGood, &resp.Diagnostics)
	}
	if err != nil {
		failure{verb: "delete", thing: state.title(), cause: err, exists: "the template is still there as " + state.ID.ValueString(),
			next: "remove the cause and run destroy again"}.addTo(&resp.Diagnostics)
	}
}

// destroy deletes the templates, or has them retire, on all nodes, and removes
// what an unfinished run has left on the others.
func (r *proxmoxTemplateResource) destroy(ctx context.Context, client *proxmox.Client, state proxmoxTemplateModel, forGood bool, diags *diag.Diagnostics) error {
	nodes, _ := state.nodes(ctx)
	places := state.places()
	for node := range places {
		if !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	var failures []error
	for _, node := range nodes {
		var err error
		if _, ok := places[node]; ok {
			err = r.destroyOn(ctx, client, state, node, forGood, diags)
		} else if state.Phase.ValueString() != phaseReady {
			var spec proxmox.TemplateSpec
			if spec, err = state.spec(ctx, node); err == nil {
				err = client.DiscardTemplate(ctx, spec, state.Instance.ValueString(), warning(diags, reporter(nil)))
			}
		}
		if err != nil && !kube.IsAbsent(err) {
			failures = append(failures, onNode(err, node, len(nodes)))
		}
	}
	return errors.Join(failures...)
}

// destroyOn deletes the template on one node where it still bears this
// resource's mark. One whose place another of its family takes, retires instead
// where some are to be kept.
func (r *proxmoxTemplateResource) destroyOn(ctx context.Context, client *proxmox.Client, state proxmoxTemplateModel, node string, forGood bool, diags *diag.Diagnostics) error {
	p := state.places()[node]
	template, err := client.ReadTemplate(ctx, node, int(p.VMID), p.UUID)
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
	keep, family := int(state.KeepLast.ValueInt64()), state.Family.ValueString()
	if keep > 0 {
		// The deposed half of create_before_destroy looks like a destroy for good,
		// but for the new template that is there already.
		replaced := !forGood
		if !replaced {
			if replaced, err = client.HasSuccessor(ctx, template); err != nil {
				return err
			}
		}
		if replaced {
			left, err := client.RetireTemplate(ctx, template, keep, reporter(nil))
			warnLeft(left, diags)
			return err
		}
	}
	if err := client.DeleteTemplate(ctx, template, warning(diags, reporter(nil))); err != nil || keep == 0 {
		return err
	}
	left, err := client.PruneTemplates(ctx, template.Node, family, 0, reporter(nil))
	warnLeft(left, diags)
	return err
}
