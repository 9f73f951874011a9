// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/objectvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

func checkChecksum(text string) error {
	_, _, err := proxmox.ParseChecksum(text)
	return err
}

// proxmoxTemplateSource are the attributes about what the template is made of.
func proxmoxTemplateSource() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"talos": talosImageAttribute(),
		"url": schema.StringAttribute{
			Optional: true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			MarkdownDescription: "Address of a disk image (http or https), plain or compressed. With a `checksum` that is the image's identity, so that it can move; else " +
				"the address is. A query, which may hold a signature, is kept out of messages and of the template's notes.",
		},
		"file": schema.StringAttribute{
			Optional: true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			MarkdownDescription: "Path of a disk image on the machine that runs Terraform, plain or compressed, such as one that image-builder has made. Its identity is its " +
				"checksum: the file is read at every plan, unless `checksum` is given. A template stays when the file is gone.",
		},
		"checksum": schema.StringAttribute{
			Optional: true, Validators: []validator.String{checked("a checksum", checkChecksum)},
			MarkdownDescription: "Checksum of the image at `url` or in `file` as it is served, `sha256:...`; md5, sha1, sha224, sha384 and sha512 are taken as well. It is the " +
				"image's identity, and is verified wherever the image passes.",
		},
		"image_format": schema.StringAttribute{
			Optional: true, Validators: []validator.String{stringvalidator.OneOf(proxmox.ImageFormats...)},
			MarkdownDescription: "Format of the image at `url` or in `file`: `qcow2`, `raw` or `vmdk`. Defaults to what the name's ending says; needed with others, such as `.img`.",
		},
		"image_compression": schema.StringAttribute{
			Optional: true, Validators: []validator.String{stringvalidator.OneOf(proxmox.ImageCompressions...)},
			MarkdownDescription: "Compression of the image at `url` or in `file`: `gz`, `zst`, `xz` or `bz2`. Defaults to what the name's ending says.",
		},
		"schematic_id": schema.StringAttribute{
			Computed: true, MarkdownDescription: "Id of a Talos image's schematic at any Image Factory, computed at plan time.",
		},
		"image_url": schema.StringAttribute{
			Computed: true, MarkdownDescription: "Address of the image, computed at plan time. Null for a file.",
		},
		"image_id": schema.StringAttribute{
			Computed: true, MarkdownDescription: "Identity of the image's content, computed at plan time: Talos version, architecture and schematic, or the checksum, or what stands " +
				"for the address. Another one makes a new template.",
		},
	}
}

func talosImageAttribute() schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		Optional:            true,
		Validators:          []validator.Object{objectvalidator.ExactlyOneOf(path.MatchRoot("talos"), path.MatchRoot("url"), path.MatchRoot("file"))},
		MarkdownDescription: "A Talos image of an Image Factory. Everything in it but `factory_url` makes a new template when it changes.",
		Attributes: map[string]schema.Attribute{
			"version": schema.StringAttribute{
				Required: true, Validators: []validator.String{checked("a Talos version", talos.CheckVersion)},
				MarkdownDescription: "Talos release, for example `v1.13.7`.",
			},
			"extensions": schema.SetAttribute{
				Optional: true, ElementType: types.StringType, Validators: []validator.Set{setvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Official system extensions, for example `siderolabs/qemu-guest-agent`.",
			},
			"extra_kernel_args": schema.ListAttribute{
				Optional: true, ElementType: types.StringType,
				Validators:          []validator.List{listvalidator.SizeAtLeast(1), listvalidator.ValueStringsAre(stringvalidator.LengthAtLeast(1))},
				MarkdownDescription: "Kernel arguments to add, in this order.",
			},
			"meta": schema.ListNestedAttribute{
				Optional: true, Validators: []validator.List{listvalidator.SizeAtLeast(1)},
				MarkdownDescription: "Entries of the META partition.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"key":   schema.Int64Attribute{Required: true, Validators: []validator.Int64{int64validator.Between(0, 255)}, MarkdownDescription: "Key, such as `12` (0x0c), for the user's own values."},
					"value": schema.StringAttribute{Required: true, MarkdownDescription: "Value."},
				}},
			},
			"overlay": schema.SingleNestedAttribute{
				Optional:            true,
				MarkdownDescription: "Overlay, a board support package, for machines that are no plain PCs.",
				Attributes: map[string]schema.Attribute{
					"image": schema.StringAttribute{Required: true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)}, MarkdownDescription: "Image, such as `siderolabs/sbc-raspberrypi`."},
					"name":  schema.StringAttribute{Required: true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)}, MarkdownDescription: "Name in it, such as `rpi_generic`."},
					"options": schema.MapAttribute{
						Optional: true, ElementType: types.StringType, Validators: []validator.Map{mapvalidator.SizeAtLeast(1)}, MarkdownDescription: "Options of the overlay.",
					},
				},
			},
			"secure_boot": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(false),
				MarkdownDescription: "Take the image with a signed boot loader and kernel, which enrols its keys at the first boot. Defaults to `false`.",
			},
			"architecture": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringDefault(talos.Architectures[0]), Validators: []validator.String{stringvalidator.OneOf(talos.Architectures...)},
				MarkdownDescription: "`amd64` (the default) or `arm64`, which must be the nodes' own.",
			},
			"factory_url": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringDefault(talos.DefaultFactory),
				MarkdownDescription: "Address of the Image Factory. Defaults to `" + talos.DefaultFactory + "`.",
			},
			"schematic_id": schema.StringAttribute{
				Optional: true, Validators: []validator.String{checked("the id of a schematic", talos.CheckSchematicID)},
				MarkdownDescription: "Id of a schematic that the Image Factory knows already, in place of what it is to hold.",
			},
		},
	}
}
