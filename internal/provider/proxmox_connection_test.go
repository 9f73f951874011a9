// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

var proxmoxConnectionTypes = map[string]attr.Type{
	"endpoint": types.StringType, "token_id": types.StringType, "token_secret": types.StringType, "username": types.StringType,
	"password": types.StringType, "otp": types.StringType, "ca_pem": types.StringType, "fingerprint_sha256": types.StringType, "insecure": types.BoolType,
	"timeouts": types.ObjectType{AttrTypes: proxmoxTimeoutsTypes},
}

var proxmoxTimeoutsTypes = map[string]attr.Type{"connect": types.StringType, "response": types.StringType, "retry": types.StringType}

func testProxmox(members map[string]attr.Value) types.Object {
	all := map[string]attr.Value{"insecure": types.BoolNull(), "timeouts": types.ObjectNull(proxmoxTimeoutsTypes)}
	for name, kind := range proxmoxConnectionTypes {
		if kind == types.StringType {
			all[name] = types.StringNull()
		}
	}
	for name, value := range members {
		all[name] = value
	}
	return types.ObjectValueMust(proxmoxConnectionTypes, all)
}

// clearProxmoxEnvironment keeps the caller's environment out of a test.
func clearProxmoxEnvironment(t *testing.T) {
	t.Helper()
	for _, prefix := range proxmoxPrefixes {
		for _, name := range []string{
			"URL", "ENDPOINT", "API_TOKEN", "TOKEN_ID", "TOKEN_SECRET", "USERNAME", "PASSWORD", "OTP", "INSECURE", "CA_PEM", "FINGERPRINT_SHA256",
		} {
			t.Setenv(prefix+name, "")
		}
	}
}

func TestTheProxmoxConnectionFallsBackToTheEnvironment(t *testing.T) {
	token := func(id, secret string) proxmoxLogin { return proxmoxLogin{TokenID: id, TokenSecret: secret} }
	for name, test := range map[string]struct {
		members map[string]attr.Value
		env     map[string]string
		want    proxmoxConnection
		wrong   string
	}{
		"the block alone": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t"), "token_secret": text("s"), "insecure": types.BoolValue(true)},
			want:    proxmoxConnection{Endpoint: "https://a", proxmoxLogin: token("u@pam!t", "s"), Insecure: true},
		},
		"the variables of the guides": {
			env:  map[string]string{"PROXMOX_URL": "https://b", "PROXMOX_TOKEN_ID": "u@pam!t", "PROXMOX_TOKEN_SECRET": "s"},
			want: proxmoxConnection{Endpoint: "https://b", proxmoxLogin: token("u@pam!t", "s")},
		},
		"a login with a second factor and a fingerprint": {
			env: map[string]string{
				"PROXMOX_URL": "https://b", "PROXMOX_USERNAME": "root@pam", "PROXMOX_PASSWORD": "p", "PROXMOX_OTP": "123456", "PROXMOX_FINGERPRINT_SHA256": "f",
			},
			want: proxmoxConnection{Endpoint: "https://b", proxmoxLogin: proxmoxLogin{Username: "root@pam", Password: "p", OTP: "123456"}, Fingerprint: "f"},
		},
		"the other providers' variables, token in one word": {
			env:  map[string]string{"PROXMOX_VE_ENDPOINT": "https://b", "PROXMOX_VE_API_TOKEN": "u@pam!t=s", "PROXMOX_VE_INSECURE": "true"},
			want: proxmoxConnection{Endpoint: "https://b", proxmoxLogin: token("u@pam!t", "s"), Insecure: true},
		},
		"the other providers' variables, token in two": {
			env:  map[string]string{"PROXMOX_VE_ENDPOINT": "https://b", "PROXMOX_VE_TOKEN_ID": "u@pam!t", "PROXMOX_VE_TOKEN_SECRET": "s"},
			want: proxmoxConnection{Endpoint: "https://b", proxmoxLogin: token("u@pam!t", "s")},
		},
		"one family's token is not mixed with the other's": {
			env: map[string]string{
				"PROXMOX_URL": "https://b", "PROXMOX_TOKEN_ID": "u@pam!t", "PROXMOX_TOKEN_SECRET": "s",
				"PROXMOX_VE_TOKEN_ID": "v@pam!t", "PROXMOX_VE_TOKEN_SECRET": "other",
			},
			want: proxmoxConnection{Endpoint: "https://b", proxmoxLogin: token("u@pam!t", "s")},
		},
		"the secret of another token is not taken": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t")},
			env:     map[string]string{"PROXMOX_TOKEN_ID": "v@pam!t", "PROXMOX_TOKEN_SECRET": "s"},
			wrong:   "secret of the Proxmox VE token u@pam!t is missing",
		},
		"the secret alone may come from the environment": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t")},
			env:     map[string]string{"PROXMOX_TOKEN_SECRET": "s"},
			want:    proxmoxConnection{Endpoint: "https://a", proxmoxLogin: token("u@pam!t", "s")},
		},
		"the block's user is not mixed with the environment's token": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "username": text("root@pam"), "password": text("p")},
			env:     map[string]string{"PROXMOX_VE_API_TOKEN": "u@pam!t=s"},
			want:    proxmoxConnection{Endpoint: "https://a", proxmoxLogin: proxmoxLogin{Username: "root@pam", Password: "p"}},
		},
		"the block's insecure = false wins": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t"), "token_secret": text("s"), "insecure": types.BoolValue(false)},
			env:     map[string]string{"PROXMOX_INSECURE": "true"},
			want:    proxmoxConnection{Endpoint: "https://a", proxmoxLogin: token("u@pam!t", "s")},
		},
		"the block's authority wins over the environment's insecure": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t"), "token_secret": text("s"), "ca_pem": text("c")},
			env:     map[string]string{"PROXMOX_INSECURE": "true", "PROXMOX_FINGERPRINT_SHA256": "f"},
			want:    proxmoxConnection{Endpoint: "https://a", proxmoxLogin: token("u@pam!t", "s"), CAPEM: "c"},
		},
		"timeouts are read": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t"), "token_secret": text("s"), "timeouts": types.ObjectValueMust(
				proxmoxTimeoutsTypes, map[string]attr.Value{"connect": text("1s"), "response": text("2m"), "retry": types.StringNull()})},
			want: proxmoxConnection{Endpoint: "https://a", proxmoxLogin: token("u@pam!t", "s"), Timeouts: proxmox.Timeouts{Connect: time.Second, Response: 2 * time.Minute}},
		},
		"no endpoint":              {wrong: "PROXMOX_URL"},
		"no login":                 {members: map[string]attr.Value{"endpoint": text("https://a")}, wrong: "PROXMOX_TOKEN_ID"},
		"no secret":                {members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t")}, wrong: "token_secret"},
		"no token id":              {members: map[string]attr.Value{"endpoint": text("https://a"), "token_secret": text("s")}, wrong: "token_id"},
		"no password":              {members: map[string]attr.Value{"endpoint": text("https://a"), "username": text("u@pam")}, wrong: "password"},
		"a strange insecure":       {env: map[string]string{"PROXMOX_URL": "https://b", "PROXMOX_API_TOKEN": "u@pam!t=s", "PROXMOX_INSECURE": "perhaps"}, wrong: "neither true nor false"},
		"an unknown token secret":  {members: map[string]attr.Value{"token_secret": types.StringUnknown()}, wrong: errConfigurationUnknown.Error()},
		"an unknown fingerprint":   {members: map[string]attr.Value{"fingerprint_sha256": types.StringUnknown()}, wrong: errConfigurationUnknown.Error()},
		"unknown timeouts":         {members: map[string]attr.Value{"timeouts": types.ObjectUnknown(proxmoxTimeoutsTypes)}, wrong: errConfigurationUnknown.Error()},
		"an unknown retry timeout": {members: map[string]attr.Value{"timeouts": types.ObjectValueMust(proxmoxTimeoutsTypes, map[string]attr.Value{"connect": types.StringNull(), "response": types.StringNull(), "retry": types.StringUnknown()})}, wrong: errConfigurationUnknown.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			clearProxmoxEnvironment(t)
			for key, value := range test.env {
				t.Setenv(key, value)
			}
			got, err := newProxmoxConnection(context.Background(), testProxmox(test.members))
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("got %v, want an error with %q", err, test.wrong)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
	if _, err := newProxmoxConnection(context.Background(), types.ObjectUnknown(proxmoxConnectionTypes)); !errors.Is(err, errConfigurationUnknown) {
		t.Errorf("an unknown block answers %v", err)
	}
}
