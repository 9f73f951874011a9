// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/types"
)

func TestThePassphraseOfBackupsIsChecked(t *testing.T) {
	v := newProtocolValidator(t)
	for _, test := range []struct {
		name       string
		passphrase any
		want       string // empty: no error
	}{
		{"words are right", "correct horse battery", ""},
		{"an unknown one is left", unknown{}, ""},
		{"none is right", nil, ""},
		{"a short one is refused", "hidden", "at least 12"},
		{"an empty one is refused", "", "at least 12"},
		{"one with a line end is refused", "hidden horse battery\n", "trimspace"},
		{"one of two lines is refused", "hidden horse\nbattery", "line end"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := v.provider(t, object{"backup_passphrase": test.passphrase})
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("the plan says %q, want %q", got, test.want)
			}
			if strings.Contains(got, "hidden") {
				t.Errorf("the plan tells the passphrase: %s", got)
			}
		})
	}
}

func TestThePassphraseOfBackupsFallsBackToTheEnvironment(t *testing.T) {
	t.Setenv(passphraseVariable, "correct horse battery")
	if got, err := backupPassphrase(types.StringNull()); err != nil || got != "correct horse battery" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := backupPassphrase(types.StringValue("configured passphrase")); err != nil || got != "configured passphrase" {
		t.Errorf("the configured one gives way: %q, %v", got, err)
	}
	t.Setenv(passphraseVariable, "hidden")
	if _, err := backupPassphrase(types.StringNull()); err == nil || !strings.Contains(err.Error(), passphraseVariable) || strings.Contains(err.Error(), "hidden") {
		t.Errorf("error %v, want one that names the variable and not its value", err)
	}
}

func TestPivotsAreCheckedAtPlan(t *testing.T) {
	v := newProtocolValidator(t)
	cluster := func(name string) object { return object{"kubeconfig_path": name} }
	backup := func(members object) object { return object{"backup": members} }
	key := "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
	for _, test := range []struct {
		name   string
		change object
		want   string // empty: no error
	}{
		{"the least is right", object{}, ""},
		{"unknown values are left", object{"source": unknown{}, "target": unknown{}, "namespaces": unknown{}, "clusters": unknown{}, "backup": unknown{}, "prove_for": unknown{}}, ""},
		{"namespaces are right", object{"namespaces": []any{"a", "b"}}, ""},
		{"single clusters are right", object{"clusters": []any{"shops/shop-1"}}, ""},
		{"a backup for recipients is right", backup(object{"directory": "d", "recipients": []any{key}}), ""},
		{"a backup with the provider's passphrase is right", backup(object{"directory": "d"}), ""},

		{"namespaces beside clusters", object{"namespaces": []any{"a"}, "clusters": []any{"a/b"}}, "clusters"},
		{"no namespace at all", object{"namespaces": []any{}}, "at least 1"},
		{"a namespace twice", object{"namespaces": []any{"a", "a"}}, "duplicate"},
		{"a cluster without namespace", object{"clusters": []any{"shop-1"}}, "namespace/name"},
		{"a rule that does not exist", object{"foreign_owners": "drop"}, "foreign_owners"},
		{"a time without unit", object{"prove_for": "10"}, "is not a duration"},
		{"a time below zero", object{"prove_for": "-10s"}, "is not a duration"},
		{"a backup to nowhere", backup(object{"directory": "", "recipients": []any{key}}), "at least 1"},
		{"a backup for nobody", backup(object{"directory": "d", "recipients": []any{}}), "at least 1"},
		{"a backup for an SSH key", backup(object{"directory": "d", "recipients": []any{"ssh-ed25519 AAAA"}}), "public key of age"},
		{"two sources in one", object{"source": object{"kubeconfig_path": "a", "cluster_name": "b"}}, "source"},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := object{"source": cluster("a"), "target": cluster("b")}
			for name, value := range test.change {
				config[name] = value
			}
			got := v.resource(t, "capi_pivot", config)
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("the plan says %q, want %q", got, test.want)
			}
		})
	}
}
