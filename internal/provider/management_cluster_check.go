// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
)

// values answers the substitutions, with a stand-in for each value that is not
// known yet.
func (m *managementClusterModel) values(ctx context.Context) (map[string]string, diag.Diagnostics) {
	values := map[string]string{}
	if m.Substitutions.IsUnknown() {
		for _, name := range cluster.Placeholders(m.Manifest.ValueString()) {
			values[name] = cluster.Unknown(name)
		}
		return values, nil
	}
	members := map[string]types.String{}
	diags := m.Substitutions.ElementsAs(ctx, &members, false)
	for name, value := range members {
		values[name] = value.ValueString()
		if value.IsUnknown() {
			values[name] = cluster.Unknown(name)
		}
	}
	return values, diags
}

// check judges the texts alone. What is only doubtful is told when a plan makes
// or changes the cluster, not for ever after.
func (m *managementClusterModel) check(ctx context.Context, secrets types.String, prior *managementClusterModel) diag.Diagnostics {
	if m.Manifest.IsUnknown() || m.Manifest.IsNull() || m.Name.IsUnknown() || m.Namespace.IsUnknown() {
		return nil
	}
	values, diags := m.values(ctx)
	if diags.HasError() {
		return diags
	}
	options := cluster.CheckOptions{New: prior == nil, Topology: m.topology(ctx)}
	if !secrets.IsUnknown() {
		parsed, err := cluster.ParseSecrets(secrets.ValueString())
		if err != nil {
			return problemDiagnostics(flatten(err))
		}
		options.Secrets = parsed
	}
	_, problems := m.load(values, options)
	if prior != nil && prior.Manifest.Equal(m.Manifest) && prior.Substitutions.Equal(m.Substitutions) {
		problems = slices.DeleteFunc(problems, func(err error) bool { return severityOf(err) != cluster.Wrong })
	}
	return problemDiagnostics(problems)
}

// load fills, parses and checks the manifest.
func (m *managementClusterModel) load(values map[string]string, options cluster.CheckOptions) (*cluster.Manifest, []error) {
	manifest, err := cluster.Load(m.Manifest.ValueString(), values)
	if err != nil {
		return nil, flatten(err)
	}
	options.Namespace, options.Name = m.Namespace.ValueString(), m.Name.ValueString()
	var problems []error
	for _, problem := range manifest.Check(options) {
		problems = append(problems, problem)
	}
	return manifest, problems
}

// topology says whether the bootstrap cluster's core provider has the feature
// gate of topologies on; nil if that cannot be told.
func (m *managementClusterModel) topology(ctx context.Context) *bool {
	access, known, diags := accessFrom(ctx, m.Bootstrap)
	if diags.HasError() || !known || access.Ephemeral == nil {
		return nil
	}
	spec, err := bootstrap.SpecOf(*access.Ephemeral)
	if err != nil {
		return nil
	}
	on := false
	for _, p := range spec.Providers {
		on = on || p.Type == capi.Core && p.Variables["CLUSTER_TOPOLOGY"] == "true"
	}
	return &on
}

func severityOf(err error) cluster.Severity {
	var problem cluster.Problem
	if errors.As(err, &problem) {
		return problem.Severity
	}
	return cluster.Wrong
}

// problemDiagnostics turns the engine's problems into errors and warnings of the
// attributes that they lie in. What could not be checked makes one warning.
func problemDiagnostics(problems []error) diag.Diagnostics {
	var diags diag.Diagnostics
	var open []string
	for _, err := range problems {
		var problem cluster.Problem
		errors.As(err, &problem)
		attribute, ok := inputAttributes[problem.Input]
		if !ok {
			attribute = "manifest"
		}
		switch severityOf(err) {
		case cluster.Doubtful:
			diags.AddAttributeWarning(path.Root(attribute), "Check the "+attribute, sentence(err.Error()))
		case cluster.NotChecked:
			open = append(open, "- "+err.Error())
		default:
			diags.AddAttributeError(path.Root(attribute), "Unable to use the "+attribute, sentence(err.Error()))
		}
	}
	if len(open) > 0 {
		diags.AddAttributeWarning(path.Root("manifest"), "Not all of the manifest is checked yet",
			"Values that are known after apply are checked then, before anything is made:\n\n"+strings.Join(open, "\n"))
	}
	return diags
}

var inputAttributes = map[cluster.Input]string{
	cluster.InManifest: "manifest", cluster.InSubstitutions: "substitutions", cluster.InSecrets: "secrets_wo",
}

// flatten answers the single errors of a joined one.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}

// options puts together what the engine applies. secrets is the write-only text,
// which only the configuration has. Values that were not known at plan are
// checked here, before anything is made.
func (m *managementClusterModel) options(ctx context.Context, secrets types.String) (cluster.ApplyOptions, error) {
	values, diags := m.values(ctx)
	if diags.HasError() {
		return cluster.ApplyOptions{}, errors.New("the substitutions cannot be read")
	}
	parsed, err := cluster.ParseSecrets(secrets.ValueString())
	if err != nil {
		return cluster.ApplyOptions{}, err
	}
	manifest, problems := m.load(values, cluster.CheckOptions{Secrets: parsed, Topology: m.topology(ctx)})
	problems = slices.DeleteFunc(problems, func(err error) bool { return severityOf(err) != cluster.Wrong })
	if len(problems) > 0 {
		return cluster.ApplyOptions{}, errors.Join(problems...)
	}
	ignored, err := m.ignored(ctx)
	if err != nil {
		return cluster.ApplyOptions{}, err
	}
	return cluster.ApplyOptions{Instance: m.Instance.ValueString(), Manifest: manifest, Secrets: parsed, Ignored: ignored}, nil
}
