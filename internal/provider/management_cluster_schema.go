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
				MarkdownDescription: "A change of it applies `secrets_wo` again, even if the text is the same.",
				Validators:          []validator.String{stringvalidator.AlsoRequires(path.MatchRoot("secrets_wo"))},
			},
			"ignore_fields": schema.ListAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Fields that somebody else sets, as `Kind/name:path` or, for all objects of a kind, `Kind:path`: for example " +
					"`MachineDeployment/workers:spec.replicas`. They are written when the object is made and then left as they are found. The replicas of a " +
					"MachineDeployment with the cluster autoscaler's annotations are left alone without being listed.",
				Validators: []validator.List{listvalidator.ValueStringsAre(checkedAs("a field as Kind/name:path or Kind:path", "Unable to ignore the field", checkIgnored))},
			},
			"allow_single_control_plane": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(false),
				MarkdownDescription: "Lets a cluster that manages itself replace the machines of a control plane of fewer than three. It takes a spare address and room for " +
					"one more VM for a while. Defaults to `false`, which refuses such a change.",
			},
			"force_destroy": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(false),
				MarkdownDescription: "Lets a destroy of a cluster that manages itself, or whose manager is lost, delete exactly the VMs in `machines` over the Proxmox API, " +
					"each after a check of its UUID, and stopped clones that bear the name of one of them. Must be applied before the destroy. Defaults to `false`.",
			},
			"id":         keptString("The Cluster as `namespace/name`."),
			"access":     accessOutput("How the cluster is reached, for the resources that work on it."),
			"kubeconfig": schema.StringAttribute{Computed: true, Sensitive: true, MarkdownDescription: "Kubeconfig of an administrator, as the control plane provider made it."},
			"kubeconfig_expires_at": schema.StringAttribute{
				Computed: true, MarkdownDescription: "When the kubeconfig's client certificate ends (RFC 3339). Null where it has none. The providers renew it; 30 days before its end a refresh warns.",
			},
			"talosconfig_expires_at": schema.StringAttribute{
				Computed: true, MarkdownDescription: "When the talosconfig's client certificate ends (RFC 3339). Null where it has none.",
			},
			"secrets_hash": schema.StringAttribute{
				Computed: true, MarkdownDescription: "Salted and slow hash of the `secrets_wo` that were applied: changed Secrets plan an update even if the version stays.",
			},
			"drift": schema.StringAttribute{
				Computed: true,
				MarkdownDescription: "Fields of the manifest that somebody else has changed in the cluster, one a line, found by a server-side dry run. The next apply sets them " +
					"back. What controllers set beside the manifest is no drift. Values that may be secrets are not shown. Null if there is none.",
			},
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

// keptString is an attribute that an update does not change. After an import it
// may be null until then, and the first update sets it.
func keptString(description string) schema.StringAttribute {
	return schema.StringAttribute{
		Computed: true, MarkdownDescription: description,
		PlanModifiers: []planmodifier.String{stringplanmodifier.UseNonNullStateForUnknown()},
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
