// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/function"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

var _ function.Function = (*talosImageURLFunction)(nil)

type talosImageURLFunction struct{}

func newTalosImageURLFunction() function.Function { return &talosImageURLFunction{} }

func (f *talosImageURLFunction) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "talos_image_url"
}

func (f *talosImageURLFunction) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary:             "Address of a Talos image",
		MarkdownDescription: "Names any image of an Image Factory: for another platform, format or compression than `capi_proxmox_template` uses. Nobody is asked.",
		Parameters: []function.Parameter{
			function.StringParameter{Name: "schematic_id", MarkdownDescription: "Id of the schematic, see `talos_schematic_id`."},
			function.StringParameter{Name: "version", MarkdownDescription: "Talos release, such as `v1.13.7`."},
			function.StringParameter{
				Name:                "image",
				MarkdownDescription: "Name of the image, `<platform>-<architecture>[-secureboot].<format>[.<compression>]`, such as `nocloud-amd64.qcow2` or `metal-arm64.raw.xz`.",
			},
		},
		VariadicParameter: function.StringParameter{
			Name: "factory_url", MarkdownDescription: "Address of the factory, at most one. Defaults to `" + talos.DefaultFactory + "`.",
		},
		Return: function.StringReturn{},
	}
}

func (f *talosImageURLFunction) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var schematic, version, image string
	var factories []string
	if resp.Error = req.Arguments.Get(ctx, &schematic, &version, &image, &factories); resp.Error != nil {
		return
	}
	factory := ""
	switch len(factories) {
	case 0:
	case 1:
		factory = factories[0]
	default:
		resp.Error = function.NewArgumentFuncError(4, "an image comes from one factory: give at most one address")
		return
	}
	address, err := talos.ImageURL(factory, schematic, version, image)
	if err != nil {
		resp.Error = function.NewFuncError(err.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, address)
}
