// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

// proxmoxConnectionModel is the provider block's `proxmox`.
type proxmoxConnectionModel struct {
	Endpoint    types.String `tfsdk:"endpoint"`
	TokenID     types.String `tfsdk:"token_id"`
	TokenSecret types.String `tfsdk:"token_secret"`
	Username    types.String `tfsdk:"username"`
	Password    types.String `tfsdk:"password"`
	OTP         types.String `tfsdk:"otp"`
	CAPEM       types.String `tfsdk:"ca_pem"`
	Fingerprint types.String `tfsdk:"fingerprint_sha256"`
	Insecure    types.Bool   `tfsdk:"insecure"`
	Timeouts    types.Object `tfsdk:"timeouts"`
}

// proxmoxTimeoutsModel is its `timeouts`.
type proxmoxTimeoutsModel struct {
	Connect  types.String `tfsdk:"connect"`
	Response types.String `tfsdk:"response"`
	Retry    types.String `tfsdk:"retry"`
}

// proxmoxConnection is where Proxmox VE answers and as whom, with the
// environment's fallbacks applied.
type proxmoxConnection struct {
	Endpoint string
	proxmoxLogin
	CAPEM       string
	Fingerprint string
	Insecure    bool
	Timeouts    proxmox.Timeouts
}

// proxmoxLogin is an API token, or a user with a password.
type proxmoxLogin struct {
	TokenID     string // user@realm!name
	TokenSecret string
	Username    string // name@realm
	Password    string
	OTP         string
}

// newProxmoxConnection applies the environment's fallbacks. It answers
// errConfigurationUnknown when a value is not known yet and an error with the
// way out when something is missing.
func newProxmoxConnection(ctx context.Context, object types.Object) (proxmoxConnection, error) {
	if object.IsUnknown() {
		return proxmoxConnection{}, errConfigurationUnknown
	}
	var model proxmoxConnectionModel
	var times proxmoxTimeoutsModel
	if !object.IsNull() {
		if diags := object.As(ctx, &model, basetypes.ObjectAsOptions{}); diags.HasError() {
			return proxmoxConnection{}, fmt.Errorf("reading the provider's proxmox attribute: %s", diags[0].Detail())
		}
	}
	if model.Timeouts.IsUnknown() {
		return proxmoxConnection{}, errConfigurationUnknown
	}
	if !model.Timeouts.IsNull() {
		if diags := model.Timeouts.As(ctx, &times, basetypes.ObjectAsOptions{}); diags.HasError() {
			return proxmoxConnection{}, fmt.Errorf("reading the provider's proxmox.timeouts: %s", diags[0].Detail())
		}
	}
	for _, value := range []interface{ IsUnknown() bool }{
		model.Endpoint, model.TokenID, model.TokenSecret, model.Username, model.Password, model.OTP, model.CAPEM, model.Fingerprint, model.Insecure,
		times.Connect, times.Response, times.Retry,
	} {
		if value.IsUnknown() {
			return proxmoxConnection{}, errConfigurationUnknown
		}
	}
	c := proxmoxConnection{
		Endpoint: model.Endpoint.ValueString(),
		proxmoxLogin: proxmoxLogin{
			TokenID: model.TokenID.ValueString(), TokenSecret: model.TokenSecret.ValueString(),
			Username: model.Username.ValueString(), Password: model.Password.ValueString(), OTP: model.OTP.ValueString(),
		},
		CAPEM:       model.CAPEM.ValueString(),
		Fingerprint: model.Fingerprint.ValueString(),
		Insecure:    model.Insecure.ValueBool(),
		Timeouts:    proxmox.Timeouts{Connect: duration(times.Connect), Response: duration(times.Response), Retry: duration(times.Retry)},
	}
	if err := c.fallBack(os.Getenv, model.Insecure.IsNull()); err != nil {
		return proxmoxConnection{}, err
	}
	return c, c.complete()
}

// duration reads a duration that the validator has let through; null is zero.
func duration(value types.String) time.Duration {
	d, _ := time.ParseDuration(value.ValueString())
	return d
}

// proxmoxPrefixes begin the names of the environment's variables: those that
// guides to Cluster API on Proxmox VE use, and those of other providers.
var proxmoxPrefixes = []string{"PROXMOX_", "PROXMOX_VE_"}

// fallBack fills what the block left out from the environment.
func (c *proxmoxConnection) fallBack(env func(string) string, insecureUnset bool) error {
	fill := func(value *string, name string) {
		for _, prefix := range proxmoxPrefixes {
			*value = cmp.Or(*value, env(prefix+name))
		}
	}
	c.Endpoint = cmp.Or(c.Endpoint, env("PROXMOX_URL"), env("PROXMOX_VE_ENDPOINT"))
	if c.CAPEM == "" && c.Fingerprint == "" && !c.Insecure { // how the certificate is checked is not mixed either
		fill(&c.CAPEM, "CA_PEM")
		fill(&c.Fingerprint, "FINGERPRINT_SHA256")
	}
	for _, prefix := range proxmoxPrefixes {
		c.proxmoxLogin = c.or(environmentLogin(env, prefix))
	}
	var text string
	if fill(&text, "INSECURE"); insecureUnset && c.CAPEM == "" && c.Fingerprint == "" && text != "" {
		insecure, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("the environment variable PROXMOX_INSECURE or PROXMOX_VE_INSECURE is %q, neither true nor false", text)
		}
		c.Insecure = insecure
	}
	return nil
}

// environmentLogin reads the login of one family of variables.
func environmentLogin(env func(string) string, prefix string) proxmoxLogin {
	l := proxmoxLogin{
		TokenID: env(prefix + "TOKEN_ID"), TokenSecret: env(prefix + "TOKEN_SECRET"),
		Username: env(prefix + "USERNAME"), Password: env(prefix + "PASSWORD"), OTP: env(prefix + "OTP"),
	}
	if l.TokenID == "" && l.TokenSecret == "" {
		l.TokenID, l.TokenSecret, _ = strings.Cut(env(prefix+"API_TOKEN"), "=")
	}
	if l.TokenID != "" { // the better one where both are there
		l.Username, l.Password, l.OTP = "", "", ""
	}
	return l
}

// or completes a login from another one of the same kind and of the same user:
// a login is never made up of two.
func (l proxmoxLogin) or(other proxmoxLogin) proxmoxLogin {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	switch {
	case l == (proxmoxLogin{}):
		return other
	case l.Username == "" && l.Password == "" && same(l.TokenID, other.TokenID):
		l.TokenID, l.TokenSecret = cmp.Or(l.TokenID, other.TokenID), cmp.Or(l.TokenSecret, other.TokenSecret)
	case l.TokenID == "" && l.TokenSecret == "" && same(l.Username, other.Username):
		l.Username, l.Password, l.OTP = cmp.Or(l.Username, other.Username), cmp.Or(l.Password, other.Password), cmp.Or(l.OTP, other.OTP)
	}
	return l
}

// complete says what is missing for a login.
func (c *proxmoxConnection) complete() error {
	switch {
	case c.Endpoint == "":
		return fmt.Errorf("the provider has no Proxmox VE endpoint: set proxmox.endpoint in the provider block or PROXMOX_URL")
	case c.TokenID == "" && c.TokenSecret != "":
		return fmt.Errorf("the id of the Proxmox VE token is missing: set proxmox.token_id in the provider block or PROXMOX_TOKEN_ID")
	case c.TokenID == "" && c.Username == "":
		return fmt.Errorf("the provider has no Proxmox VE login for %s: set proxmox.token_id and proxmox.token_secret in the provider block, "+
			"or PROXMOX_TOKEN_ID and PROXMOX_TOKEN_SECRET", c.Endpoint)
	case c.TokenID != "" && c.TokenSecret == "":
		return fmt.Errorf("the secret of the Proxmox VE token %s is missing: set proxmox.token_secret in the provider block or "+
			"PROXMOX_TOKEN_SECRET", c.TokenID)
	case c.TokenID == "" && c.Password == "":
		return fmt.Errorf("the password of the Proxmox VE user %s is missing: set proxmox.password in the provider block or "+
			"PROXMOX_PASSWORD", c.Username)
	}
	return nil
}
