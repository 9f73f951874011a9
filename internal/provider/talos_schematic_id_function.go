// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/function"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

var _ function.Function = (*talosSchematicIDFunction)(nil)

type talosSchematicIDFunction struct{}

func newTalosSchematicIDFunction() function.Function { return &talosSchematicIDFunction{} }

func (f *talosSchematicIDFunction) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "talos_schematic_id"
}

func (f *talosSchematicIDFunction) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary: "Id of a Talos schematic",
		MarkdownDescription: "Computes the id under which every Image Factory knows a schematic, without asking one. The schematic is YAML or JSON, as a factory takes it; " +
			"`yamlencode` makes it of an object. Lists keep their order, so that the id is exactly what a factory answers for this text; `capi_proxmox_template` sorts extensions first.",
		Parameters: []function.Parameter{function.StringParameter{
			Name: "schematic", MarkdownDescription: "The schematic. A field that factories do not know is refused.",
		}},
		Return: function.StringReturn{},
	}
}

func (f *talosSchematicIDFunction) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var text string
	if resp.Error = req.Arguments.Get(ctx, &text); resp.Error != nil {
		return
	}
	schematic, err := talos.ParseSchematic(text)
	var id string
	if err == nil {
		id, err = schematic.ID()
	}
	if err != nil {
		resp.Error = function.NewArgumentFuncError(0, err.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, id)
}
