// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

var proxmoxConnectionTypes = map[string]attr.Type{
	"endpoint": types.StringType, "token_id": types.StringType, "token_secret": types.StringType, "username": types.StringType,
	"password": types.StringType, "ca_pem": types.StringType, "insecure": types.BoolType,
}

func testProxmox(members map[string]attr.Value) types.Object {
	all := map[string]attr.Value{"insecure": types.BoolNull()}
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
	for _, name := range []string{"ENDPOINT", "API_TOKEN", "TOKEN_ID", "TOKEN_SECRET", "USERNAME", "PASSWORD", "INSECURE", "CA_PEM"} {
		t.Setenv("PROXMOX_VE_"+name, "")
	}
}

func TestTheProxmoxBlockIsCheckedAtPlan(t *testing.T) {
	for name, test := range map[string]struct {
		members map[string]attr.Value
		want    string
	}{
		"a token is right":                {map[string]attr.Value{"endpoint": text("https://pve:8006"), "token_id": text("root@pam!t")}, ""},
		"unknown values are left":         {map[string]attr.Value{"endpoint": types.StringUnknown(), "token_id": types.StringUnknown(), "ca_pem": types.StringUnknown()}, ""},
		"http is refused":                 {map[string]attr.Value{"endpoint": text("http://pve:8006")}, "not a URL"},
		"a bare name is refused":          {map[string]attr.Value{"endpoint": text("pve")}, "not a URL"},
		"a token without name is refused": {map[string]attr.Value{"token_id": text("root@pam")}, "not a token id"},
		"a token without realm":           {map[string]attr.Value{"token_id": text("root!t")}, "not a token id"},
		"two logins are refused":          {map[string]attr.Value{"token_id": text("root@pam!t"), "username": text("root@pam")}, "Remove one"},
		"a CA that is no PEM is refused":  {map[string]attr.Value{"ca_pem": text("pve-root-ca.pem")}, "PEM"},
	} {
		t.Run(name, func(t *testing.T) {
			diags := validateProxmoxConnection(context.Background(), path.Root("proxmox"), testProxmox(test.members))
			if test.want == "" {
				if diags.HasError() {
					t.Error(diags)
				}
				return
			}
			if !diags.HasError() || !strings.Contains(diags[0].Detail(), test.want) {
				t.Errorf("got %v, want an error with %q", diags, test.want)
			}
		})
	}
}

func TestTheProxmoxConnectionFallsBackToTheEnvironment(t *testing.T) {
	for name, test := range map[string]struct {
		members map[string]attr.Value
		env     map[string]string
		want    proxmoxConnection
		wrong   string
	}{
		"the block alone": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t"), "token_secret": text("s"), "insecure": types.BoolValue(true)},
			want:    proxmoxConnection{Endpoint: "https://a", TokenID: "u@pam!t", TokenSecret: "s", Insecure: true},
		},
		"the environment alone, token in one word": {
			env:  map[string]string{"ENDPOINT": "https://b", "API_TOKEN": "u@pam!t=s", "INSECURE": "true", "CA_PEM": "c"},
			want: proxmoxConnection{Endpoint: "https://b", TokenID: "u@pam!t", TokenSecret: "s", Insecure: true, CAPEM: "c"},
		},
		"the environment alone, token in two": {
			env:  map[string]string{"ENDPOINT": "https://b", "TOKEN_ID": "u@pam!t", "TOKEN_SECRET": "s"},
			want: proxmoxConnection{Endpoint: "https://b", TokenID: "u@pam!t", TokenSecret: "s"},
		},
		"the block's user is not mixed with the environment's token": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "username": text("root@pam"), "password": text("p")},
			env:     map[string]string{"API_TOKEN": "u@pam!t=s"},
			want:    proxmoxConnection{Endpoint: "https://a", Username: "root@pam", Password: "p"},
		},
		"the block's insecure = false wins": {
			members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t"), "token_secret": text("s"), "insecure": types.BoolValue(false)},
			env:     map[string]string{"INSECURE": "true"},
			want:    proxmoxConnection{Endpoint: "https://a", TokenID: "u@pam!t", TokenSecret: "s"},
		},
		"no endpoint":             {wrong: "PROXMOX_VE_ENDPOINT"},
		"no login":                {members: map[string]attr.Value{"endpoint": text("https://a")}, wrong: "PROXMOX_VE_API_TOKEN"},
		"no secret":               {members: map[string]attr.Value{"endpoint": text("https://a"), "token_id": text("u@pam!t")}, wrong: "token_secret"},
		"no password":             {members: map[string]attr.Value{"endpoint": text("https://a"), "username": text("u@pam")}, wrong: "password"},
		"a strange PVE_INSECURE":  {env: map[string]string{"ENDPOINT": "https://b", "API_TOKEN": "u@pam!t=s", "INSECURE": "perhaps"}, wrong: "neither true nor false"},
		"an unknown token secret": {members: map[string]attr.Value{"token_secret": types.StringUnknown()}, wrong: errConfigurationUnknown.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			clearProxmoxEnvironment(t)
			for key, value := range test.env {
				t.Setenv("PROXMOX_VE_"+key, value)
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
