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
	"sync"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

// ValidateConfig checks what the configuration alone tells.
func (r *proxmoxTemplateResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var config proxmoxTemplateModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(config.validatePlace(ctx)...)
	resp.Diagnostics.Append(config.validateMachine(ctx)...)
	resp.Diagnostics.Append(config.validateSource(ctx)...)
}

// validatePlace checks ids and tags against one another.
func (m proxmoxTemplateModel) validatePlace(ctx context.Context) (diags diag.Diagnostics) {
	if wholly(ctx, m.VMIDRange) && !m.VMIDRange.IsNull() {
		var wish vmIDRangeModel
		diags.Append(m.VMIDRange.As(ctx, &wish, basetypes.ObjectAsOptions{})...)
		nodes, known := m.nodes(ctx)
		size := wish.End.ValueInt64() - wish.Start.ValueInt64() + 1
		switch {
		case size < 1:
			diags.AddAttributeError(path.Root("vm_id_range"), "Unable to use the range of ids",
				fmt.Sprintf("It ends (%d) before it starts (%d).", wish.End.ValueInt64(), wish.Start.ValueInt64()))
		case known && int64(len(nodes)) > size:
			diags.AddAttributeError(path.Root("vm_id_range"), "Unable to use the range of ids",
				fmt.Sprintf("It has room for %d templates, and there is one for each of %d nodes.", size, len(nodes)))
		}
	}
	if given(m.NodeTagPrefix) && m.NodeNames.IsNull() {
		diags.AddAttributeError(path.Root("node_tag_prefix"), "Unable to use the prefix of tags",
			"A template on a single node (node_name) gets no tag of its own. Give its tags as tags, or its nodes as node_names.")
	}
	if m.KeepLast.ValueInt64() > 0 && m.Family.IsNull() {
		diags.AddAttributeError(path.Root("keep_last"), "Unable to keep earlier templates",
			"Nothing tells which templates followed one another. Give them a name in common with family, such as \"talos-amd64\".")
	}
	return diags
}

// validateMachine checks hardware and settings against one another.
func (m proxmoxTemplateModel) validateMachine(ctx context.Context) (diags diag.Diagnostics) {
	refuse := func(attribute, format string, args ...any) {
		diags.AddAttributeError(path.Root(attribute), "Unable to use "+attribute, fmt.Sprintf(format, args...))
	}
	if !m.Balloon.IsUnknown() && !m.Memory.IsUnknown() {
		memory := int64(2048)
		if !m.Memory.IsNull() {
			memory = m.Memory.ValueInt64()
		}
		if m.Balloon.ValueInt64() > memory {
			refuse("balloon", "The least memory that ballooning leaves (%d MiB) is more than memory (%d MiB).", m.Balloon.ValueInt64(), memory)
		}
	}
	if m.BIOS.ValueString() == "seabios" {
		if m.PreEnrolledKeys.ValueBool() {
			refuse("pre_enrolled_keys", "The firmware seabios has no keys: they belong to bios = \"ovmf\".")
		}
		if image, _, _ := readTalos(ctx, m.Talos); image.SecureBoot.ValueBool() {
			diags.AddAttributeError(path.Root("talos").AtName("secure_boot"), "Unable to use Secure Boot", "The firmware seabios has none: leave bios at its default, ovmf.")
		}
	}
	if m.VGA.ValueString() == "serial0" && !m.Serial.IsNull() && !m.Serial.IsUnknown() && !m.Serial.ValueBool() {
		refuse("vga", "The display serial0 is the serial port, which serial = false takes away.")
	}
	if wholly(ctx, m.Disk) && !m.Disk.IsNull() && !m.SCSIController.IsUnknown() {
		var disk diskModel
		diags.Append(m.Disk.As(ctx, &disk, basetypes.ObjectAsOptions{})...)
		if disk.IOThread.ValueBool() && m.SCSIController.ValueString() != "virtio-scsi-single" {
			diags.AddAttributeError(path.Root("disk").AtName("iothread"), "Unable to give the disk a thread of its own",
				"Proxmox VE does so with scsi_controller = \"virtio-scsi-single\" alone.")
		}
	}
	return diags
}

// validateSource checks what the template is made of.
func (m proxmoxTemplateModel) validateSource(ctx context.Context) (diags diag.Diagnostics) {
	if !m.Talos.IsNull() {
		for name, value := range map[string]types.String{"checksum": m.Checksum, "image_format": m.ImageFormat, "image_compression": m.ImageCompression} {
			if !value.IsNull() {
				diags.AddAttributeError(path.Root(name), "Unable to use "+name, "It describes an image at url or in file. Talos images are always the Image Factory's own qcow2, whose bytes differ from build to build.")
			}
		}
		image, _, more := readTalos(ctx, m.Talos)
		diags.Append(more...)
		if !image.SchematicID.IsNull() && !more.HasError() {
			for name, empty := range map[string]bool{
				"extensions": image.Extensions.IsNull(), "extra_kernel_args": image.ExtraKernelArgs.IsNull(), "meta": image.Meta.IsNull(), "overlay": image.Overlay.IsNull(),
			} {
				if !empty {
					diags.AddAttributeError(path.Root("talos").AtName(name), "Unable to add "+name+" to a schematic that is given by its id",
						"schematic_id names a finished schematic. Give either it, or what it is to hold.")
				}
			}
		}
	}
	if diags.HasError() || m.Talos.IsNull() && m.URL.IsNull() && m.File.IsNull() {
		return diags
	}
	if _, err := m.source(ctx, ""); err != nil && !errors.Is(err, errSourceUnknown) {
		diags.AddAttributeError(m.sourcePath(), "Unable to name the image", sentence(err.Error()))
	}
	return diags
}

// sourcePath is the attribute that names the image.
func (m proxmoxTemplateModel) sourcePath() path.Path {
	switch {
	case !m.Talos.IsNull():
		return path.Root("talos")
	case !m.URL.IsNull():
		return path.Root("url")
	}
	return path.Root("file")
}

// ModifyPlan computes what the configuration tells about the image, so that the
// plan shows it, and plans a new template where its content changes.
func (r *proxmoxTemplateResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		resp.Diagnostics.Append(refuseProtected(ctx, req.State, "destroy")...)
		return
	}
	var plan, config proxmoxTemplateModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	var state *proxmoxTemplateModel
	if !req.State.Raw.IsNull() {
		state = &proxmoxTemplateModel{}
		resp.Diagnostics.Append(req.State.Get(ctx, state)...)
	}
	if resp.Diagnostics.HasError() {
		return
	}
	source, err := plan.planSource(ctx, config, state)
	if err != nil && !errors.Is(err, errSourceUnknown) {
		resp.Diagnostics.AddAttributeError(plan.sourcePath(), "Unable to name the image", sentence(err.Error()))
		return
	}
	plan.planPlaces(ctx, config, state)
	resp.Diagnostics.Append(resp.Plan.Set(ctx, plan)...)
	planPhase(ctx, resp)
	replaced := state != nil && !state.ImageID.IsNull() && !state.ImageID.Equal(plan.ImageID)
	if replaced {
		resp.RequiresReplace = append(resp.RequiresReplace, path.Root("image_id"))
	}
	if state != nil && len(resp.RequiresReplace) > 0 {
		resp.Diagnostics.Append(refuseProtected(ctx, req.State, "change what makes a new one")...)
	}
	if state == nil || len(resp.RequiresReplace) > 0 {
		resp.Diagnostics.Append(r.lookAhead(ctx, plan, state, source, req.Config.Raw.IsFullyKnown())...)
	}
}

// refuseProtected refuses at plan what Proxmox VE would refuse later; then is what
// was to be done.
func refuseProtected(ctx context.Context, state tfsdk.State, then string) (diags diag.Diagnostics) {
	var model proxmoxTemplateModel
	diags.Append(state.Get(ctx, &model)...)
	if diags.HasError() || !model.Protection.ValueBool() || model.KeepLast.ValueInt64() > 0 {
		return diags
	}
	failure{
		verb: "delete", thing: model.title(), cause: errors.New("it is protected against deletion"),
		next: "set protection = false and apply, then " + then,
	}.addTo(&diags)
	return diags
}

// planSource plans what follows from the image.
func (m *proxmoxTemplateModel) planSource(ctx context.Context, config proxmoxTemplateModel, state *proxmoxTemplateModel) (templateSource, error) {
	planned, err := m.plannedFile(state)
	var source templateSource
	if err == nil {
		source, err = m.source(ctx, planned)
	}
	if config.Machine.IsNull() {
		m.Machine = types.StringNull()
		if m.BIOS.ValueString() == "ovmf" {
			m.Machine = types.StringValue("q35")
		}
	}
	m.ImageURL, m.SchematicID = types.StringNull(), types.StringNull()
	if err != nil {
		m.ImageID = types.StringUnknown()
		if m.File.IsNull() {
			m.ImageURL = types.StringUnknown()
		}
		if !m.Talos.IsNull() {
			m.SchematicID = types.StringUnknown()
		}
		if config.Name.IsNull() {
			m.Name = types.StringUnknown()
		}
		if config.Agent.IsNull() {
			m.Agent = types.BoolUnknown()
		}
		return source, err
	}
	m.ImageID = types.StringValue(source.identity)
	if address := source.image.URL(); address != "" {
		m.ImageURL = types.StringValue(address)
	}
	if source.talos != nil {
		m.SchematicID = types.StringValue(source.talos.SchematicID())
	}
	if config.Name.IsNull() {
		m.Name = types.StringValue(source.name)
	}
	if config.Agent.IsNull() {
		m.Agent = types.BoolValue(source.agent)
	}
	return source, nil
}

// plannedFile answers the identity of a source file that was given no checksum.
// A file that is gone is no reason to make a template anew that was made of it;
// one that is not there yet is not known yet.
func (m *proxmoxTemplateModel) plannedFile(state *proxmoxTemplateModel) (string, error) {
	if !given(m.File) || !m.Checksum.IsNull() {
		return "", nil
	}
	identity, ok, err := fileIdentity(m.File.ValueString())
	switch {
	case err != nil || ok:
		return identity, err
	case state != nil && state.File.Equal(m.File) && given(state.ImageID):
		return state.ImageID.ValueString(), nil
	}
	return "", errSourceUnknown
}

// planPlaces plans ids and tags.
func (m *proxmoxTemplateModel) planPlaces(ctx context.Context, config proxmoxTemplateModel, state *proxmoxTemplateModel) {
	nodes, known := m.nodes(ctx)
	m.NodeTags = types.MapUnknown(nodeTagsType)
	prefixKnown := m.NodeNames.IsNull() || given(m.NodeTagPrefix) || (m.NodeTagPrefix.IsNull() && !m.Name.IsUnknown())
	if known && prefixKnown && wholly(ctx, m.Tags) {
		tags := map[string][]string{}
		for _, node := range nodes {
			tags[node] = m.tagsOn(node)
		}
		m.NodeTags = tagMap(tags)
	}
	if state != nil && known && slices.Equal(slices.Sorted(maps.Keys(state.places())), nodes) && state.Phase.ValueString() == phaseReady {
		m.ID, m.VMIDs, m.UUIDs, m.ImageTransfer = state.ID, state.VMIDs, state.UUIDs, state.ImageTransfer
		if config.VMID.IsNull() {
			m.VMID = state.VMID
		}
		return
	}
	m.ID, m.VMIDs, m.UUIDs = types.StringUnknown(), types.MapUnknown(types.Int64Type), types.MapUnknown(types.StringType)
	m.ImageTransfer = types.MapUnknown(types.ObjectType{AttrTypes: imageTransferTypes})
	if config.VMID.IsNull() {
		m.VMID = types.Int64Unknown()
		if !m.NodeNames.IsNull() {
			m.VMID = types.Int64Null()
		}
	}
}

// lookAheadTimeout bounds what a plan waits for servers that may not be there.
const lookAheadTimeout = 5 * time.Second

// lookAhead asks the Image Factory and Proxmox VE what only they know, where they
// answer. A factory that does not is worth a warning; a Proxmox VE that does not
// is not, since it may be made in the same apply. known says that all of the
// configuration is.
func (r *proxmoxTemplateResource) lookAhead(ctx context.Context, plan proxmoxTemplateModel, state *proxmoxTemplateModel, source templateSource, known bool) (diags diag.Diagnostics) {
	if source.talos != nil {
		diags.Append(checkFactory(ctx, source.talos)...)
	}
	client, ctx, cancel := lookAheadClient(ctx, r.data)
	defer cancel()
	if client == nil || diags.HasError() {
		return diags
	}
	if nodes, _ := plan.nodes(ctx); known {
		for _, node := range nodes {
			spec, err := plan.spec(ctx, node)
			if err == nil {
				err = client.CheckTemplate(ctx, spec)
			}
			diags.Append(foreseen(ctx, "the template cannot be made as things are", onNode(err, node, len(nodes)))...)
			diags.Append(namesakes(ctx, client, plan.tagsOn(node), state)...)
		}
	}
	if plan.NodeName.IsNull() || plan.NodeName.IsUnknown() || plan.Storage.IsUnknown() {
		return diags
	}
	others, err := client.NodesThatCannotClone(ctx, plan.NodeName.ValueString(), plan.Storage.ValueString())
	if err != nil {
		tflog.Debug(ctx, "whether the template can be cloned elsewhere is not known", map[string]any{"error": err.Error()})
		return diags
	}
	if len(others) > 0 {
		diags.AddAttributeWarning(path.Root("storage"), "The template can be cloned on one node only", fmt.Sprintf(
			"The storage %s is local to its node: no machine can be cloned from this template on %s. Use a shared storage, or make one template per node with node_names.",
			plan.Storage.ValueString(), listText(others)))
	}
	return diags
}

// namesakes warns of other templates with the same tags.
func namesakes(ctx context.Context, client *proxmox.Client, tags []string, state *proxmoxTemplateModel) (diags diag.Diagnostics) {
	if len(tags) == 0 {
		return nil
	}
	var own []int64 // those that this plan replaces
	if state != nil {
		for _, p := range state.places() {
			own = append(own, p.VMID)
		}
	}
	others, err := client.TemplatesTagged(ctx, tags, own)
	if err != nil {
		tflog.Debug(ctx, "whether other templates have the same tags is not known", map[string]any{"error": err.Error()})
	}
	if len(others) > 0 {
		diags.AddAttributeWarning(path.Root("tags"), "The tags do not tell the template from others", fmt.Sprintf(
			"The same tags (%s) has %s. The templateSelector of Cluster API's Proxmox provider wants one match in the whole cluster: give the template a tag of its own, or name it by its id.",
			strings.Join(tags, ", "), strings.Join(others, ", ")))
	}
	return diags
}

// checkFactory asks an Image Factory whether it serves an image.
func checkFactory(ctx context.Context, image *talos.DiskImage) (diags diag.Diagnostics) {
	ctx, cancel := context.WithTimeout(ctx, lookAheadTimeout)
	defer cancel()
	err := factoryAnswers.check(ctx, image)
	switch {
	case errors.Is(err, talos.ErrNotServed):
		diags.AddAttributeError(path.Root("talos"), "Unable to use the Talos image", sentence(err.Error()))
	case err != nil:
		diags.AddAttributeWarning(path.Root("talos"), "The Image Factory does not answer",
			sentence("whether it serves this version with these extensions shows when the template is made: "+err.Error()))
	}
	return diags
}

func listText(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	out := ""
	for i, name := range names {
		switch i {
		case 0:
		case len(names) - 1:
			out += " or "
		default:
			out += ", "
		}
		out += name
	}
	return out
}

// answers remembers for a short while what Image Factories said: Terraform plans
// each resource several times in a row.
type answers struct {
	mu   sync.Mutex
	said map[string]answer
}

type answer struct {
	err error
	at  time.Time
}

var factoryAnswers answers

// answerLife is how long an answer is good. It bounds, too, how soon a factory
// that was silent is asked again.
const answerLife = 30 * time.Second

func (a *answers) check(ctx context.Context, image *talos.DiskImage) error {
	key := image.URL()
	a.mu.Lock()
	last, ok := a.said[key]
	a.mu.Unlock()
	if ok && time.Since(last.at) < answerLife {
		return last.err
	}
	err := image.Check(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.said == nil {
		a.said = map[string]answer{}
	}
	a.said[key] = answer{err: err, at: time.Now()}
	return err
}
