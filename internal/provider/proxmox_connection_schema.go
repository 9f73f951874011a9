// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

// proxmoxProviderAttribute is the provider block's `proxmox`: the administrator
// who makes templates and accounts.
func proxmoxProviderAttribute() schema.SingleNestedAttribute {
	is := func(what string, check func(string) error) []validator.String {
		return []validator.String{checked(what, check)}
	}
	variable := func(name string) string {
		return " Environment: `PROXMOX_" + name + "`, then `PROXMOX_VE_" + name + "`."
	}
	return schema.SingleNestedAttribute{
		Optional: true,
		MarkdownDescription: "The Proxmox VE to work on, as the administrator who makes templates and accounts. Each member falls back to " +
			"environment variables, but a login is never made up of two. Give either `token_id` and `token_secret`, or `username` and `password`. " +
			"The API's certificate is checked against `ca_pem`, else by `fingerprint_sha256`, else against the system's authorities.",
		Attributes: map[string]schema.Attribute{
			"endpoint": schema.StringAttribute{
				Optional: true, Validators: is("an address of Proxmox VE", proxmox.CheckEndpoint),
				MarkdownDescription: "Address of the API, for example `https://pve.example:8006`; `pve.example` and what the web interface shows in the " +
					"address bar do as well. Environment: `PROXMOX_URL`, then `PROXMOX_VE_ENDPOINT`.",
			},
			"token_id": schema.StringAttribute{
				Optional: true, Validators: is("an API token's id", proxmox.CheckTokenID),
				MarkdownDescription: "API token as `user@realm!name`." + variable("TOKEN_ID") + " Both parts of a token as `user@realm!name=secret` " +
					"may lie in `PROXMOX_API_TOKEN` or `PROXMOX_VE_API_TOKEN`.",
			},
			"token_secret": schema.StringAttribute{
				Optional: true, Sensitive: true, Validators: is("an API token's secret", checkTokenSecret),
				MarkdownDescription: "Secret of the API token." + variable("TOKEN_SECRET"),
			},
			"username": schema.StringAttribute{
				Optional: true, Validators: is("a user of Proxmox VE", proxmox.CheckUserID),
				MarkdownDescription: "User as `name@realm`, where no token is given. A few things Proxmox VE allows `root@pam` with its password alone." + variable("USERNAME"),
			},
			"password": schema.StringAttribute{
				Optional: true, Sensitive: true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
				MarkdownDescription: "Password of `username`, or a ticket of it, which is good for two hours." + variable("PASSWORD"),
			},
			"otp": schema.StringAttribute{
				Optional: true, Sensitive: true, Validators: []validator.String{stringvalidator.RegexMatches(onetimePassword, "must be the digits of a one-time password, or recovery:KEY")},
				MarkdownDescription: "Second factor of `username`: a code of a TOTP application, or `recovery:KEY`. Proxmox VE takes each once, while a plan and " +
					"the apply after it log in one after the other: prefer an API token, which needs none, or a ticket as `password`." + variable("OTP"),
			},
			"ca_pem": schema.StringAttribute{
				Optional: true,
				MarkdownDescription: "Certificates (PEM) that the API's certificate is checked against instead of the system's. " +
					"Proxmox VE's own is `/etc/pve/pve-root-ca.pem`." + variable("CA_PEM"),
			},
			"fingerprint_sha256": schema.StringAttribute{
				Optional: true, Validators: is("a SHA-256 fingerprint", proxmox.CheckFingerprint),
				MarkdownDescription: "SHA-256 fingerprint of the API's certificate, as Proxmox VE shows it under the node's certificates. It takes the place of " +
					"an authority, or is checked beside `ca_pem`. Proxmox VE renews its certificate every two years, an authority is for ten." + variable("FINGERPRINT_SHA256"),
			},
			"insecure": schema.BoolAttribute{
				Optional:            true,
				MarkdownDescription: "Do not check the API's certificate. Prefer `ca_pem` or `fingerprint_sha256`." + variable("INSECURE"),
			},
			"timeouts": schema.SingleNestedAttribute{
				Optional:            true,
				MarkdownDescription: "How long Proxmox VE may be silent. How long the work of a resource may take is its own `timeouts`.",
				Attributes: map[string]schema.Attribute{
					"connect":  timeAttribute("For a connection and its TLS.", "10s"),
					"response": timeAttribute("For the first byte of an answer.", "1m"),
					"retry": timeAttribute("For repeating a call that was refused for the moment: a lock, no quorum, a node that does not answer. Calls "+
						"whose repetition could do harm are not repeated.", "16s"),
				},
			},
		},
	}
}

// onetimePassword matches what Proxmox VE takes as a second factor and a person
// can type.
var onetimePassword = regexp.MustCompile(`^([0-9]{6,8}|(totp|recovery|yubico):[^\s:]+)$`)

func timeAttribute(what, otherwise string) schema.StringAttribute {
	return schema.StringAttribute{
		Optional: true, Validators: []validator.String{checked("a duration", checkDuration)},
		MarkdownDescription: what + " A duration such as `90s`. Defaults to `" + otherwise + "`.",
	}
}

func checkDuration(text string) error {
	if d, err := time.ParseDuration(text); err != nil || d <= 0 {
		return fmt.Errorf("%q is not a duration such as \"90s\" or \"1h30m\"", text)
	}
	return nil
}

// checkTokenSecret finds what was pasted in place of a secret, and does not
// repeat it.
func checkTokenSecret(secret string) error {
	switch {
	case strings.TrimSpace(secret) == "":
		return errors.New("it is empty")
	case strings.ContainsAny(secret, "=!"):
		return errors.New("it is a whole token; the secret is what follows \"=\" in it")
	case strings.TrimSpace(secret) != secret:
		return errors.New("it has white space around it")
	}
	return nil
}

// validateProxmoxConnection checks what the members say together; unknown ones
// are left to the apply.
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
	login := "Unable to use two Proxmox VE logins"
	switch {
	case given(model.TokenID) && given(model.Username):
		diags.AddAttributeError(at.AtName("username"), login, "Both token_id and username are given. Remove one of the two.")
	case given(model.TokenID) && given(model.Password):
		diags.AddAttributeError(at.AtName("password"), login, "A token has a token_secret and no password. Remove one of the two.")
	case given(model.Username) && given(model.TokenSecret):
		diags.AddAttributeError(at.AtName("token_secret"), login, "A user has a password and no token_secret. Remove one of the two.")
	case given(model.TokenID) && given(model.OTP):
		diags.AddAttributeError(at.AtName("otp"), login, "An API token needs no one-time password. Remove otp.")
	}
	if given(model.CAPEM) && !x509.NewCertPool().AppendCertsFromPEM([]byte(model.CAPEM.ValueString())) {
		diags.AddAttributeError(at.AtName("ca_pem"), "Unable to read the Proxmox VE certificate authority",
			"ca_pem holds no certificate in PEM form. Give the content of the file, for example with file(\"pve-root-ca.pem\").")
	}
	if model.Insecure.ValueBool() && (given(model.CAPEM) || given(model.Fingerprint)) {
		diags.AddAttributeError(at.AtName("insecure"), "Unable to check the Proxmox VE certificate and not to check it",
			"insecure is true, so that ca_pem and fingerprint_sha256 would count for nothing. Remove insecure, or the other ones.")
	}
	return diags
}

// given says whether a value is known and set.
func given(value types.String) bool { return !value.IsNull() && !value.IsUnknown() }
