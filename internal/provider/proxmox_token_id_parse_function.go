// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

var _ function.Function = (*proxmoxTokenIDParseFunction)(nil)

// proxmoxTokenIDParseFunction is the function proxmox_token_id_parse.
type proxmoxTokenIDParseFunction struct{}

func newProxmoxTokenIDParseFunction() function.Function { return &proxmoxTokenIDParseFunction{} }

// proxmoxTokenIDTypes are the members of its result.
var proxmoxTokenIDTypes = map[string]attr.Type{
	"user_id": types.StringType, "user_name": types.StringType, "realm": types.StringType, "token_name": types.StringType,
}

func (f *proxmoxTokenIDParseFunction) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "proxmox_token_id_parse"
}

func (f *proxmoxTokenIDParseFunction) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary: "Parts of a Proxmox VE API token's id",
		MarkdownDescription: "Takes the id of an API token apart, `user@realm!name`, and checks it by the rules of Proxmox VE. The result has the members `user_id` " +
			"(`user@realm`), `user_name`, `realm` and `token_name`. A text that holds a token's secret as well is refused without repeating it.",
		Parameters: []function.Parameter{
			function.StringParameter{Name: "token_id", MarkdownDescription: "Id of the token, for example `capi@pve!capi-token`."},
		},
		Return: function.ObjectReturn{AttributeTypes: proxmoxTokenIDTypes},
	}
}

func (f *proxmoxTokenIDParseFunction) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var id string
	if resp.Error = req.Arguments.Get(ctx, &id); resp.Error != nil {
		return
	}
	parts, err := proxmox.ParseTokenID(id)
	if err != nil {
		resp.Error = function.NewArgumentFuncError(0, sentence(err.Error()))
		return
	}
	result := types.ObjectValueMust(proxmoxTokenIDTypes, map[string]attr.Value{
		"user_id": types.StringValue(parts.UserID), "user_name": types.StringValue(parts.User),
		"realm": types.StringValue(parts.Realm), "token_name": types.StringValue(parts.Token),
	})
	resp.Error = resp.Result.Set(ctx, result)
}
