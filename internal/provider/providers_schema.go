// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"maps"
	"regexp"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
)

func (r *providersResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	certManager := certManagerAttribute()
	certManager.Attributes = maps.Clone(certManager.Attributes)
	certManager.Attributes["chart"] = schema.StringAttribute{
		Optional:            true,
		MarkdownDescription: "With `method = \"operator\"`, where its chart is: `oci://` reference, address of an archive or path. Defaults to `" + certManagerChart + "`.",
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "Cluster API providers on a cluster, with the cert-manager that they need, and the cluster-api-operator where it looks after them. " +
			"Providers are upgraded, added and removed in place; the plan warns with each change, and refuses what is older than what is installed. " +
			"One that leaves the configuration is removed only once no object of its kinds is left. " +
			"Components reach the operator through the cluster's own API, so the cluster needs no way to where they are published. " +
			"The cluster is not dialled at plan.",
		Attributes: map[string]schema.Attribute{
			"id":      keptString("UID of the cluster."),
			"cluster": accessInput("The cluster to install on. Another cluster gets the providers as well, and those on the first cluster are forgotten."),
			"method": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(string(capi.Operator)),
				MarkdownDescription: "Who looks after the providers: `operator`, the cluster-api-operator, or `clusterctl`, which leaves nothing running beside the providers. " +
					"It does not change in place.",
				Validators: []validator.String{stringvalidator.OneOf(string(capi.Operator), string(capi.Clusterctl))},
			},
			"operator": schema.SingleNestedAttribute{
				Optional:            true,
				MarkdownDescription: "The cluster-api-operator: required with `method = \"operator\"`, and no part of the other.",
				Attributes: map[string]schema.Attribute{
					"version": schema.StringAttribute{Required: true, MarkdownDescription: "Version of its chart, such as `0.28.0`."},
					"chart": schema.StringAttribute{
						Optional: true,
						MarkdownDescription: "Where its chart is: `oci://` reference, address of an archive or path. Defaults to the chart `" + operatorChart + "` of " +
							operatorRepository + ".",
					},
				},
			},
			"cert_manager": certManager,
			"repository": schema.StringAttribute{
				Optional: true,
				MarkdownDescription: "A mirror of the providers' releases: the `file:///` or `https://` address, for the machine that runs Terraform, of a folder that holds " +
					"the files of the releases as they are, as `{label}/{version}/{file}`. Defaults to the projects' own releases.",
				Validators: []validator.String{repositoryAddress()},
			},
			"providers":    providersAttribute(),
			"availability": availabilityAttribute(),
			"on_destroy": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(onDestroyAuto),
				MarkdownDescription: "What a destroy does: `auto` removes the providers, unless the cluster holds Cluster API clusters: then it forgets them with a warning. " +
					"`remove` and `forget` say it outright. Definitions and namespaces stay in any case.",
				Validators: []validator.String{stringvalidator.OneOf(onDestroyAuto, onDestroyRemove, onDestroyForget)},
			},
			"installed": schema.MapAttribute{
				Computed: true, ElementType: types.StringType,
				MarkdownDescription: "The providers that the cluster says are installed, by label such as `infrastructure-proxmox`, with their versions.",
			},
			"cluster_uid": schema.StringAttribute{Computed: true, MarkdownDescription: "UID of the namespace `kube-system` of the cluster that the providers are on."},
			"instance":    keptString("UUID that marks the providers as this resource's."),
			"phase":       phaseAttribute(),
			"timeouts":    timeoutsAttribute(ctx, providersTimes),
		},
	}
}

// repositoryAddress checks the address of a mirror of releases.
func repositoryAddress() validator.String {
	return stringvalidator.RegexMatches(regexp.MustCompile(`^(file:///|https://)`), "must begin with file:/// or https://")
}

func (r *providersResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"cluster":     identityschema.StringAttribute{OptionalForImport: true, Description: "Path of a kubeconfig file, or entry of the provider's clusters map."},
		"cluster_uid": identityschema.StringAttribute{OptionalForImport: true, Description: "UID of the cluster."},
	}}
}
