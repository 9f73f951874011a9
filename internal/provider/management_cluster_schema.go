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
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

func (r *managementClusterResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A Cluster API management cluster, made from a manifest by the cluster that bootstraps it. Creation ends when the control " +
			"plane is initialized and its API has answered for 5 s without a break; nodes become ready by the charts that are installed " +
			"afterwards. The resource finds its objects wherever a pivot takes them: in the bootstrap cluster or in the cluster itself.",
		Attributes: map[string]schema.Attribute{
			"bootstrap": accessInput("The cluster that makes this one and holds its objects until the pivot."),
			"name": schema.StringAttribute{
				Required: true, MarkdownDescription: "Name of the Cluster object, as in the manifest.",
				Validators:    []validator.String{stringvalidator.RegexMatches(dnsLabel, "must be a DNS label: lower-case letters, digits and '-', 63 characters at most")},
				PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"namespace": schema.StringAttribute{
				Required: true, MarkdownDescription: "Namespace of all the cluster's objects. It is made if it is not there.",
				Validators:    []validator.String{stringvalidator.RegexMatches(dnsLabel, "must be a DNS label: lower-case letters, digits and '-', 63 characters at most")},
				PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"manifest": schema.StringAttribute{
				Required: true,
				MarkdownDescription: "The cluster's objects as YAML documents, with `${NAME}` placeholders for `substitutions` (`$${NAME}` in the text itself " +
					"stands for a literal `${NAME}`). Several files make one text by `join(\"\\n---\\n\", ...)`. It is checked at plan, from the text alone: kinds and versions, names, " +
					"namespaces, references, networks and addresses, the virtual address, numbers of machines, versions of Kubernetes and Talos, limits of Proxmox VE, " +
					"Talos patches, the cloud provider, the network plugin, feature gates. What waits for a value that is known after apply is checked then, before " +
					"anything is made. Secrets do not belong here.",
			},
			"substitutions": schema.MapAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Values of the placeholders. They may be unknown at plan, such as the id of a template that is made in the same apply.",
			},
			"secrets_wo": schema.StringAttribute{
				Optional: true, Sensitive: true, WriteOnly: true,
				MarkdownDescription: "The cluster's Secret objects as YAML documents, for instance the credentials that a ProxmoxCluster refers to. Write-only: never in plan or state.",
			},
			"secrets_wo_version": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "Change it whenever `secrets_wo` changes: a changed write-only value alone plans nothing.",
				Validators:          []validator.String{stringvalidator.AlsoRequires(path.MatchRoot("secrets_wo"))},
			},
			"force_destroy": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(false),
				MarkdownDescription: "Lets a destroy of a cluster that manages itself, or whose manager is lost, delete exactly the VMs in `machines` over the Proxmox API, " +
					"each after a check of its UUID. Must be applied before the destroy. Defaults to `false`.",
			},
			"id":          keptString("The Cluster as `namespace/name`."),
			"access":      accessOutput("How the cluster is reached, for the resources that work on it."),
			"kubeconfig":  schema.StringAttribute{Computed: true, Sensitive: true, MarkdownDescription: "Kubeconfig of an administrator, as the control plane provider made it."},
			"talosconfig": schema.StringAttribute{Computed: true, Sensitive: true, MarkdownDescription: "Talosconfig of an administrator. Null for clusters of other systems."},
			"control_plane_endpoint": schema.StringAttribute{
				Computed: true, MarkdownDescription: "Address of the API server, such as `https://10.0.0.150:6443`.",
			},
			"home": schema.StringAttribute{
				Computed: true, MarkdownDescription: "Where the cluster's objects are: `bootstrap` before the pivot, `self` after it.",
			},
			"machines": managementClusterMachines(),
			"instance": keptString("UUID that marks the objects as this resource's."),
			"phase":    phaseAttribute(),
			"timeouts": timeoutsAttribute(ctx, managementClusterTimes),
		},
	}
}

func keptString(description string) schema.StringAttribute {
	return schema.StringAttribute{
		Computed: true, MarkdownDescription: description,
		PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
	}
}

func managementClusterMachines() schema.ListNestedAttribute {
	text := func(description string) schema.StringAttribute {
		return schema.StringAttribute{Computed: true, MarkdownDescription: description}
	}
	return schema.ListNestedAttribute{
		Computed:            true,
		MarkdownDescription: "The cluster's machines, sorted by name.",
		NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"name":          text("Name of the Machine."),
			"control_plane": schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the machine belongs to the control plane."},
			"provider_id":   text("Provider id, such as `proxmox://` with the VM's UUID. Null before the machine has one."),
			"vm_node":       text("Proxmox node of the VM. Null on other systems."),
			"vm_id":         schema.Int64Attribute{Computed: true, MarkdownDescription: "Id of the VM; 0 before the clone and on other systems."},
			"vm_uuid":       text("SMBIOS UUID of the VM, by which it is recognised before a deletion. Null on other systems."),
		}},
	}
}
