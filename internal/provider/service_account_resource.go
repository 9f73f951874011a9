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
	_ resource.Resource                   = (*serviceAccountResource)(nil)
	_ resource.ResourceWithConfigure      = (*serviceAccountResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*serviceAccountResource)(nil)
	_ resource.ResourceWithValidateConfig = (*serviceAccountResource)(nil)
	_ resource.ResourceWithImportState    = (*serviceAccountResource)(nil)
	_ resource.ResourceWithIdentity       = (*serviceAccountResource)(nil)
)

const serviceAccountType = "capi_service_account"

var serviceAccountTimeouts = defaultTimeouts{
	Create: 5 * time.Minute, Read: 2 * time.Minute, Update: 5 * time.Minute, Delete: 5 * time.Minute,
}

type serviceAccountResource struct{ data *providerData }

func newServiceAccountResource() resource.Resource { return &serviceAccountResource{} }

func (r *serviceAccountResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = serviceAccountType
	// Another token name is a rotation of the same account.
	resp.ResourceBehavior = resource.ResourceBehavior{MutableIdentity: true}
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

// ValidateConfig checks what the permissions' attributes say together.
func (r *serviceAccountResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var config serviceAccountModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() || config.Permissions.IsUnknown() {
		return
	}
	permissions := config.Permissions.ValueString()
	if permissions == proxmox.Custom && config.Grants.IsNull() {
		resp.Diagnostics.AddAttributeError(path.Root("grants"), "Unable to grant custom permissions", "permissions is \"custom\": list them in grants.")
	}
	if permissions != proxmox.Custom && !config.Grants.IsNull() {
		resp.Diagnostics.AddAttributeError(path.Root("grants"), "Unable to use the grants", "They count for permissions = \"custom\" alone.")
	}
	if (permissions == proxmox.Custom || permissions == proxmox.Article) && !config.ConfineTo.IsNull() {
		resp.Diagnostics.AddAttributeError(path.Root("confine_to"), "Unable to confine the permissions",
			"confine_to counts for permissions = \"least_privilege\" alone, which is the default. For others say where in grants.")
	}
	if config.Grants.IsNull() || config.Grants.IsUnknown() {
		return
	}
	var grants []grantModel
	resp.Diagnostics.Append(config.Grants.ElementsAs(ctx, &grants, false)...)
	for _, g := range grants {
		if g.Role.IsUnknown() || g.Privileges.IsUnknown() || g.Role.IsNull() != g.Privileges.IsNull() {
			continue
		}
		resp.Diagnostics.AddAttributeError(path.Root("grants"), "Unable to read the grants",
			"The one on "+g.Path.ValueString()+" needs either a role or privileges.")
	}
}

// ModifyPlan plans new credentials where the token has to be made again, is to
// be rotated, or where the provider block says another address.
func (r *serviceAccountResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if planDestroy(ctx, req, resp) {
		return
	}
	planPhase(ctx, resp)
	var plan, state serviceAccountModel
	resp.Diagnostics.Append(resp.Plan.Get(ctx, &plan)...)
	created := req.State.Raw.IsNull()
	if !created {
		resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	}
	if resp.Diagnostics.HasError() {
		return
	}
	if given(plan.ExpiresAt) && !plan.ExpiresAt.Equal(state.ExpiresAt) {
		if at, err := time.Parse(time.RFC3339, plan.ExpiresAt.ValueString()); err == nil && !at.After(time.Now()) {
			resp.Diagnostics.AddAttributeError(path.Root("expires_at"), "Unable to make a token that has run out", "expires_at is "+plan.ExpiresAt.ValueString()+", which is in the past.")
		}
	}
	if created {
		resp.Diagnostics.Append(r.lookAhead(ctx, plan, req.Config.Raw.IsFullyKnown())...)
		return
	}
	set := func(name string, value any) {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root(name), value)...)
	}
	switch {
	case plan.TokenName.IsUnknown() || plan.UserID.IsUnknown():
		set("id", types.StringUnknown())
	default:
		set("id", types.StringValue(plan.UserID.ValueString()+"!"+plan.TokenName.ValueString()))
	}
	rotates := plan.rotates(state)
	if rotates {
		set("token_id", types.StringUnknown())
	}
	if rotates || r.credentialsChange(ctx, state) {
		set("credentials", types.ObjectUnknown(credentialsTypes))
		set("credentials_version", types.Int64Unknown())
	}
}

// lookAhead asks Proxmox VE, where it answers, whether the account can be made.
// known says that all of the configuration is.
func (r *serviceAccountResource) lookAhead(ctx context.Context, plan serviceAccountModel, known bool) diag.Diagnostics {
	client, ctx, cancel := lookAheadClient(ctx, r.data)
	defer cancel()
	if client == nil || !known {
		return nil
	}
	spec, err := plan.spec(ctx)
	if err == nil {
		err = client.CheckAccount(ctx, spec)
	}
	return foreseen(ctx, "the service account cannot be made as things are", err)
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
	have := state.credentials(ctx)
	want, err := state.access(ctx, client, connection, have)
	if err != nil {
		return false
	}
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
	plan.ID = types.StringValue(plan.UserID.ValueString() + "!" + plan.TokenName.ValueString())
	plan.TokenID = plan.ID
	client, err := r.ensure(ctx, &plan, nil, &resp.State, resp.Identity)
	if err != nil {
		f := failure{verb: "create", thing: plan.title(), cause: err, next: "remove the cause and run apply again"}
		if !plan.Phase.IsNull() {
			f.exists = "the account as far as it was made (phase " + plan.Phase.ValueString() + ")"
			f.next = untaintAdvice(serviceAccountType)
		}
		f.addTo(&resp.Diagnostics)
		return
	}
	r.keepLater(ctx, client, plan)
}

// keepLater marks an account as kept once its state has surely been written.
func (r *serviceAccountResource) keepLater(ctx context.Context, client *proxmox.Client, m serviceAccountModel) {
	spec, err := m.spec(ctx)
	if err != nil {
		return
	}
	keepLater(ctx, m.title(), func(ctx context.Context) error {
		account, err := client.ReadAccount(ctx, spec)
		if err != nil || account.Instance != m.Instance.ValueString() {
			return err
		}
		return client.KeepAccount(ctx, account)
	})
}

// ensure makes or finishes the account and writes the state: whole when it is
// done, else as far as it came. prior is nil for a Create.
func (r *serviceAccountResource) ensure(ctx context.Context, plan, prior *serviceAccountModel, state *tfsdk.State, identity *tfsdk.ResourceIdentity) (*proxmox.Client, error) {
	client, err := r.data.proxmoxClient(ctx)
	if err != nil {
		return nil, err
	}
	connection, err := r.data.proxmoxConnection(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := plan.spec(ctx)
	if err != nil {
		return nil, err
	}
	holder, before := proxmox.Holder{Instance: plan.Instance.ValueString()}, serviceAccountModel{}
	if prior != nil {
		before = *prior
		if holder, err = prior.holder(ctx, *plan); err != nil {
			return nil, err
		}
		_, spec.CurrentToken, _ = strings.Cut(prior.TokenID.ValueString(), "!")
	}
	plan.Phase = types.StringNull()
	issued, err := client.EnsureAccount(ctx, spec, holder, reporter(&plan.Phase))
	if err != nil && (plan.Phase.IsNull() || holder.Rotate) {
		// Refused before the first side effect, or a rotation, which the next apply
		// begins again: what the state says still holds.
		return nil, err
	}
	plan.TokenID = types.StringValue(spec.UserID + "!" + issued.Name)
	credentials, accessErr := plan.access(ctx, client, connection, before.credentials(ctx))
	if issued.Secret != "" {
		credentials.Secret = types.StringValue(issued.Secret)
	}
	plan.setCredentials(ctx, credentials, before.Credentials, before.CredentialsVersion)
	if err = errors.Join(err, accessErr); err == nil {
		plan.Phase = types.StringValue(phaseReady)
	}
	spec.CurrentToken = issued.Name
	plan.RetiringTokens = types.ListNull(types.ObjectType{AttrTypes: retiringTokenTypes})
	if account, readErr := client.ReadAccount(ctx, spec); readErr == nil {
		err = errors.Join(err, plan.setRetiring(ctx, account))
	}
	diags := state.Set(ctx, plan)
	diags.Append(setAccountIdentity(ctx, identity, *plan)...)
	if err == nil && diags.HasError() {
		err = fmt.Errorf("writing the state: %s", diags[0].Detail())
	}
	return client, err
}

// holder is the account's owner in an update to plan.
func (m serviceAccountModel) holder(ctx context.Context, plan serviceAccountModel) (proxmox.Holder, error) {
	spec, err := m.spec(ctx)
	if err != nil {
		return proxmox.Holder{}, err
	}
	phase := m.Phase.ValueString()
	return proxmox.Holder{
		Instance: m.Instance.ValueString(),
		Secret:   m.secret(ctx),
		Remake:   phase != phaseReady && phase != phaseDrifted,
		Rotate:   plan.rotates(m),
		Overlap:  duration(plan.RotationOverlap),
		Prior:    &spec,
	}, nil
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
		err = r.refresh(ctx, client, &state, &resp.Diagnostics)
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
func (r *serviceAccountResource) refresh(ctx context.Context, client *proxmox.Client, state *serviceAccountModel, diags *diag.Diagnostics) error {
	imported := state.Permissions.IsNull()
	if imported {
		if err := r.adopt(ctx, client, state); err != nil {
			return err
		}
	}
	spec, err := state.spec(ctx)
	if err != nil {
		return err
	}
	account, err := client.ReadAccount(ctx, spec)
	if err != nil {
		return err
	}
	begun := state.Phase.ValueString()
	if err := state.refresh(ctx, account); err != nil {
		return err
	}
	for _, fault := range account.Faults {
		tflog.Warn(ctx, fault)
	}
	if account.Instance != state.Instance.ValueString() {
		notOurs(state.title(), "the comment of user "+account.UserID, account.Instance).warn(diags)
		return nil
	}
	secret := state.secret(ctx)
	if secret == "" && !imported && begun != phaseReady && begun != phaseDrifted {
		state.Phase = types.StringValue(phaseTokenMissing) // an unfinished Create
		return nil
	}
	r.tidy(ctx, client, account)
	if secret == "" || state.Phase.ValueString() != phaseReady {
		return nil
	}
	accepted, err := client.CheckToken(ctx, spec.TokenID(), secret)
	if err == nil && !accepted {
		state.Phase = types.StringValue(phaseTokenRefused)
	}
	return nil
}

// tidy does what has to wait until the state was written: it marks the account
// as kept, and removes tokens that Proxmox VE refuses by now since a rotation
// has replaced them. A failure is no concern of a refresh.
func (r *serviceAccountResource) tidy(ctx context.Context, client *proxmox.Client, account proxmox.Account) {
	if !account.Kept() {
		if err := client.KeepAccount(ctx, account); err != nil {
			tflog.Debug(ctx, "the account's mark was not changed to kept", map[string]any{"error": err.Error()})
		}
	}
	if err := client.SweepTokens(ctx, account); err != nil {
		tflog.Debug(ctx, "a retired token was not removed", map[string]any{"error": err.Error()})
	}
}

// adopt fills in what an imported account is known by.
func (r *serviceAccountResource) adopt(ctx context.Context, client *proxmox.Client, state *serviceAccountModel) error {
	connection, err := r.data.proxmoxConnection(ctx)
	if err != nil {
		return err
	}
	asked, current, err := client.FindToken(ctx, state.UserID.ValueString(), state.TokenName.ValueString())
	if err != nil {
		return err
	}
	state.TokenName = types.StringValue(asked)
	state.TokenID = types.StringValue(state.UserID.ValueString() + "!" + current)
	account, err := client.ReadAccount(ctx, proxmox.AccountSpec{
		UserID: state.UserID.ValueString(), TokenName: asked, CurrentToken: current, Permissions: proxmox.LeastPrivilege,
	})
	if err != nil {
		return err
	}
	if err := state.setPermissions(ctx, account); err != nil {
		return err
	}
	state.PrivilegeSeparation = types.BoolValue(account.PrivilegeSeparation)
	state.RotationOverlap = types.StringValue("24h")
	state.Instance = types.StringValue(account.Instance)
	access, err := state.access(ctx, client, connection, credentialsModel{})
	if err != nil {
		return err
	}
	credentials, diags := types.ObjectValueFrom(ctx, credentialsTypes, access)
	state.Credentials, state.CredentialsVersion = credentials, types.Int64Value(0)
	return firstError(diags)
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
	client, err := r.ensure(ctx, &plan, &state, &resp.State, resp.Identity)
	if err != nil {
		failure{verb: "update", thing: plan.title(), cause: err, next: "run apply again, which goes on from there"}.addTo(&resp.Diagnostics)
		return
	}
	r.keepLater(ctx, client, plan)
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
	spec, err := state.spec(ctx)
	if err != nil {
		return err
	}
	account, err := client.ReadAccount(ctx, spec)
	if err != nil {
		return err
	}
	if account.Instance != state.Instance.ValueString() {
		failure{
			verb: "delete", thing: state.title(),
			cause:  errors.New("the user's comment bears the mark of another resource, or none"),
			exists: "user and token; they are left alone",
			next:   "where nothing uses them, remove them: pveum user delete " + proxmox.ShellWord(state.UserID.ValueString()),
		}.warn(diags)
		return nil
	}
	kept, err := client.DeleteAccount(ctx, account, reporter(nil))
	if len(kept) > 0 {
		diags.AddWarning("The user "+state.UserID.ValueString()+" was kept",
			"It has other tokens: "+strings.Join(kept, ", ")+". Its permissions were kept with it. Only the token "+state.TokenID.ValueString()+" was deleted.")
	}
	return err
}

// ImportState takes "user@realm!token" or the identity.
func (r *serviceAccountResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	var user, token string
	if req.ID != "" {
		parts, err := proxmox.ParseTokenID(req.ID)
		if err != nil {
			resp.Diagnostics.AddError("Unable to import the service account", "The id is that of the token, USER@REALM!TOKEN. "+sentence(err.Error()))
			return
		}
		user, token = parts.UserID, parts.Token
	} else {
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("user_id"), &user)...)
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("token_name"), &token)...)
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("user_id"), user)...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("token_name"), token)...)
}
