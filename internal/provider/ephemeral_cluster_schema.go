// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"regexp"

	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/kind"
)

var (
	clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)
	imageSource = regexp.MustCompile(`^(oci-layout|archive):/.+`)
)

func (r *ephemeralClusterResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A bootstrap cluster on the machine that runs Terraform, with Cluster API providers installed. It exists while it is needed: " +
			"a pivot retires it, after which `status` is `not_here` and nothing plans to make it again by itself: `terraform apply -replace=ADDRESS` does. " +
			"One that is stopped, after a restart of the machine for example, is started by the apply or destroy that needs it.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{
				Computed:            true,
				MarkdownDescription: "`runtime/name`.",
				PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
			},
			"name": schema.StringAttribute{
				Required:            true,
				MarkdownDescription: "Name of the cluster on this machine: lower-case letters, digits and dashes, 40 at most.",
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
				Validators:          []validator.String{stringvalidator.RegexMatches(clusterName, "must be lower-case letters, digits and dashes, 40 at most")},
			},
			"runtime": schema.StringAttribute{
				Optional: true, Computed: true,
				Default: stringdefault.StaticString(bootstrap.Local),
				MarkdownDescription: "How the cluster runs. `local`, the default, runs control plane and pods as processes out of their container images, as an ordinary " +
					"user and without a container engine. `kind` runs it in the containers of docker, nerdctl or podman, and needs the command of one of them.",
				PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()},
				Validators:    []validator.String{stringvalidator.OneOf(bootstrap.Local, bootstrap.Kind)},
			},
			"kubernetes_version": schema.StringAttribute{
				Optional: true, Computed: true,
				Default:             stringdefault.StaticString(defaultKubernetesVersion),
				MarkdownDescription: "Kubernetes release of the cluster. Defaults to `" + defaultKubernetesVersion + "`. A change takes effect when the cluster is made again.",
				Validators:          []validator.String{releaseVersion()},
			},
			"images": schema.ListAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Where container images are looked for before their registries: `oci-layout:/path` (a folder) or `archive:/path` (a file made by `docker save`), in this order. " +
					"With `kind` all their images are loaded into the nodes.",
				Validators: []validator.List{listvalidator.ValueStringsAre(
					stringvalidator.RegexMatches(imageSource, "must be oci-layout:/path or archive:/path"))},
			},
			"kind": kindAttribute(),
			"repository": schema.StringAttribute{
				Optional: true,
				MarkdownDescription: "A mirror of the providers' releases and cert-manager's: the `file:///` or `https://` address of a folder that holds the files of " +
					"the releases as they are, as `{label}/{version}/{file}`, with labels such as `infrastructure-proxmox` and `cert-manager`. Defaults to the projects' own releases.",
				Validators: []validator.String{stringvalidator.RegexMatches(regexp.MustCompile(`^(file:///|https://)`), "must begin with file:/// or https://")},
			},
			"cert_manager": certManagerAttribute(),
			"providers":    providersAttribute(),
			"access": accessOutput("How to reach the cluster: the value for `bootstrap` of a management cluster and `source` of a pivot. It is the specification, " +
				"not a kubeconfig, and stays valid when the cluster is retired and made again."),
			"status": schema.StringAttribute{
				Computed: true,
				MarkdownDescription: "What this machine sees: `running`, `stopped` or `not_here`, which it is after a pivot and on another machine. " +
					"After a restart of the machine it is stopped; the apply or destroy that needs it next starts it again from its data.",
			},
			"instance": schema.StringAttribute{
				Computed:            true,
				MarkdownDescription: "The mark by which the cluster is known to be this resource's.",
				PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
			},
			"phase":    phaseAttribute(),
			"timeouts": timeoutsAttribute(ctx, ephemeralClusterTimes),
		},
	}
}

func kindAttribute() schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		Optional:            true,
		MarkdownDescription: "Settings of `runtime = \"kind\"`. A change takes effect when the cluster is made again.",
		Attributes: map[string]schema.Attribute{
			"engine": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "The container engine: `docker`, `nerdctl` or `podman`. Defaults to the first of them that answers.",
				Validators:          []validator.String{stringvalidator.OneOf(kind.Engines()...)},
			},
			"node_image": schema.StringAttribute{
				Optional: true,
				MarkdownDescription: "Image of the nodes, best with its digest: `kindest/node:v1.36.2@sha256:...`. Defaults to the image of `kubernetes_version` in " +
					"`kindest/node`, by digest where the kind release in this provider names one.",
				Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			},
			"config": schema.StringAttribute{
				Optional: true,
				MarkdownDescription: "A kind configuration in YAML (`kind: Cluster`, `apiVersion: kind.x-k8s.io/v1alpha4`), for more nodes, mounts and mirrors of registries. " +
					"It has no `name`.",
				Validators: []validator.String{checkedAs("a kind configuration", "Unable to use the kind configuration", checkKindConfiguration)},
			},
		},
	}
}

// checkKindConfiguration reads a kind configuration before kind does.
func checkKindConfiguration(text string) error {
	_, err := kind.ParseConfig(text)
	return err
}

func (r *ephemeralClusterResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"runtime": identityschema.StringAttribute{RequiredForImport: true, Description: "How the cluster runs."},
		"name":    identityschema.StringAttribute{RequiredForImport: true, Description: "Name of the cluster on this machine."},
	}}
}
