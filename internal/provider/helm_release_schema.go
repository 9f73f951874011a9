// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

func (r *helmReleaseResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A Helm release on a cluster that may be made in the same apply. A release that failed half-way, or that a killed run left " +
			"pending, is taken up by the next apply; CustomResourceDefinitions are never deleted, so that a replacement loses no custom resource. " +
			"Nothing is dialled at plan.",
		Attributes: mergedAttributes(helmReleaseInputs(), map[string]schema.Attribute{
			"id":            keptString("The release as `namespace/name`."),
			"revision":      schema.Int64Attribute{Computed: true, MarkdownDescription: "Number of the release's newest revision."},
			"status":        schema.StringAttribute{Computed: true, MarkdownDescription: "Helm's word for the state of the newest revision, such as `deployed` or `failed`."},
			"chart_version": schema.StringAttribute{Computed: true, MarkdownDescription: "Exact version of the installed chart."},
			"app_version":   schema.StringAttribute{Computed: true, MarkdownDescription: "Version of what the chart installs, as the chart says it."},
			"cluster_uid":   schema.StringAttribute{Computed: true, MarkdownDescription: "UID of the namespace `kube-system` of the cluster that the release is on."},
			"instance":      keptString("UUID that marks the release as this resource's."),
			"phase":         phaseAttribute(),
			"timeouts":      timeoutsAttribute(ctx, helmReleaseTimes),
		}),
	}
}

func mergedAttributes(inputs, outputs map[string]schema.Attribute) map[string]schema.Attribute {
	for name, attribute := range outputs {
		inputs[name] = attribute
	}
	return inputs
}

func helmReleaseInputs() map[string]schema.Attribute {
	flag := func(value bool, description string) schema.BoolAttribute {
		return schema.BoolAttribute{Optional: true, Computed: true, Default: booldefault.StaticBool(value), MarkdownDescription: description}
	}
	return map[string]schema.Attribute{
		"cluster": accessInput("The cluster to install on. Another cluster gets the release as well, and the one on the first cluster is forgotten."),
		"name": schema.StringAttribute{
			Required: true, MarkdownDescription: "Name of the release.",
			PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()},
		},
		"namespace": schema.StringAttribute{
			Required: true, MarkdownDescription: "Namespace of the release.",
			Validators:    []validator.String{stringvalidator.RegexMatches(dnsLabel, "must be a DNS label: lower-case letters, digits and '-', 63 characters at most")},
			PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()},
		},
		"create_namespace": flag(true, "Make the namespace where it is missing. It stays on destroy. Defaults to `true`."),
		"chart": schema.StringAttribute{
			Required: true,
			MarkdownDescription: "The chart: `oci://registry/path/name`, the URL or path of an archive, the path of a folder, or its name in `repository`. " +
				"A registry on a loopback address is asked by plain HTTP.",
		},
		"repository": schema.StringAttribute{
			Optional: true, MarkdownDescription: "URL of a chart repository (`https://...`).",
		},
		"repository_username": schema.StringAttribute{
			Optional: true, MarkdownDescription: "User name for the registry or repository.",
			Validators: []validator.String{stringvalidator.AlsoRequires(path.MatchRoot("repository_password"))},
		},
		"repository_password": schema.StringAttribute{
			Optional: true, Sensitive: true, MarkdownDescription: "Password for the registry or repository. Neither Helm's nor Docker's own files with credentials are used.",
			Validators: []validator.String{stringvalidator.AlsoRequires(path.MatchRoot("repository_username"))},
		},
		"version": schema.StringAttribute{
			Optional: true,
			MarkdownDescription: "Version of the chart, or a constraint such as `~1.19`. Defaults to the newest release. What it came to is in `chart_version`; " +
				"a newer one is looked for only when something else changes.",
		},
		"values": schema.ListAttribute{
			Optional: true, ElementType: types.StringType,
			MarkdownDescription: "Values as YAML documents. Later ones win; maps are merged, lists and scalars are replaced.",
		},
		"wait":          flag(true, "Wait until all objects of the release are ready. Defaults to `true`."),
		"wait_for_jobs": flag(false, "With `wait`, wait until its Jobs have completed as well. Defaults to `false`."),
		"on_destroy": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringdefault.StaticString(onDestroyAuto),
			MarkdownDescription: "What a destroy does: `remove` uninstalls the release, `forget` leaves it as it is, and `auto` (the default) uninstalls it unless the " +
				"cluster holds Cluster API clusters: then the release is forgotten with a warning, since a management cluster needs it until its own end.",
			Validators: []validator.String{stringvalidator.OneOf(onDestroyAuto, onDestroyRemove, onDestroyForget)},
		},
	}
}
