// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

var _ datasource.DataSource = (*talosImageDataSource)(nil)

type talosImageDataSource struct{}

func newTalosImageDataSource() datasource.DataSource { return &talosImageDataSource{} }

// talosImageDataModel is the data source capi_talos_image.
type talosImageDataModel struct {
	Version         types.String `tfsdk:"version"`
	Extensions      types.Set    `tfsdk:"extensions"`
	ExtraKernelArgs types.List   `tfsdk:"extra_kernel_args"`
	Meta            types.List   `tfsdk:"meta"`
	Overlay         types.Object `tfsdk:"overlay"`
	SecureBoot      types.Bool   `tfsdk:"secure_boot"`
	Architecture    types.String `tfsdk:"architecture"`
	FactoryURL      types.String `tfsdk:"factory_url"`
	SchematicID     types.String `tfsdk:"schematic_id"`

	Schematic      types.String `tfsdk:"schematic"`
	URL            types.String `tfsdk:"url"`
	InstallerImage types.String `tfsdk:"installer_image"`
	Served         types.Bool   `tfsdk:"served"`
}

func (d *talosImageDataSource) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "capi_talos_image"
}

func (d *talosImageDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A Talos image of an Image Factory: the id of its schematic, its address and its installer, computed without asking anybody, and whether the " +
			"factory serves it. The schematic is not registered; a template does that.",
		Attributes: map[string]schema.Attribute{
			"version": schema.StringAttribute{
				Required: true, Validators: []validator.String{checked("a Talos version", talos.CheckVersion)}, MarkdownDescription: "Talos release, for example `v1.13.7`.",
			},
			"extensions":        schema.SetAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "Official system extensions."},
			"extra_kernel_args": schema.ListAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "Kernel arguments to add, in this order."},
			"meta": schema.ListNestedAttribute{
				Optional: true, MarkdownDescription: "Entries of the META partition.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"key":   schema.Int64Attribute{Required: true, Validators: []validator.Int64{int64validator.Between(0, 255)}, MarkdownDescription: "Key."},
					"value": schema.StringAttribute{Required: true, MarkdownDescription: "Value."},
				}},
			},
			"overlay": schema.SingleNestedAttribute{
				Optional: true, MarkdownDescription: "Overlay, a board support package.",
				Attributes: map[string]schema.Attribute{
					"image":   schema.StringAttribute{Required: true, MarkdownDescription: "Image, such as `siderolabs/sbc-raspberrypi`."},
					"name":    schema.StringAttribute{Required: true, MarkdownDescription: "Name in it, such as `rpi_generic`."},
					"options": schema.MapAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "Options of the overlay."},
				},
			},
			"secure_boot": schema.BoolAttribute{Optional: true, MarkdownDescription: "The image with a signed boot loader and kernel."},
			"architecture": schema.StringAttribute{
				Optional: true, Validators: []validator.String{stringvalidator.OneOf(talos.Architectures...)}, MarkdownDescription: "`amd64` (the default) or `arm64`.",
			},
			"factory_url": schema.StringAttribute{Optional: true, MarkdownDescription: "Address of the Image Factory. Defaults to `" + talos.DefaultFactory + "`."},
			"schematic_id": schema.StringAttribute{
				Optional: true, Computed: true,
				Validators: []validator.String{
					checked("the id of a schematic", talos.CheckSchematicID),
					stringvalidator.ConflictsWith(path.MatchRoot("extensions"), path.MatchRoot("extra_kernel_args"), path.MatchRoot("meta"), path.MatchRoot("overlay")),
				},
				MarkdownDescription: "Id of the schematic. Computed from what it is to hold, unless it is given in place of that.",
			},
			"schematic":       schema.StringAttribute{Computed: true, MarkdownDescription: "Canonical text of the schematic, whose SHA-256 the id is. Null where the id was given."},
			"url":             schema.StringAttribute{Computed: true, MarkdownDescription: "Address of the image (nocloud, qcow2), as `capi_proxmox_template` uses it."},
			"installer_image": schema.StringAttribute{Computed: true, MarkdownDescription: "Container image that machines of this schematic install and upgrade themselves from (`machine.install.image`)."},
			"served": schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the factory serves this version with these extensions, or knows the schematic that was given by its " +
				"id. Null, with a warning, where it does not answer."},
		},
	}
}

func (d *talosImageDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var model talosImageDataModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	image, schematic, err := talosImageModel{
		Version: model.Version, Extensions: model.Extensions, ExtraKernelArgs: model.ExtraKernelArgs, Meta: model.Meta, Overlay: model.Overlay,
		SecureBoot: model.SecureBoot, Architecture: model.Architecture, FactoryURL: model.FactoryURL, SchematicID: model.SchematicID,
	}.image(ctx)
	if err != nil {
		resp.Diagnostics.AddError("Unable to name the Talos image", sentence(err.Error()))
		return
	}
	model.SchematicID, model.URL = types.StringValue(image.SchematicID()), types.StringValue(image.URL())
	installer, err := image.Installer()
	if err == nil && schematic != nil {
		var text []byte
		text, err = schematic.Marshal()
		model.Schematic = types.StringValue(string(text))
	}
	if err != nil {
		resp.Diagnostics.AddError("Unable to name the Talos image", sentence(err.Error()))
		return
	}
	model.InstallerImage = types.StringValue(installer)
	ctx, cancel := context.WithTimeout(ctx, lookAheadTimeout)
	defer cancel()
	switch err := factoryAnswers.check(ctx, image); {
	case err == nil:
		model.Served = types.BoolValue(true)
	case errors.Is(err, talos.ErrNotServed):
		model.Served = types.BoolValue(false)
	default:
		resp.Diagnostics.AddWarning("The Image Factory does not answer", sentence("whether it serves the image is not known: "+err.Error()))
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, model)...)
}
