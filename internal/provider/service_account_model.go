// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

// Phases of an account whose token has to be made again, so that its
// credentials change.
const (
	phaseTokenMissing = "token-missing"
	phaseTokenRefused = "token-refused"
	phaseDrifted      = "drifted"
)

// serviceAccountModel is the resource capi_service_account.
type serviceAccountModel struct {
	ID                  types.String   `tfsdk:"id"`
	UserID              types.String   `tfsdk:"user_id"`
	TokenName           types.String   `tfsdk:"token_name"`
	Comment             types.String   `tfsdk:"comment"`
	ExpiresAt           types.String   `tfsdk:"expires_at"`
	Permissions         types.String   `tfsdk:"permissions"`
	ConfineTo           types.Object   `tfsdk:"confine_to"`
	Grants              types.Set      `tfsdk:"grants"`
	PrivilegeSeparation types.Bool     `tfsdk:"privilege_separation"`
	RotateWhenChanged   types.Map      `tfsdk:"rotate_when_changed"`
	RotationOverlap     types.String   `tfsdk:"rotation_overlap"`
	TokenID             types.String   `tfsdk:"token_id"`
	RetiringTokens      types.List     `tfsdk:"retiring_tokens"`
	Credentials         types.Object   `tfsdk:"credentials"`
	CredentialsVersion  types.Int64    `tfsdk:"credentials_version"`
	Instance            types.String   `tfsdk:"instance"`
	Phase               types.String   `tfsdk:"phase"`
	Timeouts            timeouts.Value `tfsdk:"timeouts"`
}

// confineToModel is its `confine_to`.
type confineToModel struct {
	Pool          types.String `tfsdk:"pool"`
	TemplatePool  types.String `tfsdk:"template_pool"`
	TemplateIDs   types.Set    `tfsdk:"template_ids"`
	DiskStorages  types.Set    `tfsdk:"disk_storages"`
	ImageStorages types.Set    `tfsdk:"image_storages"`
	Bridges       types.Set    `tfsdk:"bridges"`
}

var confineToTypes = map[string]attr.Type{
	"pool": types.StringType, "template_pool": types.StringType, "template_ids": types.SetType{ElemType: types.Int64Type},
	"disk_storages": types.SetType{ElemType: types.StringType}, "image_storages": types.SetType{ElemType: types.StringType},
	"bridges": types.SetType{ElemType: types.StringType},
}

// grantModel is an element of its `grants`.
type grantModel struct {
	Path       types.String `tfsdk:"path"`
	Role       types.String `tfsdk:"role"`
	Privileges types.Set    `tfsdk:"privileges"`
	Propagate  types.Bool   `tfsdk:"propagate"`
}

var grantTypes = map[string]attr.Type{
	"path": types.StringType, "role": types.StringType, "privileges": types.SetType{ElemType: types.StringType}, "propagate": types.BoolType,
}

var retiringTokenTypes = map[string]attr.Type{"token_id": types.StringType, "expires_at": types.StringType}

// credentialsModel is the attribute credentials, as Cluster API's Proxmox
// provider and templatefile take it.
type credentialsModel struct {
	URL      types.String `tfsdk:"url"`
	Token    types.String `tfsdk:"token"`
	Secret   types.String `tfsdk:"secret"`
	Insecure types.Bool   `tfsdk:"insecure"`
	CA       types.String `tfsdk:"ca"`
}

var credentialsTypes = map[string]attr.Type{
	"url":      types.StringType,
	"token":    types.StringType,
	"secret":   types.StringType,
	"insecure": types.BoolType,
	"ca":       types.StringType,
}

// spec is what the account is to be; the values are known.
func (m serviceAccountModel) spec(ctx context.Context) (proxmox.AccountSpec, error) {
	spec := proxmox.AccountSpec{
		UserID:              m.UserID.ValueString(),
		TokenName:           m.TokenName.ValueString(),
		Comment:             m.Comment.ValueString(),
		Permissions:         m.Permissions.ValueString(),
		PrivilegeSeparation: m.PrivilegeSeparation.ValueBool(),
	}
	if given(m.TokenID) {
		_, spec.CurrentToken, _ = strings.Cut(m.TokenID.ValueString(), "!")
	}
	if given(m.ExpiresAt) {
		expire, err := time.Parse(time.RFC3339, m.ExpiresAt.ValueString())
		if err != nil {
			return spec, err // the validator has let nothing else through
		}
		spec.Expire = expire
	}
	var diags diag.Diagnostics
	if !m.ConfineTo.IsNull() {
		var c confineToModel
		diags.Append(m.ConfineTo.As(ctx, &c, basetypes.ObjectAsOptions{})...)
		spec.Scope.Pool, spec.Scope.TemplatePool = c.Pool.ValueString(), c.TemplatePool.ValueString()
		for set, into := range map[*types.Set]any{
			&c.TemplateIDs: &spec.Scope.TemplateIDs, &c.DiskStorages: &spec.Scope.DiskStorages, &c.ImageStorages: &spec.Scope.ImageStorages, &c.Bridges: &spec.Scope.Bridges,
		} {
			diags.Append(set.ElementsAs(ctx, into, false)...)
		}
	}
	if !m.Grants.IsNull() {
		var grants []grantModel
		diags.Append(m.Grants.ElementsAs(ctx, &grants, false)...)
		for _, g := range grants {
			grant := proxmox.Grant{Path: g.Path.ValueString(), Role: g.Role.ValueString(), Propagate: g.Propagate.IsNull() || g.Propagate.ValueBool()}
			diags.Append(g.Privileges.ElementsAs(ctx, &grant.Privileges, false)...)
			spec.Grants = append(spec.Grants, grant)
		}
	}
	return spec, firstError(diags)
}

// setPermissions takes over the permissions of an account that is imported.
func (m *serviceAccountModel) setPermissions(ctx context.Context, a proxmox.Account) error {
	m.Permissions = types.StringValue(cmp.Or(a.Permissions, proxmox.LeastPrivilege))
	m.ConfineTo, m.Grants = types.ObjectNull(confineToTypes), types.SetNull(types.ObjectType{AttrTypes: grantTypes})
	var diags diag.Diagnostics
	text := func(s string) types.String {
		if s == "" {
			return types.StringNull()
		}
		return types.StringValue(s)
	}
	names := func(list []string) types.Set {
		if len(list) == 0 {
			return types.SetNull(types.StringType)
		}
		set, more := types.SetValueFrom(ctx, types.StringType, list)
		diags.Append(more...)
		return set
	}
	if s := a.Scope; !s.Empty() {
		ids := types.SetNull(types.Int64Type)
		if len(s.TemplateIDs) > 0 {
			var more diag.Diagnostics
			ids, more = types.SetValueFrom(ctx, types.Int64Type, s.TemplateIDs)
			diags.Append(more...)
		}
		object, more := types.ObjectValueFrom(ctx, confineToTypes, confineToModel{
			Pool: text(s.Pool), TemplatePool: text(s.TemplatePool), TemplateIDs: ids,
			DiskStorages: names(s.DiskStorages), ImageStorages: names(s.ImageStorages), Bridges: names(s.Bridges),
		})
		m.ConfineTo = object
		diags.Append(more...)
	}
	if len(a.Grants) > 0 {
		var grants []grantModel
		for _, g := range a.Grants {
			propagate := types.BoolNull() // the default
			if !g.Propagate {
				propagate = types.BoolValue(false)
			}
			grants = append(grants, grantModel{Path: types.StringValue(g.Path), Role: text(g.Role), Privileges: names(g.Privileges), Propagate: propagate})
		}
		set, more := types.SetValueFrom(ctx, types.ObjectType{AttrTypes: grantTypes}, grants)
		m.Grants = set
		diags.Append(more...)
	}
	return firstError(diags)
}

// rotates says whether the change from prior to m asks for a new token beside
// the old one. A trigger that is given for the first time asks for nothing.
func (m serviceAccountModel) rotates(prior serviceAccountModel) bool {
	if !m.TokenName.Equal(prior.TokenName) {
		return true
	}
	return !m.RotateWhenChanged.IsNull() && !prior.RotateWhenChanged.IsNull() && !m.RotateWhenChanged.Equal(prior.RotateWhenChanged)
}

// title names the account in diagnostics.
func (m serviceAccountModel) title() string {
	return "the service account " + m.UserID.ValueString() + "!" + m.TokenName.ValueString()
}

// credentials reads the attribute; all of it is null where there are none.
func (m serviceAccountModel) credentials(ctx context.Context) credentialsModel {
	var c credentialsModel
	if m.Credentials.IsNull() || m.Credentials.IsUnknown() {
		return c
	}
	if diags := m.Credentials.As(ctx, &c, basetypes.ObjectAsOptions{}); diags.HasError() {
		return credentialsModel{}
	}
	return c
}

// secret is the token's secret; empty where it is not known.
func (m serviceAccountModel) secret(ctx context.Context) string {
	return m.credentials(ctx).Secret.ValueString()
}

// access answers how the account reaches Proxmox VE: as the provider does. The
// secret is left to the caller. The certificate that a fingerprint stands for is
// kept from prior where it is still the one, and asked for otherwise.
func (m serviceAccountModel) access(ctx context.Context, client *proxmox.Client, connection proxmoxConnection, prior credentialsModel) (credentialsModel, error) {
	trusted := strings.TrimSpace(connection.CAPEM)
	if trusted == "" && connection.Fingerprint != "" {
		trusted = prior.CA.ValueString()
		if !proxmox.HasFingerprint(trusted, connection.Fingerprint) {
			var err error
			if trusted, err = client.TrustedCertificates(ctx); err != nil {
				return credentialsModel{}, err
			}
		}
	}
	return credentialsModel{
		URL:      types.StringValue(client.Endpoint()),
		Token:    m.TokenID,
		Secret:   types.StringNull(),
		Insecure: types.BoolValue(connection.Insecure),
		CA:       types.StringValue(trusted),
	}, nil
}

// setCredentials takes over credentials. Where they differ from the prior ones
// the version becomes a larger number: the time in milliseconds, so that an account
// that is made anew never has an old one's version.
func (m *serviceAccountModel) setCredentials(ctx context.Context, c credentialsModel, prior types.Object, priorVersion types.Int64) {
	object, diags := types.ObjectValueFrom(ctx, credentialsTypes, c)
	if diags.HasError() {
		object = types.ObjectNull(credentialsTypes)
	}
	m.Credentials = object
	m.CredentialsVersion = priorVersion
	if priorVersion.IsNull() || priorVersion.IsUnknown() || !object.Equal(prior) {
		m.CredentialsVersion = types.Int64Value(max(time.Now().UnixMilli(), priorVersion.ValueInt64()+1))
	}
}

// refresh takes over how an account stands.
func (m *serviceAccountModel) refresh(ctx context.Context, a proxmox.Account) error {
	m.ID = types.StringValue(m.UserID.ValueString() + "!" + m.TokenName.ValueString())
	m.Comment = refreshedText(m.Comment, a.Comment)
	if a.TokenThere {
		m.PrivilegeSeparation = types.BoolValue(a.PrivilegeSeparation)
		m.ExpiresAt = refreshedTime(m.ExpiresAt, a.Expire)
	}
	switch {
	case !a.TokenThere:
		m.Phase = types.StringValue(phaseTokenMissing)
	case len(a.Faults) > 0:
		m.Phase = types.StringValue(phaseDrifted)
	default:
		m.Phase = types.StringValue(phaseReady)
	}
	return m.setRetiring(ctx, a)
}

// setRetiring lists the tokens that a rotation has replaced.
func (m *serviceAccountModel) setRetiring(ctx context.Context, a proxmox.Account) error {
	type retiring struct {
		TokenID   string `tfsdk:"token_id"`
		ExpiresAt string `tfsdk:"expires_at"`
	}
	list := []retiring{}
	for _, t := range a.Retiring {
		list = append(list, retiring{TokenID: a.UserID + "!" + t.Name, ExpiresAt: t.Until.Format(time.RFC3339)})
	}
	value, diags := types.ListValueFrom(ctx, types.ObjectType{AttrTypes: retiringTokenTypes}, list)
	m.RetiringTokens = value
	return firstError(diags)
}

// refreshedTime keeps the notation of a time that is still the same.
func refreshedTime(prior types.String, now time.Time) types.String {
	if now.IsZero() {
		return types.StringNull()
	}
	if was, err := time.Parse(time.RFC3339, prior.ValueString()); err == nil && was.Equal(now) {
		return prior
	}
	return types.StringValue(now.UTC().Format(time.RFC3339))
}
