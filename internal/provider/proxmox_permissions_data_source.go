// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/datasource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

var _ datasource.DataSourceWithConfigure = (*proxmoxPermissionsDataSource)(nil)

// permissionsReadTimeout is how long the data source may take.
const permissionsReadTimeout = 2 * time.Minute

type proxmoxPermissionsDataSource struct{ data *providerData }

func newProxmoxPermissionsDataSource() datasource.DataSource { return &proxmoxPermissionsDataSource{} }

// proxmoxPermissionsModel is the data source capi_proxmox_permissions.
type proxmoxPermissionsModel struct {
	Identity    types.String   `tfsdk:"identity"`
	Required    types.Map      `tfsdk:"required"`
	Release     types.String   `tfsdk:"release"`
	Permissions types.Map      `tfsdk:"permissions"`
	Missing     types.Map      `tfsdk:"missing"`
	Commands    types.List     `tfsdk:"commands"`
	Timeouts    timeouts.Value `tfsdk:"timeouts"`
}

func (d *proxmoxPermissionsDataSource) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "capi_proxmox_permissions"
}

func (d *proxmoxPermissionsDataSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	data, err := providerDataOf(req.ProviderData)
	if err != nil {
		resp.Diagnostics.AddError("Unable to configure the data source", err.Error())
	}
	d.data = data
}

func (d *proxmoxPermissionsDataSource) Schema(ctx context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	paths := types.SetType{ElemType: types.StringType}
	resp.Schema = schema.Schema{
		MarkdownDescription: "The effective privileges of a user or an API token on Proxmox VE: what is left of roles, groups, pools, deeper entries that replace those " +
			"above, and of a token's separate privileges. With `required` it says what is missing, and which commands grant it.",
		Attributes: map[string]schema.Attribute{
			"identity": schema.StringAttribute{
				Optional: true, Computed: true,
				Validators: []validator.String{stringvalidator.Any(checked("a user of Proxmox VE", proxmox.CheckUserID), checked("an API token's id", proxmox.CheckTokenID))},
				MarkdownDescription: "User (`name@realm`) or API token (`name@realm!token`) to ask about. Defaults to whoever the provider works as; about others Proxmox VE " +
					"answers with the privilege Sys.Audit on `/access`, and to a user about its own tokens.",
			},
			"required": schema.MapAttribute{
				Optional: true, ElementType: paths,
				Validators: []validator.Map{
					mapvalidator.KeysAre(checked("a path of the access control list", proxmox.CheckACLPath)),
					mapvalidator.ValueSetsAre(setvalidator.SizeAtLeast(1), setvalidator.ValueStringsAre(checked("a privilege", proxmox.CheckPrivilege))),
				},
				MarkdownDescription: "Privileges that are needed, by path.",
			},
			"release": schema.StringAttribute{Computed: true, MarkdownDescription: "Release of Proxmox VE, `9.2`."},
			"permissions": schema.MapAttribute{
				Computed: true, ElementType: paths,
				MarkdownDescription: "Privileges that are held, by path: those paths that the access control list names, and those of `required`. On a path below, what is " +
					"inherited holds unless the list names that path.",
			},
			"missing": schema.MapAttribute{
				Computed: true, ElementType: paths, MarkdownDescription: "Those of `required` that are not held, by path; empty when all is there.",
			},
			"commands": schema.ListAttribute{
				Computed: true, ElementType: types.StringType, MarkdownDescription: "Commands for a node's shell that grant what is missing.",
			},
			"timeouts": permissionsTimeouts(ctx),
		},
	}
}

// permissionsTimeouts is the attribute timeouts.
func permissionsTimeouts(ctx context.Context) schema.Attribute {
	attribute, ok := timeouts.Attributes(ctx).(schema.SingleNestedAttribute)
	if ok {
		attribute.MarkdownDescription = "How long reading may take before it gives up. Defaults to `" + shortDuration(permissionsReadTimeout) + "`."
	}
	return attribute
}

func (d *proxmoxPermissionsDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var model proxmoxPermissionsModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	timeout, diags := model.Timeouts.Read(ctx, permissionsReadTimeout)
	resp.Diagnostics.Append(diags...)
	required := map[string][]string{}
	if !model.Required.IsNull() {
		resp.Diagnostics.Append(model.Required.ElementsAs(ctx, &required, false)...)
	}
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := d.read(ctx, &model, required); err != nil {
		f := failure{verb: "read", thing: "the permissions on Proxmox VE", cause: err}
		if errors.Is(err, errConfigurationUnknown) {
			f.next = "where the provider block takes values of resources of the same apply, give the data source a depends_on on these, so that it is read after them"
		}
		f.addTo(&resp.Diagnostics)
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, model)...)
}

// read asks Proxmox VE and fills the model in.
func (d *proxmoxPermissionsDataSource) read(ctx context.Context, model *proxmoxPermissionsModel, required map[string][]string) error {
	client, err := d.data.proxmoxClient(ctx)
	if err != nil {
		return err
	}
	if model.Identity.IsNull() {
		model.Identity = types.StringValue(client.Identity())
	}
	identity := model.Identity.ValueString()
	release, err := client.Version(ctx)
	if err != nil {
		return err
	}
	held, err := client.Permissions(ctx, identity, "")
	if err != nil {
		return err
	}
	for path := range required {
		if held[path] != nil {
			continue
		}
		on, err := client.Permissions(ctx, identity, path)
		if err != nil {
			return err
		}
		held[path] = on[path]
	}
	shortages, err := client.Shortages(ctx, identity, required)
	if err != nil {
		return err
	}
	lists, missing, commands := map[string][]string{}, map[string][]string{}, []string{}
	for path, privileges := range held {
		lists[path] = slices.Sorted(maps.Keys(privileges))
	}
	for _, s := range shortages {
		missing[s.Path] = s.Privileges
		commands = append(commands, s.Commands...)
	}
	model.Release = types.StringValue(release.String())
	kind := types.SetType{ElemType: types.StringType}
	var err1, err2, err3 error
	model.Permissions, err1 = valueOf(types.MapValueFrom(ctx, kind, lists))
	model.Missing, err2 = valueOf(types.MapValueFrom(ctx, kind, missing))
	model.Commands, err3 = valueOf(types.ListValueFrom(ctx, types.StringType, commands))
	return errors.Join(err1, err2, err3)
}

// valueOf turns the diagnostics of a conversion, which are defects, into an error.
func valueOf[T any](value T, diags diag.Diagnostics) (T, error) { return value, firstError(diags) }
