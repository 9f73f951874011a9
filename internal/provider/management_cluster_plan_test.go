// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// readyCluster is the state of a finished cluster.
func readyCluster() managementClusterModel {
	return managementClusterModel{
		Manifest: types.StringValue("kind: Cluster"), Substitutions: types.MapNull(types.StringType), IgnoreFields: types.ListNull(types.StringType),
		Access: accessObject(kube.Access{Kubeconfig: []byte("k"), UID: "u"}), Kubeconfig: types.StringValue("k"), ControlPlaneEndpoint: types.StringValue("https://10.0.0.150:6443"),
		Machines: types.ListNull(types.ObjectType{AttrTypes: machineTypes}), Home: types.StringValue(homeSelf), Instance: types.StringValue("me"), Phase: types.StringValue(phaseReady),
		SecretsHash: secretsHash("me", types.StringValue("one")), Drift: types.StringNull(),
	}
}

func TestWhatAnUpdateOfAManagementClusterPlans(t *testing.T) {
	one := types.StringValue("one")
	tests := map[string]struct {
		change  func(plan, state *managementClusterModel)
		secrets types.String
		applies bool
	}{
		"nothing changed":                        {secrets: one},
		"another manifest":                       {change: func(plan, _ *managementClusterModel) { plan.Manifest = types.StringValue("kind: Other") }, secrets: one, applies: true},
		"another substitution":                   {change: func(plan, _ *managementClusterModel) { plan.Substitutions = types.MapUnknown(types.StringType) }, secrets: one, applies: true},
		"another version of the Secrets":         {change: func(plan, _ *managementClusterModel) { plan.SecretsWOVersion = types.StringValue("2") }, secrets: one, applies: true},
		"other Secrets of the same version":      {secrets: types.StringValue("two"), applies: true},
		"no Secrets any more":                    {secrets: types.StringNull(), applies: true},
		"Secrets that are not known yet":         {secrets: types.StringUnknown()},
		"drift":                                  {change: func(_, state *managementClusterModel) { state.Drift = types.StringValue("x") }, secrets: one, applies: true},
		"work that is not finished":              {change: func(_, state *managementClusterModel) { state.Phase = types.StringValue("applying") }, secrets: one, applies: true},
		"permission to replace a single machine": {change: func(plan, _ *managementClusterModel) { plan.AllowSinglePlane = types.BoolValue(true) }, secrets: one},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan, state := readyCluster(), readyCluster()
			if test.change != nil {
				test.change(&plan, &state)
			}
			plan.planComputed(&state, test.secrets)
			if plan.Machines.IsUnknown() != test.applies || plan.SecretsHash.IsUnknown() != test.applies {
				t.Errorf("machines %v, hash %v, want applied: %v", plan.Machines, plan.SecretsHash, test.applies)
			}
			if !plan.Access.Equal(state.Access) || !plan.Kubeconfig.Equal(state.Kubeconfig) || !plan.Drift.IsNull() || plan.Phase.ValueString() != phaseReady {
				t.Errorf("access %v, drift %v, phase %v", plan.Access, plan.Drift, plan.Phase)
			}
		})
	}
}

func TestAClusterWhoseCreationFailedGetsItsCredentialsFromTheUpdate(t *testing.T) {
	plan, state := readyCluster(), readyCluster()
	state.Phase, state.Access, state.Kubeconfig = types.StringValue("applying"), types.ObjectNull(accessTypes), types.StringNull()
	plan.planComputed(&state, types.StringValue("one"))
	if !plan.Access.IsUnknown() || !plan.Kubeconfig.IsUnknown() || !plan.Machines.IsUnknown() {
		t.Errorf("access %v, kubeconfig %v, machines %v, want all unknown", plan.Access, plan.Kubeconfig, plan.Machines)
	}
}

func TestACertificateThatEndsSoonIsWarnedOf(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		end  time.Time
		want int
	}{
		"in a year":      {now.AddDate(1, 0, 0), 0},
		"in a week":      {now.AddDate(0, 0, 7), 1},
		"a week ago":     {now.AddDate(0, 0, -7), 1},
		"no certificate": {time.Time{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := managementClusterModel{KubeconfigExpiry: timeOrNull(test.end)}
			if got := m.warnOfExpiry(now); len(got) != test.want {
				t.Errorf("%d warnings, want %d", len(got), test.want)
			}
		})
	}
}
