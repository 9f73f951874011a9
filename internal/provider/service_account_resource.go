// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
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
	_ resource.Resource                = (*serviceAccountResource)(nil)
	_ resource.ResourceWithConfigure   = (*serviceAccountResource)(nil)
	_ resource.ResourceWithModifyPlan  = (*serviceAccountResource)(nil)
	_ resource.ResourceWithImportState = (*serviceAccountResource)(nil)
	_ resource.ResourceWithIdentity    = (*serviceAccountResource)(nil)
)

const serviceAccountType = "capi_service_account"

var serviceAccountTimeouts = defaultTimeouts{
	Create: 5 * time.Minute, Read: 2 * time.Minute, Update: 5 * time.Minute, Delete: 5 * time.Minute,
}

type serviceAccountResource struct{ data *providerData }

func newServiceAccountResource() resource.Resource { return &serviceAccountResource{} }

func (r *serviceAccountResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = serviceAccountType
}

func (r *serviceAccountResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"user_id":    identityschema.StringAttribute{RequiredForImport: true, Description: "User, as name@realm."},
		"token_name": identityschema.StringAttribute{RequiredForImport: true, Description: "Name of the token."},
	}}
}

func setAccountIdentity(ctx context.Context, identity *tfsdk.ResourceIdentity, m serviceAccountModel) (diags diag.Diagnostics) {
	if identity == nil {
		return nil
	}
	diags.Append(identity.SetAttribute(ctx, path.Root("user_id"), m.UserID)...)
	diags.Append(identity.SetAttribute(ctx, path.Root("token_name"), m.TokenName)...)
	return diags
}

func (r *serviceAccountResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configuredData(req, resp)
}

// ModifyPlan plans new credentials where the token has to be made again, or
// where the provider block says another address.
func (r *serviceAccountResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		return
	}
	planPhase(ctx, resp)
	var plan serviceAccountModel
	resp.Diagnostics.Append(resp.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() || req.State.Raw.IsNull() {
		return
	}
	var state serviceAccountModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() || !r.credentialsChange(ctx, state) {
		return
	}
	resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("credentials"), types.ObjectUnknown(credentialsTypes))...)
	resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("credentials_version"), types.Int64Unknown())...)
}

// credentialsChange says whether an update will change the credentials.
func (r *serviceAccountResource) credentialsChange(ctx context.Context, state serviceAccountModel) bool {
	switch state.Phase.ValueString() {
	case phaseReady, phaseDrifted:
	default:
		return true
	}
	client, err := r.data.proxmoxClient(ctx)
	if err != nil {
		return false // not known at plan time: decided when it is applied
	}
	connection, err := r.data.proxmoxConnection(ctx)
	if err != nil {
		return false
	}
	want, have := state.access(client, connection), state.credentials(ctx)
	want.Secret = have.Secret
	return want != have
}

func (r *serviceAccountResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan serviceAccountModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Create(ctx, serviceAccountTimeouts.Create)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	plan.Instance = types.StringValue(uuid.NewString())
	plan.ID = types.StringValue(plan.spec().TokenID())
	client, err := r.ensure(ctx, &plan, serviceAccountModel{}, proxmox.Holder{Instance: plan.Instance.ValueString()}, &resp.State, resp.Identity)
	if err != nil {
		f := failure{verb: "create", thing: plan.title(), cause: err, next: "remove the cause and run apply again"}
		if !plan.Phase.IsNull() {
			f.exists = "the account as far as it was made (phase " + plan.Phase.ValueString() + ")"
			f.next = untaintAdvice(serviceAccountType)
		}
		f.addTo(&resp.Diagnostics)
		return
	}
	spec, instance := plan.spec(), plan.Instance.ValueString()
	keepLater(ctx, plan.title(), func(ctx context.Context) error {
		account, err := client.ReadAccount(ctx, spec)
		if err != nil || account.Instance != instance {
			return err
		}
		return client.KeepAccount(ctx, account)
	})
}

// ensure makes or finishes the account and writes the state: whole when it is
// done, else as far as it came.
func (r *serviceAccountResource) ensure(ctx context.Context, plan *serviceAccountModel, prior serviceAccountModel, holder proxmox.Holder,
	state *tfsdk.State, identity *tfsdk.ResourceIdentity,
) (*proxmox.Client, error) {
	client, err := r.data.proxmoxClient(ctx)
	if err != nil {
		return nil, err
	}
	connection, err := r.data.proxmoxConnection(ctx)
	if err != nil {
		return nil, err
	}
	plan.Phase = types.StringNull()
	secret, err := client.EnsureAccount(ctx, plan.spec(), holder, reporter(&plan.Phase))
	if err != nil && plan.Phase.IsNull() {
		return nil, err // refused before the first side effect
	}
	credentials := plan.access(client, connection)
	if secret != "" {
		credentials.Secret = types.StringValue(secret)
	}
	plan.setCredentials(ctx, credentials, prior.Credentials, prior.CredentialsVersion)
	if err == nil {
		plan.Phase = types.StringValue(phaseReady)
	}
	diags := state.Set(ctx, plan)
	diags.Append(setAccountIdentity(ctx, identity, *plan)...)
	if err == nil && diags.HasError() {
		err = fmt.Errorf("writing the state: %s", diags[0].Detail())
	}
	return client, err
}

func (r *serviceAccountResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state serviceAccountModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	resp.Diagnostics.Append(setAccountIdentity(ctx, resp.Identity, state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := state.Timeouts.Read(ctx, serviceAccountTimeouts.Read)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, err := r.data.proxmoxClient(ctx)
	if err == nil {
		err = r.refresh(ctx, client, &state)
	}
	switch {
	case kube.IsAbsent(err):
		resp.State.RemoveResource(ctx)
	case err != nil:
		refreshFailure(failure{verb: "read", thing: state.title(), cause: err}, &resp.Diagnostics)
	default:
		resp.Diagnostics.Append(resp.State.Set(ctx, state)...)
	}
}

// refresh reads the account into state.
func (r *serviceAccountResource) refresh(ctx context.Context, client *proxmox.Client, state *serviceAccountModel) error {
	imported := state.Permissions.IsNull()
	if imported {
		if err := r.adopt(ctx, client, state); err != nil {
			return err
		}
	}
	account, err := client.ReadAccount(ctx, state.spec())
	if err != nil {
		return err
	}
	begun := state.Phase.ValueString()
	state.refresh(account)
	for _, fault := range account.Faults {
		tflog.Warn(ctx, fault)
	}
	if account.Instance != state.Instance.ValueString() {
		tflog.Warn(ctx, "user "+account.UserID+" bears another resource's mark, or none: it will not be deleted here")
		return nil
	}
	secret := state.secret(ctx)
	if secret == "" && !imported && begun != phaseReady && begun != phaseDrifted {
		state.Phase = types.StringValue(phaseTokenMissing) // an unfinished Create
		return nil
	}
	if !account.Kept() {
		if err := client.KeepAccount(ctx, account); err != nil {
			tflog.Debug(ctx, "the account's mark was not changed to kept", map[string]any{"error": err.Error()})
		}
	}
	if secret == "" || state.Phase.ValueString() != phaseReady {
		return nil
	}
	accepted, err := client.CheckToken(ctx, state.ID.ValueString(), secret)
	if err == nil && !accepted {
		state.Phase = types.StringValue(phaseTokenRefused)
	}
	return nil
}

// adopt fills in what an imported account is known by.
func (r *serviceAccountResource) adopt(ctx context.Context, client *proxmox.Client, state *serviceAccountModel) error {
	connection, err := r.data.proxmoxConnection(ctx)
	if err != nil {
		return err
	}
	spec := state.spec()
	spec.Permissions = proxmox.LeastPrivilege
	account, err := client.ReadAccount(ctx, spec)
	if err != nil {
		return err
	}
	if !account.TokenThere {
		return fmt.Errorf("%w: token %s", kube.ErrAbsent, spec.TokenID())
	}
	permissions := account.Permissions
	if permissions == "" {
		permissions = proxmox.LeastPrivilege
	}
	state.Permissions = types.StringValue(permissions)
	state.PrivilegeSeparation = types.BoolValue(account.PrivilegeSeparation)
	state.Instance = types.StringValue(account.Instance)
	state.Credentials, _ = types.ObjectValueFrom(ctx, credentialsTypes, state.access(client, connection))
	state.CredentialsVersion = types.Int64Value(0)
	return nil
}

func (r *serviceAccountResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state serviceAccountModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := plan.Timeouts.Update(ctx, serviceAccountTimeouts.Update)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	phase := state.Phase.ValueString()
	holder := proxmox.Holder{
		Instance: state.Instance.ValueString(),
		Secret:   state.secret(ctx),
		Remake:   phase != phaseReady && phase != phaseDrifted,
	}
	if _, err := r.ensure(ctx, &plan, state, holder, &resp.State, resp.Identity); err != nil {
		failure{verb: "update", thing: plan.title(), cause: err, next: "run apply again, which goes on from there"}.addTo(&resp.Diagnostics)
	}
}

func (r *serviceAccountResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state serviceAccountModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	forGood, diags := destroyPlanned(ctx, req.Private)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := state.Timeouts.Delete(ctx, serviceAccountTimeouts.Delete)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if state.secret(ctx) == "" && state.CredentialsVersion.ValueInt64() != 0 && !forGood {
		tflog.Info(ctx, "leaving the unfinished account "+state.ID.ValueString()+" to the Create that follows")
		return
	}
	client, err := r.data.proxmoxClient(ctx)
	if err == nil {
		err = r.destroy(ctx, client, state, &resp.Diagnostics)
	}
	if err != nil && !kube.IsAbsent(err) {
		failure{verb: "delete", thing: state.title(), cause: err, next: "remove the cause and run destroy again"}.addTo(&resp.Diagnostics)
	}
}

// destroy deletes the account where it still bears this resource's mark.
func (r *serviceAccountResource) destroy(ctx context.Context, client *proxmox.Client, state serviceAccountModel, diags *diag.Diagnostics) error {
	account, err := client.ReadAccount(ctx, state.spec())
	if err != nil {
		return err
	}
	if account.Instance != state.Instance.ValueString() {
		failure{
			verb: "delete", thing: state.title(),
			cause:  errors.New("the user's comment bears the mark of another resource, or none"),
			exists: "user and token; they are left alone",
			next:   "where nothing uses them, remove them: pveum user delete " + state.UserID.ValueString(),
		}.warn(diags)
		return nil
	}
	kept, err := client.DeleteAccount(ctx, state.spec(), account, reporter(nil))
	if len(kept) > 0 {
		diags.AddWarning("The user "+state.UserID.ValueString()+" was kept",
			"It has other tokens: "+strings.Join(kept, ", ")+". Its permissions were kept with it. Only the token "+state.TokenName.ValueString()+" was deleted.")
	}
	return err
}

// ImportState takes "user@realm!token" or the identity.
func (r *serviceAccountResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	var user, token string
	if req.ID != "" {
		var ok bool
		if user, token, ok = strings.Cut(req.ID, "!"); !ok || user == "" || token == "" {
			resp.Diagnostics.AddError("Unable to import the service account", fmt.Sprintf("The id %q is not of the form USER@REALM!TOKEN, such as capi@pve!capi-token.", req.ID))
			return
		}
	} else {
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("user_id"), &user)...)
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("token_name"), &token)...)
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("user_id"), user)...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("token_name"), token)...)
}
