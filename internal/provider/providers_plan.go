// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
)

// contractPatience bounds what a plan reads from where releases are published:
// it must not hang where they cannot be reached.
const contractPatience = 10 * time.Second

// planChanges says which providers an update upgrades, adds and removes, and
// refuses what cannot be: an older version, another method, contracts that do
// not go together. It asks no cluster: what is installed is what the last
// refresh saw.
func planChanges(ctx context.Context, plan, state *providersModel) diag.Diagnostics {
	var diags diag.Diagnostics
	if plan.Method.IsUnknown() || state.Phase.ValueString() == phaseImported {
		return diags
	}
	if plan.method() != state.method() && len(state.Installed.Elements()) > 0 {
		diags.AddAttributeError(path.Root("method"), "Unable to change the method", fmt.Sprintf(
			"The providers were installed by method %q, and two methods on one cluster would undo each other's work. "+
				"Nothing was changed. Keep the method, or move the Clusters to another cluster with a capi_pivot whose providers have the new one.", state.method()))
		return diags
	}
	named, _, found := providersFrom(ctx, plan.Providers)
	diags.Append(found...)
	if diags.HasError() || len(named) < countProviders(plan.Providers) {
		return diags
	}
	installed, _ := textMap(state.Installed)
	for _, p := range named {
		if err := capi.CheckUpgrade(p, installed[p.Label()]); err != nil {
			diags.AddAttributeError(path.Root("providers"), "Unable to change "+p.Label(), sentence("the provider "+err.Error())+" Nothing was changed.")
		}
	}
	if diags.HasError() {
		return diags
	}
	lines, check := changes(ctx, plan, named, installed)
	if len(lines) == 0 {
		return diags
	}
	diags.Append(check...)
	if !diags.HasError() {
		diags.AddAttributeWarning(path.Root("providers"), "Providers will change", strings.Join(lines, "\n"))
	}
	return diags
}

// changes lists, a line each, what happens to each provider.
func changes(ctx context.Context, plan *providersModel, named []capi.Provider, installed map[string]string) ([]string, diag.Diagnostics) {
	var diags diag.Diagnostics
	var moved []string
	for _, p := range named {
		if installed[p.Label()] != p.Version {
			moved = append(moved, p.Label())
		}
	}
	left := slices.DeleteFunc(slices.Sorted(maps.Keys(installed)), func(label string) bool {
		return slices.ContainsFunc(named, func(p capi.Provider) bool { return p.Label() == label })
	})
	if len(moved)+len(left) == 0 {
		return nil, nil
	}
	contracts := map[string]capi.Contract{}
	if !plan.Repository.IsUnknown() {
		read, err := readContracts(ctx, named, installed, plan.Repository)
		if err != nil {
			diags.AddAttributeWarning(path.Root("providers"), "The providers' contracts were not checked", sentence(err.Error())+" The apply reads them again before it changes anything.")
		}
		if err := capi.CheckContracts(read); err != nil {
			diags.AddAttributeError(path.Root("providers"), "Unable to use the providers together", sentence(err.Error()))
		}
		for _, c := range read {
			contracts[c.Provider.Label()] = c
		}
	}
	var lines []string
	for _, p := range named {
		if slices.Contains(moved, p.Label()) {
			lines = append(lines, describeChange(p, installed[p.Label()], contracts[p.Label()]))
		}
	}
	for _, label := range left {
		lines = append(lines, fmt.Sprintf("%s %s: removed if it is this resource's and no object of its kinds is left", label, installed[label]))
	}
	return lines, diags
}

func readContracts(ctx context.Context, named []capi.Provider, installed map[string]string, repository types.String) ([]capi.Contract, error) {
	ctx, cancel := context.WithTimeout(ctx, contractPatience)
	defer cancel()
	return capi.Contracts(ctx, named, installed, capi.Source{Repository: repository.ValueString()})
}

func describeChange(p capi.Provider, from string, contract capi.Contract) string {
	line := p.Label() + ": "
	if from == "" {
		line += p.Version + ", new"
	} else {
		line += from + " -> " + p.Version
	}
	switch {
	case contract.Version == "":
		return line
	case contract.Before == "" || contract.Before == contract.Version:
		return line + ", contract " + contract.Version
	}
	return line + ", contract " + contract.Before + " -> " + contract.Version
}
