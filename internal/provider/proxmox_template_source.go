// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

// talosImageModel is the attribute talos.
type talosImageModel struct {
	Version         types.String `tfsdk:"version"`
	Extensions      types.Set    `tfsdk:"extensions"`
	ExtraKernelArgs types.List   `tfsdk:"extra_kernel_args"`
	Meta            types.List   `tfsdk:"meta"`
	Overlay         types.Object `tfsdk:"overlay"`
	SecureBoot      types.Bool   `tfsdk:"secure_boot"`
	Architecture    types.String `tfsdk:"architecture"`
	FactoryURL      types.String `tfsdk:"factory_url"`
	SchematicID     types.String `tfsdk:"schematic_id"`
}

type talosMetaModel struct {
	Key   types.Int64  `tfsdk:"key"`
	Value types.String `tfsdk:"value"`
}

type talosOverlayModel struct {
	Image   types.String `tfsdk:"image"`
	Name    types.String `tfsdk:"name"`
	Options types.Map    `tfsdk:"options"`
}

var (
	talosMetaTypes    = map[string]attr.Type{"key": types.Int64Type, "value": types.StringType}
	talosOverlayTypes = map[string]attr.Type{"image": types.StringType, "name": types.StringType, "options": types.MapType{ElemType: types.StringType}}
	talosImageTypes   = map[string]attr.Type{
		"version":           types.StringType,
		"extensions":        types.SetType{ElemType: types.StringType},
		"extra_kernel_args": types.ListType{ElemType: types.StringType},
		"meta":              types.ListType{ElemType: types.ObjectType{AttrTypes: talosMetaTypes}},
		"overlay":           types.ObjectType{AttrTypes: talosOverlayTypes},
		"secure_boot":       types.BoolType,
		"architecture":      types.StringType,
		"factory_url":       types.StringType,
		"schematic_id":      types.StringType,
	}
)

// wholly says whether a value and everything in it is known.
func wholly(ctx context.Context, value attr.Value) bool {
	text, err := value.ToTerraformValue(ctx)
	return err == nil && text.IsFullyKnown()
}

// readTalos reads an object of [talosImageTypes]. known is false where part of it
// is not known yet.
func readTalos(ctx context.Context, object types.Object) (m talosImageModel, known bool, diags diag.Diagnostics) {
	if object.IsNull() || object.IsUnknown() {
		return m, false, nil
	}
	diags = object.As(ctx, &m, basetypes.ObjectAsOptions{})
	return m, !diags.HasError() && wholly(ctx, object), diags
}

// additions answers what the attribute adds to a plain image. All of it is known.
func (m talosImageModel) additions(ctx context.Context) (talos.Additions, error) {
	a := talos.Additions{Extensions: stringsOf(m.Extensions.Elements()), KernelArgs: stringsOf(m.ExtraKernelArgs.Elements())}
	var meta []talosMetaModel
	diags := m.Meta.ElementsAs(ctx, &meta, false)
	for _, entry := range meta {
		key := entry.Key.ValueInt64()
		if key < 0 || key > 255 {
			return a, fmt.Errorf("the meta key %d is not between 0 and 255", key)
		}
		a.Meta = append(a.Meta, talos.MetaValue{Key: uint8(key), Value: entry.Value.ValueString()}) //nolint:gosec // checked above
	}
	if !m.Overlay.IsNull() {
		var overlay talosOverlayModel
		diags.Append(m.Overlay.As(ctx, &overlay, basetypes.ObjectAsOptions{})...)
		a.Overlay = talos.Overlay{Image: overlay.Image.ValueString(), Name: overlay.Name.ValueString()}
		for name, value := range overlay.Options.Elements() {
			if text, ok := value.(types.String); ok {
				if a.Overlay.Options == nil {
					a.Overlay.Options = map[string]any{}
				}
				a.Overlay.Options[name] = text.ValueString()
			}
		}
	}
	if diags.HasError() {
		return a, errors.New(diags[0].Detail())
	}
	return a, nil
}

// image answers the image that the attribute names, and its schematic where that
// is known. All of the attribute is known.
func (m talosImageModel) image(ctx context.Context) (*talos.DiskImage, *talos.Schematic, error) {
	image := talos.Image{
		Factory:      m.FactoryURL.ValueString(),
		Version:      m.Version.ValueString(),
		Architecture: m.Architecture.ValueString(),
		SecureBoot:   m.SecureBoot.ValueBool(),
		Schematic:    m.SchematicID.ValueString(),
	}
	if image.Schematic != "" {
		known, err := talos.KnownDiskImage(image, talos.Factory{})
		return known, nil, err
	}
	additions, err := m.additions(ctx)
	if err != nil {
		return nil, nil, err
	}
	schematic, err := additions.Schematic()
	if err != nil {
		return nil, nil, err
	}
	disk, err := talos.NewDiskImage(schematic, image, talos.Factory{})
	return disk, &schematic, err
}

// hasAgent says whether the image is known to have the guest agent.
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

// templateSource is what a template is made of.
type templateSource struct {
	image proxmox.ImageSource
	// identity says what the content is, see [proxmox.TemplateSpec].
	identity string
	// talos is the image where it is one of Talos.
	talos *talos.DiskImage
	// name is the default of the template's.
	name  string
	agent bool
}

// errSourceUnknown says that the source has values that are not known yet.
var errSourceUnknown = errors.New("the template's image is not known yet")

// source answers what the template is made of. planned, when not empty, is the
// identity that the plan has found for a file without a checksum.
func (m proxmoxTemplateModel) source(ctx context.Context, planned string) (templateSource, error) {
	for _, value := range []attr.Value{m.Talos, m.URL, m.File, m.Checksum, m.ImageFormat, m.ImageCompression} {
		if !wholly(ctx, value) {
			return templateSource{}, errSourceUnknown
		}
	}
	options := proxmox.ImageOptions{
		URL: m.URL.ValueString(), File: m.File.ValueString(), Checksum: m.Checksum.ValueString(),
		Format: m.ImageFormat.ValueString(), Compression: m.ImageCompression.ValueString(),
	}
	switch {
	case !m.Talos.IsNull():
		return talosSource(ctx, m.Talos)
	case options.URL != "":
		image, err := proxmox.NewRemoteImage(options)
		if err != nil {
			return templateSource{}, err
		}
		address, _, _ := strings.Cut(options.URL, "?")
		return templateSource{image: image, identity: image.Identity(), name: imageName(path.Base(address), image.Identity())}, nil
	default:
		if options.Checksum == "" {
			options.Checksum = planned
		}
		image, err := proxmox.NewFileImage(options)
		if err != nil {
			return templateSource{}, err
		}
		return templateSource{image: image, identity: image.Identity(), name: imageName(filepath.Base(options.File), image.Identity())}, nil
	}
}

func talosSource(ctx context.Context, object types.Object) (templateSource, error) {
	m, _, diags := readTalos(ctx, object)
	if diags.HasError() {
		return templateSource{}, errors.New(diags[0].Detail())
	}
	image, _, err := m.image(ctx)
	if err != nil {
		return templateSource{}, err
	}
	return templateSource{
		image: image, identity: image.Identity(), talos: image, agent: m.hasAgent(),
		name: "talos-" + m.Version.ValueString() + "-" + image.SchematicID()[:8],
	}, nil
}

var (
	imageEndings  = regexp.MustCompile(`(?i)(\.(qcow2|raw|img|vmdk|gz|xz|zst|bz2))+$`)
	unsafeInNames = regexp.MustCompile(`[^a-z0-9.-]+`)
)

// imageName is the default name of a template made of a file of this name, with
// the beginning of its content's identity.
func imageName(file, identity string) string {
	name := unsafeInNames.ReplaceAllString(strings.ToLower(imageEndings.ReplaceAllString(file, "")), "-")
	_, digits, _ := strings.Cut(identity, ":")
	labels := strings.FieldsFunc(name, func(r rune) bool { return r == '.' })
	for i, label := range labels {
		labels[i] = strings.Trim(label, "-")
	}
	name = strings.Trim(strings.Join(slices.DeleteFunc(labels, func(l string) bool { return l == "" }), "."), "-.")
	if len(name) > 48 {
		name = strings.Trim(name[:48], "-.")
	}
	if name == "" {
		name = "image"
	}
	return name + "-" + digits[:min(8, len(digits))]
}

// fileIdentity answers the checksum of a source file that was given none. ok is
// false where the file is not there.
func fileIdentity(name string) (identity string, ok bool, err error) {
	if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	identity, err = proxmox.FileChecksum(name)
	return identity, err == nil, err
}

// labels are what an import needs to find the source again.
func (m proxmoxTemplateModel) labels(ctx context.Context) map[string]string {
	out := map[string]string{}
	put := func(name, value string) {
		if value != "" {
			out[name] = value
		}
	}
	// Its query may hold a signature, which is not for everybody who sees the notes.
	address, _, _ := strings.Cut(m.URL.ValueString(), "?")
	put("url", address)
	put("file", m.File.ValueString())
	put("checksum", m.Checksum.ValueString())
	put("format", m.ImageFormat.ValueString())
	put("compression", m.ImageCompression.ValueString())
	put("content", m.ImageID.ValueString())
	if image, _, diags := readTalos(ctx, m.Talos); !m.Talos.IsNull() && !diags.HasError() {
		image.label(ctx, put)
	}
	return out
}

// label puts what the attribute says into labels.
func (m talosImageModel) label(ctx context.Context, put func(name, value string)) {
	list := func(name string, values any, length int) {
		if text, err := json.Marshal(values); err == nil && length > 0 {
			put(name, string(text))
		}
	}
	put("talos", m.Version.ValueString())
	put("architecture", m.Architecture.ValueString())
	put("factory", m.FactoryURL.ValueString())
	put("schematic", m.SchematicID.ValueString())
	if m.SecureBoot.ValueBool() {
		put("secure_boot", "true")
	}
	additions, err := m.additions(ctx)
	if err != nil {
		return
	}
	slices.Sort(additions.Extensions)
	list("extensions", additions.Extensions, len(additions.Extensions))
	list("kernel_args", additions.KernelArgs, len(additions.KernelArgs))
	list("meta", additions.Meta, len(additions.Meta))
	list("overlay", additions.Overlay, len(additions.Overlay.Image))
}

// readSource reads the source out of a template's labels, for an import. It
// answers false where they name none.
func (m *proxmoxTemplateModel) readSource(ctx context.Context, labels map[string]string) bool {
	optional := func(name string) types.String {
		if labels[name] == "" {
			return types.StringNull()
		}
		return types.StringValue(labels[name])
	}
	m.URL, m.File, m.Checksum = optional("url"), optional("file"), optional("checksum")
	m.ImageFormat, m.ImageCompression, m.ImageID = optional("format"), optional("compression"), optional("content")
	m.Talos = types.ObjectNull(talosImageTypes)
	if labels["talos"] != "" {
		object, diags := types.ObjectValueFrom(ctx, talosImageTypes, talosLabels(ctx, labels))
		if diags.HasError() {
			return false
		}
		m.Talos = object
	}
	return !m.Talos.IsNull() || !m.URL.IsNull() || !m.File.IsNull()
}

func talosLabels(ctx context.Context, labels map[string]string) talosImageModel {
	m := talosImageModel{
		Version:         types.StringValue(labels["talos"]),
		Extensions:      types.SetNull(types.StringType),
		ExtraKernelArgs: types.ListNull(types.StringType),
		Meta:            types.ListNull(types.ObjectType{AttrTypes: talosMetaTypes}),
		Overlay:         types.ObjectNull(talosOverlayTypes),
		SecureBoot:      types.BoolValue(labels["secure_boot"] == "true"),
		Architecture:    types.StringValue(labels["architecture"]),
		FactoryURL:      types.StringValue(labels["factory"]),
		SchematicID:     types.StringNull(),
	}
	if labels["schematic"] != "" {
		m.SchematicID = types.StringValue(labels["schematic"])
	}
	var list []string
	if json.Unmarshal([]byte(labels["extensions"]), &list) == nil && len(list) > 0 {
		m.Extensions, _ = types.SetValueFrom(ctx, types.StringType, list)
	}
	list = nil
	if json.Unmarshal([]byte(labels["kernel_args"]), &list) == nil && len(list) > 0 {
		m.ExtraKernelArgs, _ = types.ListValueFrom(ctx, types.StringType, list)
	}
	var meta []talos.MetaValue
	if json.Unmarshal([]byte(labels["meta"]), &meta) == nil && len(meta) > 0 {
		var entries []talosMetaModel
		for _, entry := range meta {
			entries = append(entries, talosMetaModel{Key: types.Int64Value(int64(entry.Key)), Value: types.StringValue(entry.Value)})
		}
		m.Meta, _ = types.ListValueFrom(ctx, types.ObjectType{AttrTypes: talosMetaTypes}, entries)
	}
	var overlay talos.Overlay
	if json.Unmarshal([]byte(labels["overlay"]), &overlay) == nil && overlay.Image != "" {
		model := talosOverlayModel{Image: types.StringValue(overlay.Image), Name: types.StringValue(overlay.Name), Options: types.MapNull(types.StringType)}
		if len(overlay.Options) > 0 {
			model.Options, _ = types.MapValueFrom(ctx, types.StringType, texts(overlay.Options))
		}
		m.Overlay, _ = types.ObjectValueFrom(ctx, talosOverlayTypes, model)
	}
	return m
}

// texts are the options of an overlay as the attribute holds them.
func texts(options map[string]any) map[string]string {
	out := map[string]string{}
	for name, value := range options {
		out[name] = fmt.Sprint(value)
	}
	return out
}

// familyLabelLength bounds a family, which is part of a template's notes.
const familyLabelLength = 63

// placeID is a template's place as an import id has it.
func placeID(node string, vmid int64) string { return node + "/" + strconv.FormatInt(vmid, 10) }
