// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"regexp"

	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

// defaultProveFor is long enough for a controller that disagrees with what was
// moved to make its first new Machine.
const defaultProveFor = "10s"

func (r *pivotResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "Moves Cluster API objects from one management cluster to another, proves that nothing was lost, and retires the source.\n\n" +
			"It begins only when every Cluster is available, every Machine has a node, and the target was seen to take every object. The move is journalled " +
			"in both clusters. Whatever fails before its point of no return is rolled back, a timeout and Ctrl-C included; from then on it goes on to its end. " +
			"A run that was killed at any moment is brought to one side by the next apply, which needs no state for it. While both clusters hold the objects " +
			"they are paused, and no machine is touched. Destroying this resource only forgets it: it moves nothing.\n\n" +
			"When the source can be reached at plan, a warning tells what will move and what will stay, what Argo CD or Flux applies there, and which autoscaler " +
			"has to follow. What cannot be moved is refused at plan: control planes whose pods run in the source (Kamaji, hosted control planes), and objects " +
			"that their owners would leave behind.\n\n" +
			"A source whose controllers are gone is left all the same. Webhooks that nobody answers are not asked while the move lasts; their configurations stay. " +
			"What only controllers could tell, such as whether the Clusters are available, is not waited for, and a warning says so.\n\n" +
			"The journals are shown by `kubectl get configmaps -n kube-system -l terraform-provider-capi/pivot -L terraform-provider-capi/phase,terraform-provider-capi/objects`.",
		Attributes: map[string]schema.Attribute{
			"source": accessInput("The cluster that manages the Clusters now. It may be gone if the move is done."),
			"target": accessInput("The cluster that shall manage them. It needs each provider of the source in the same or a newer version, whoever installed it."),
			"namespaces": schema.ListAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "The namespaces whose Clusters move. Without it, and without `clusters`, all Clusters of the source move.",
				Validators:          []validator.List{listvalidator.SizeAtLeast(1), listvalidator.UniqueValues(), listvalidator.ConflictsWith(path.MatchRoot("clusters"))},
			},
			"clusters": schema.ListAttribute{
				Optional: true, Computed: true, ElementType: types.StringType,
				MarkdownDescription: "The single Clusters that move, as `namespace/name`, without the others of their namespaces. What they share with others is copied " +
					"and stays on the source as well; an IP pool that they share cannot be moved. If not set: the Clusters that were moved.",
				Validators: []validator.List{listvalidator.SizeAtLeast(1), listvalidator.UniqueValues(), listvalidator.ValueStringsAre(
					stringvalidator.RegexMatches(regexp.MustCompile(`^[a-z0-9-]+/[a-z0-9.-]+$`), "must be namespace/name"))},
			},
			"foreign_owners": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(string(pivot.ForeignRefuse)),
				MarkdownDescription: "What to do with an object of a Cluster that is also owned by something which does not move, such as an Argo CD Application: " +
					"`refuse` the move (the default), `leave` the object and what it owns behind as clusterctl does, or `carry` it over without that owner.",
				Validators: []validator.String{stringvalidator.OneOf(string(pivot.ForeignRefuse), string(pivot.ForeignLeave), string(pivot.ForeignCarry))},
			},
			"backup":      backupAttribute(),
			"backup_path": schema.StringAttribute{Computed: true, MarkdownDescription: "The file of the backup; null when none was made."},
			"prove_for": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(defaultProveFor),
				MarkdownDescription: "How long after the move no Machine may be made or replaced, as a Go duration. Defaults to `" + defaultProveFor + "`.",
				Validators:          []validator.String{durationText{}},
			},
			"adopt_failed_move": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(false),
				MarkdownDescription: "Whether to end a move that something else, such as `clusterctl move`, began and left half done. If the source still holds all " +
					"objects, the copies are removed and it is un-paused; if the target holds all of them, the rest is removed from the source and the target is " +
					"un-paused. Otherwise it is refused, and both are left as they are. Defaults to `false`.",
			},
			"retire_source": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(true),
				MarkdownDescription: "Whether to delete the source after the comparison, if it is an ephemeral cluster and holds no Cluster any more. Defaults to `true`.",
			},
			"id":             keptString("Identity of this pivot: the UID of its first target."),
			"cluster_uid":    schema.StringAttribute{Computed: true, MarkdownDescription: "UID of the namespace `kube-system` of the target: its identity."},
			"access":         accessOutput("How to reach the cluster that manages the Clusters now: the target, once it does."),
			"journal_id":     schema.StringAttribute{Computed: true, MarkdownDescription: "Identity of the move's journal; null when the move was made by something else."},
			"objects":        schema.MapAttribute{Computed: true, ElementType: types.Int64Type, MarkdownDescription: "Number of moved objects by kind."},
			"digest":         schema.StringAttribute{Computed: true, MarkdownDescription: "SHA-256 over all moved objects, their contents and their owners, the same on both sides."},
			"stayed":         schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "Objects of the Clusters that were left behind, and why."},
			"provider_ids":   schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "Provider ids of the Machines, the same before and after the move."},
			"paused_seconds": schema.Float64Attribute{Computed: true, MarkdownDescription: "For how long nobody managed the Clusters; 0 when it is not known."},
			"phase":          phaseAttribute(),
			"timeouts":       timeoutsAttribute(ctx, pivotTimes),
		},
	}
}

func backupAttribute() schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		Optional: true,
		MarkdownDescription: "Writes every object into an encrypted file before anything is paused. The file is a tar archive under age (`age -d`), with a manifest " +
			"of the SHA-256 sum of each file in it.",
		Attributes: map[string]schema.Attribute{
			"directory": schema.StringAttribute{Required: true, MarkdownDescription: "Folder on the machine that runs Terraform; it is made if need be.", Validators: []validator.String{stringvalidator.LengthAtLeast(1)}},
			"recipients": schema.ListAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Public keys of age (`age1...`) for whose owners it is encrypted. Without them it is encrypted with the provider block's `backup_passphrase`.",
				Validators: []validator.List{listvalidator.SizeAtLeast(1), listvalidator.ValueStringsAre(
					stringvalidator.RegexMatches(regexp.MustCompile(`^age1[a-z0-9]+$`), "must be a public key of age (age1...)"))},
			},
		},
	}
}
