// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
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
	Permissions         types.String   `tfsdk:"permissions"`
	PrivilegeSeparation types.Bool     `tfsdk:"privilege_separation"`
	Credentials         types.Object   `tfsdk:"credentials"`
	CredentialsVersion  types.Int64    `tfsdk:"credentials_version"`
	Instance            types.String   `tfsdk:"instance"`
	Phase               types.String   `tfsdk:"phase"`
	Timeouts            timeouts.Value `tfsdk:"timeouts"`
}

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

func (m serviceAccountModel) spec() proxmox.AccountSpec {
	return proxmox.AccountSpec{
		UserID:              m.UserID.ValueString(),
		TokenName:           m.TokenName.ValueString(),
		Comment:             m.Comment.ValueString(),
		Permissions:         m.Permissions.ValueString(),
		PrivilegeSeparation: m.PrivilegeSeparation.ValueBool(),
	}
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
// secret is left to the caller.
func (m serviceAccountModel) access(client *proxmox.Client, connection proxmoxConnection) credentialsModel {
	return credentialsModel{
		URL:      types.StringValue(client.Endpoint()),
		Token:    types.StringValue(m.spec().TokenID()),
		Secret:   types.StringNull(),
		Insecure: types.BoolValue(connection.Insecure),
		CA:       types.StringValue(strings.TrimSpace(connection.CAPEM)),
	}
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
func (m *serviceAccountModel) refresh(a proxmox.Account) {
	m.ID = types.StringValue(m.spec().TokenID())
	m.Comment = refreshed(m.Comment, a.Comment)
	if a.TokenThere {
		m.PrivilegeSeparation = types.BoolValue(a.PrivilegeSeparation)
	}
	switch {
	case !a.TokenThere:
		m.Phase = types.StringValue(phaseTokenMissing)
	case len(a.Faults) > 0:
		m.Phase = types.StringValue(phaseDrifted)
	default:
		m.Phase = types.StringValue(phaseReady)
	}
}
