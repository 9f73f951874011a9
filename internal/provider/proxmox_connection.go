// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"
)

// proxmoxProviderAttribute is the provider block's `proxmox`: the administrator
// who makes templates and accounts.
func proxmoxProviderAttribute() schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		Optional: true,
		MarkdownDescription: "The Proxmox VE to work on, as the administrator who makes templates and accounts. Each member falls back to an " +
			"environment variable. Give either `token_id` and `token_secret`, or `username` and `password`.",
		Attributes: map[string]schema.Attribute{
			"endpoint": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "URL of the API, for example `https://pve.example:8006`. Environment: `PROXMOX_VE_ENDPOINT`.",
			},
			"token_id": schema.StringAttribute{
				Optional: true,
				MarkdownDescription: "API token as `user@realm!name`. Environment: `PROXMOX_VE_TOKEN_ID`, or both parts of the token in " +
					"`PROXMOX_VE_API_TOKEN` as `user@realm!name=secret`.",
			},
			"token_secret": schema.StringAttribute{
				Optional:            true,
				Sensitive:           true,
				MarkdownDescription: "Secret of the API token. Environment: `PROXMOX_VE_TOKEN_SECRET`.",
			},
			"username": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "User as `name@realm`, where no token is given. Environment: `PROXMOX_VE_USERNAME`.",
			},
			"password": schema.StringAttribute{
				Optional:            true,
				Sensitive:           true,
				MarkdownDescription: "Password of `username`. Environment: `PROXMOX_VE_PASSWORD`.",
			},
			"ca_pem": schema.StringAttribute{
				Optional: true,
				MarkdownDescription: "Certificates (PEM) that the API's certificate is checked against instead of the system's. " +
					"Proxmox VE's own is `/etc/pve/pve-root-ca.pem`. Environment: `PROXMOX_VE_CA_PEM`.",
			},
			"insecure": schema.BoolAttribute{
				Optional:            true,
				MarkdownDescription: "Do not check the API's certificate. Prefer `ca_pem`. Environment: `PROXMOX_VE_INSECURE`.",
			},
		},
	}
}

// proxmoxConnectionModel is the provider block's `proxmox`.
type proxmoxConnectionModel struct {
	Endpoint    types.String `tfsdk:"endpoint"`
	TokenID     types.String `tfsdk:"token_id"`
	TokenSecret types.String `tfsdk:"token_secret"`
	Username    types.String `tfsdk:"username"`
	Password    types.String `tfsdk:"password"`
	CAPEM       types.String `tfsdk:"ca_pem"`
	Insecure    types.Bool   `tfsdk:"insecure"`
}

// proxmoxConnection is where Proxmox VE answers and as whom, with the
// environment's fallbacks applied.
type proxmoxConnection struct {
	Endpoint    string
	TokenID     string // user@realm!name
	TokenSecret string
	Username    string // name@realm
	Password    string
	CAPEM       string
	Insecure    bool
}

// validateProxmoxConnection checks the written values; unknown ones are left to
// the apply.
func validateProxmoxConnection(ctx context.Context, at path.Path, object types.Object) diag.Diagnostics {
	var diags diag.Diagnostics
	if object.IsNull() || object.IsUnknown() {
		return diags
	}
	var model proxmoxConnectionModel
	diags.Append(object.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if diags.HasError() {
		return diags
	}
	if given(model.Endpoint) {
		u, err := url.Parse(model.Endpoint.ValueString())
		if err != nil || u.Scheme != "https" || u.Host == "" {
			diags.AddAttributeError(at.AtName("endpoint"), "Unable to use the Proxmox VE endpoint",
				fmt.Sprintf("%q is not a URL such as https://pve.example:8006.", model.Endpoint.ValueString()))
		}
	}
	if given(model.TokenID) && !isTokenID(model.TokenID.ValueString()) {
		diags.AddAttributeError(at.AtName("token_id"), "Unable to use the Proxmox VE token",
			fmt.Sprintf("%q is not a token id such as root@pam!terraform.", model.TokenID.ValueString()))
	}
	if given(model.TokenID) && given(model.Username) {
		diags.AddAttributeError(at.AtName("username"), "Unable to use two Proxmox VE logins",
			"Both token_id and username are given. Remove one of the two.")
	}
	if given(model.CAPEM) && !x509.NewCertPool().AppendCertsFromPEM([]byte(model.CAPEM.ValueString())) {
		diags.AddAttributeError(at.AtName("ca_pem"), "Unable to read the Proxmox VE certificate authority",
			"ca_pem holds no certificate in PEM form. Give the content of the file, for example with file(\"pve-root-ca.pem\").")
	}
	return diags
}

// given says whether a value is known and set.
func given(value types.String) bool { return !value.IsNull() && !value.IsUnknown() }

// isTokenID says whether id reads as user@realm!name.
func isTokenID(id string) bool {
	user, name, ok := strings.Cut(id, "!")
	if !ok || name == "" {
		return false
	}
	at := strings.LastIndexByte(user, '@')
	return at > 0 && at < len(user)-1
}

// newProxmoxConnection applies the environment's fallbacks. It answers
// errConfigurationUnknown when a value is not known yet and an error with the
// way out when something is missing.
func newProxmoxConnection(ctx context.Context, object types.Object) (proxmoxConnection, error) {
	if object.IsUnknown() {
		return proxmoxConnection{}, errConfigurationUnknown
	}
	var model proxmoxConnectionModel
	if !object.IsNull() {
		if diags := object.As(ctx, &model, basetypes.ObjectAsOptions{}); diags.HasError() {
			return proxmoxConnection{}, fmt.Errorf("reading the provider's proxmox block: %s", diags[0].Detail())
		}
	}
	for _, value := range []interface{ IsUnknown() bool }{
		model.Endpoint, model.TokenID, model.TokenSecret, model.Username, model.Password, model.CAPEM, model.Insecure,
	} {
		if value.IsUnknown() {
			return proxmoxConnection{}, errConfigurationUnknown
		}
	}
	connection := proxmoxConnection{
		Endpoint:    model.Endpoint.ValueString(),
		TokenID:     model.TokenID.ValueString(),
		TokenSecret: model.TokenSecret.ValueString(),
		Username:    model.Username.ValueString(),
		Password:    model.Password.ValueString(),
		CAPEM:       model.CAPEM.ValueString(),
		Insecure:    model.Insecure.ValueBool(),
	}
	if err := connection.fallBack(os.Getenv, model.Insecure.IsNull()); err != nil {
		return proxmoxConnection{}, err
	}
	return connection, connection.complete()
}

// fallBack fills what the block left out from the environment. A login written
// in the block is never mixed with another kind from the environment.
func (c *proxmoxConnection) fallBack(env func(string) string, insecureUnset bool) error {
	fill := func(value *string, name string) {
		if *value == "" {
			*value = env(name)
		}
	}
	fill(&c.Endpoint, "PROXMOX_VE_ENDPOINT")
	fill(&c.CAPEM, "PROXMOX_VE_CA_PEM")
	if c.Username == "" && c.Password == "" {
		if c.TokenID == "" && c.TokenSecret == "" {
			if id, secret, ok := strings.Cut(env("PROXMOX_VE_API_TOKEN"), "="); ok {
				c.TokenID, c.TokenSecret = id, secret
			}
		}
		fill(&c.TokenID, "PROXMOX_VE_TOKEN_ID")
		fill(&c.TokenSecret, "PROXMOX_VE_TOKEN_SECRET")
	}
	if c.TokenID == "" {
		fill(&c.Username, "PROXMOX_VE_USERNAME")
		fill(&c.Password, "PROXMOX_VE_PASSWORD")
	}
	if text := env("PROXMOX_VE_INSECURE"); insecureUnset && text != "" {
		insecure, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("the environment variable PROXMOX_VE_INSECURE is %q, neither true nor false", text)
		}
		c.Insecure = insecure
	}
	return nil
}

// complete says what is missing for a login.
func (c *proxmoxConnection) complete() error {
	switch {
	case c.Endpoint == "":
		return fmt.Errorf("the provider has no Proxmox VE endpoint: set proxmox.endpoint in the provider block or PROXMOX_VE_ENDPOINT")
	case c.TokenID == "" && c.Username == "":
		return fmt.Errorf("the provider has no Proxmox VE login for %s: set proxmox.token_id and proxmox.token_secret in the provider block, "+
			"or PROXMOX_VE_API_TOKEN", c.Endpoint)
	case c.TokenID != "" && c.TokenSecret == "":
		return fmt.Errorf("the secret of the Proxmox VE token %s is missing: set proxmox.token_secret in the provider block or "+
			"PROXMOX_VE_TOKEN_SECRET", c.TokenID)
	case c.TokenID == "" && c.Password == "":
		return fmt.Errorf("the password of the Proxmox VE user %s is missing: set proxmox.password in the provider block or "+
			"PROXMOX_VE_PASSWORD", c.Username)
	}
	return nil
}
