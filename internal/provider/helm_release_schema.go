// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
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

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
)

func (r *helmReleaseResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A Helm release on a cluster that may be made in the same apply. A release that failed half-way, or that a killed run left " +
			"pending, is taken up by the next apply; a replacement never deletes CustomResourceDefinitions, so that it loses no custom resource. " +
			"Nothing is dialled at plan, but for the refresh.",
		Attributes: mergedAttributes(helmReleaseInputs(), map[string]schema.Attribute{
			"id":            keptString("The release as `namespace/name`."),
			"revision":      schema.Int64Attribute{Computed: true, MarkdownDescription: "Number of the release's newest revision."},
			"status":        schema.StringAttribute{Computed: true, MarkdownDescription: "Helm's word for the state of the newest revision, such as `deployed` or `failed`."},
			"chart_version": schema.StringAttribute{Computed: true, MarkdownDescription: "Exact version of the installed chart. It stays while `chart`, `repository` and `version` stay."},
			"chart_digest":  schema.StringAttribute{Computed: true, MarkdownDescription: "Digest of the installed chart's files. A chart on this machine whose files have changed is installed again, even under the same version."},
			"changes": schema.StringAttribute{
				Computed: true,
				MarkdownDescription: "What the newest change of `values`, `set`, `set_list` and `set_wo` changes, one line each: `+` added, `-` removed, `~` changed; " +
					"40 lines at most. Numbers and booleans are shown; texts are masked, but for those that `show_values` lets through.",
			},
			"drift": schema.StringAttribute{
				Computed: true,
				MarkdownDescription: "What others have changed in the release's objects, one line each and 40 at most, as a server-side dry run tells it. " +
					"Null when there is nothing; else the next apply brings the objects back. Secrets are masked.",
			},
			"app_version": schema.StringAttribute{Computed: true, MarkdownDescription: "Version of what the chart installs, as the chart says it."},
			"cluster_uid": schema.StringAttribute{Computed: true, MarkdownDescription: "UID of the namespace `kube-system` of the cluster that the release is on."},
			"instance":    keptString("UUID that marks the release as this resource's."),
			"phase":       phaseAttribute(),
			"timeouts":    timeoutsAttribute(ctx, helmReleaseTimes),
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
				"A registry on a loopback address is asked by plain HTTP. Dependencies that are not in the chart are fetched from where it says.",
		},
		"repository": schema.StringAttribute{
			Optional: true, MarkdownDescription: "URL of a chart repository (`https://...`).",
		},
		"repository_username": schema.StringAttribute{
			Optional: true, MarkdownDescription: "User name for the registry or repository. Credentials that shall not be in state go into the provider's `registries`.",
			Validators: []validator.String{stringvalidator.AlsoRequires(path.MatchRoot("repository_password"))},
		},
		"repository_password": schema.StringAttribute{
			Optional: true, Sensitive: true, MarkdownDescription: "Password for the registry or repository. Neither Helm's nor Docker's own files with credentials are used.",
			Validators: []validator.String{stringvalidator.AlsoRequires(path.MatchRoot("repository_username"))},
		},
		"version": schema.StringAttribute{
			Optional: true,
			MarkdownDescription: "Version of the chart, or a constraint such as `~1.19`. Defaults to the newest release. What it came to is in `chart_version`, " +
				"and that stays until `version`, `chart` or `repository` changes.",
		},
		"values": schema.ListAttribute{
			Optional: true, Sensitive: true, ElementType: types.StringType,
			MarkdownDescription: "Values as YAML documents. Later ones win; maps are merged, lists and scalars are replaced. What a plan changes in them is in `changes`.",
		},
		"set":      setInput(false, "Single values over `values`, as with the helm command's `--set`."),
		"set_list": setListInput(),
		"set_wo": setInput(true, "Single values that are secrets, over all others. They are not kept in state; the cluster keeps them, as all values, in the "+
			"Secret with the release's record. Needs `set_wo_version`.",
			listvalidator.AlsoRequires(path.MatchRoot("set_wo_version"))),
		"set_wo_version": schema.StringAttribute{
			Optional: true, MarkdownDescription: "Any text that changes whenever `set_wo` does: Terraform cannot see a change of the values themselves.",
			Validators: []validator.String{stringvalidator.AlsoRequires(path.MatchRoot("set_wo"))},
		},
		"show_values": flag(false, "Show texts in `changes` and `drift`, but for those under names that speak of a secret. Leave it off where `values` hold secrets "+
			"under names that do not. Defaults to `false`."),
		"wait":          flag(true, "Wait until all objects of the release are ready. Defaults to `true`."),
		"wait_for_jobs": flag(false, "With `wait`, wait until its Jobs have completed as well. Defaults to `false`."),
		"atomic": flag(false, "Undo what fails: an upgrade by a roll-back to the newest revision that was complete, an install by an uninstall. Defaults to `false`: "+
			"what failed stays to be looked at, and the next apply takes it up as `recover` says."),
		"skip_crds": flag(false, "Leave out the CustomResourceDefinitions in the chart's folder `crds`. Defaults to `false`."),
		"recover": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringdefault.StaticString(string(helm.RecoverRetry)),
			MarkdownDescription: "What an apply does with a release whose last operation failed, or was interrupted and left `pending-install`, `pending-upgrade` or " +
				"`pending-rollback`. `retry` (the default) installs again what was never complete, and upgrades anything else; `rollback` first goes back to " +
				"the newest complete revision; `replace` uninstalls it, but for its CustomResourceDefinitions, and installs it anew; `fail` leaves it and says so. " +
				"A run of this provider that is at work holds a lease, and another Helm client gets five minutes, before a release is taken up.",
			Validators: []validator.String{stringvalidator.OneOf(string(helm.RecoverRetry), string(helm.RecoverRollback), string(helm.RecoverReplace), string(helm.RecoverFail))},
		},
		"detect_drift": flag(true, "Ask the cluster at each refresh whether the release's objects are still as the release has them. Defaults to `true`."),
		"delete_crds": flag(false, "On destroy, delete the chart's CustomResourceDefinitions as well, each only if no object of its kind is left in the cluster. "+
			"A replacement never deletes them. Defaults to `false`."),
		"on_destroy": schema.StringAttribute{
			Optional: true, Computed: true, Default: stringdefault.StaticString(onDestroyAuto),
			MarkdownDescription: "What a destroy does: `remove` uninstalls the release, `forget` leaves it as it is, and `auto` (the default) uninstalls it unless the " +
				"cluster holds Cluster API clusters: then the release is forgotten with a warning, since a management cluster needs it until its own end.",
			Validators: []validator.String{stringvalidator.OneOf(onDestroyAuto, onDestroyRemove, onDestroyForget)},
		},
	}
}

// setInput is a list of single values, write-only or not.
func setInput(writeOnly bool, description string, validators ...validator.List) schema.ListNestedAttribute {
	return schema.ListNestedAttribute{
		Optional: true, WriteOnly: writeOnly, Sensitive: writeOnly, MarkdownDescription: description, Validators: validators,
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{
				Required: true, WriteOnly: writeOnly, MarkdownDescription: "Path of the value, such as `image.tag` or `hosts[0].name`. A dot in a name has `\\` before it.",
				Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			},
			"value": schema.StringAttribute{Required: true, WriteOnly: writeOnly, Sensitive: writeOnly, MarkdownDescription: "The value's text."},
			"type": schema.StringAttribute{
				Optional: true, WriteOnly: writeOnly,
				MarkdownDescription: "How the text is read: `auto` (the default) makes numbers, booleans and null of what looks like them and a list of `{a,b}`; " +
					"`string` takes it as a text with `\\` before each comma; `literal` takes it as it stands.",
				Validators: []validator.String{stringvalidator.OneOf(helm.SetAuto, helm.SetString, helm.SetLiteral)},
			},
		}},
	}
}

func setListInput() schema.ListNestedAttribute {
	return schema.ListNestedAttribute{
		Optional: true, MarkdownDescription: "Lists over `values` and `set`.",
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{
				Required: true, MarkdownDescription: "Path of the list, as in `set`.", Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			},
			"value": schema.ListAttribute{Required: true, ElementType: types.StringType, MarkdownDescription: "The elements, read as with the type `auto`."},
		}},
	}
}
