// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

type pivotModel struct {
	ID              types.String   `tfsdk:"id"`
	Source          types.Object   `tfsdk:"source"`
	Target          types.Object   `tfsdk:"target"`
	Namespaces      types.List     `tfsdk:"namespaces"`
	Clusters        types.List     `tfsdk:"clusters"`
	ForeignOwners   types.String   `tfsdk:"foreign_owners"`
	Backup          types.Object   `tfsdk:"backup"`
	BackupPath      types.String   `tfsdk:"backup_path"`
	ProveFor        types.String   `tfsdk:"prove_for"`
	AdoptFailedMove types.Bool     `tfsdk:"adopt_failed_move"`
	RetireSource    types.Bool     `tfsdk:"retire_source"`
	ClusterUID      types.String   `tfsdk:"cluster_uid"`
	Access          types.Object   `tfsdk:"access"`
	JournalID       types.String   `tfsdk:"journal_id"`
	Objects         types.Map      `tfsdk:"objects"`
	Digest          types.String   `tfsdk:"digest"`
	Stayed          types.List     `tfsdk:"stayed"`
	ProviderIDs     types.List     `tfsdk:"provider_ids"`
	PausedSeconds   types.Float64  `tfsdk:"paused_seconds"`
	Phase           types.String   `tfsdk:"phase"`
	Timeouts        timeouts.Value `tfsdk:"timeouts"`
}

type pivotBackupModel struct {
	Directory  types.String `tfsdk:"directory"`
	Recipients types.List   `tfsdk:"recipients"`
}

// results are the attributes that a move writes: unknown until it is made, and
// kept as long as none is to be made again.
func (m *pivotModel) results() map[string]attr.Value {
	return map[string]attr.Value{
		"cluster_uid": m.ClusterUID, "clusters": m.Clusters, "journal_id": m.JournalID, "objects": m.Objects, "digest": m.Digest,
		"stayed": m.Stayed, "provider_ids": m.ProviderIDs, "paused_seconds": m.PausedSeconds, "backup_path": m.BackupPath,
	}
}

// scope is what is to move. chosen says that clusters is the configuration's and
// not the account of what was moved.
func (m *pivotModel) scope(ctx context.Context, chosen bool) (pivot.Scope, diag.Diagnostics) {
	var scope pivot.Scope
	diags := m.Namespaces.ElementsAs(ctx, &scope.Namespaces, false)
	if !chosen {
		return scope, diags
	}
	var names []string
	diags.Append(m.Clusters.ElementsAs(ctx, &names, false)...)
	for _, name := range names {
		namespace, name, _ := strings.Cut(name, "/")
		scope.Clusters = append(scope.Clusters, client.ObjectKey{Namespace: namespace, Name: name})
	}
	return scope, diags
}

// options are how the move is to be made, but for its backup.
func (m *pivotModel) options(ctx context.Context, chosen bool) (pivot.Options, diag.Diagnostics) {
	scope, diags := m.scope(ctx, chosen)
	// The validator has parsed it before.
	proveFor, _ := time.ParseDuration(m.ProveFor.ValueString())
	return pivot.Options{
		Scope: scope, ForeignOwners: pivot.ForeignOwners(m.ForeignOwners.ValueString()), ProveFor: proveFor,
		AdoptFailedMove: m.AdoptFailedMove.ValueBool(), Leases: pivotLeases, Report: reporter(&m.Phase),
	}, diags
}

// set takes over what the move came to.
func (m *pivotModel) set(ctx context.Context, result *pivot.Result, target kube.Access, uid string) diag.Diagnostics {
	var diags diag.Diagnostics
	if m.Clusters.IsUnknown() || m.Clusters.IsNull() {
		m.Clusters = textsOf(ctx, keysText(result.Clusters), &diags)
	}
	m.Objects = countsMap(ctx, result.Counts, &diags)
	m.ProviderIDs = textsOf(ctx, result.ProviderIDs, &diags)
	m.Stayed = textsOf(ctx, stayedText(result.Stayed), &diags)
	m.Digest, m.JournalID, m.BackupPath = types.StringValue(result.Digest), textOrNull(result.ID), textOrNull(result.Backup)
	m.PausedSeconds = types.Float64Value(result.PausedFor.Round(time.Millisecond).Seconds())
	m.ClusterUID, m.ID = types.StringValue(uid), types.StringValue(uid)
	target.UID = uid
	m.Access = accessObject(target)
	return diags
}

func textsOf(ctx context.Context, texts []string, diags *diag.Diagnostics) types.List {
	if texts == nil {
		texts = []string{}
	}
	list, more := types.ListValueFrom(ctx, types.StringType, texts)
	diags.Append(more...)
	return list
}

func countsMap(ctx context.Context, counts map[string]int64, diags *diag.Diagnostics) types.Map {
	values, more := types.MapValueFrom(ctx, types.Int64Type, counts)
	diags.Append(more...)
	return values
}

func keysText(keys []client.ObjectKey) []string {
	var names []string
	for _, key := range keys {
		names = append(names, key.String())
	}
	return names
}

func stayedText(stayed []pivot.Stayed) []string {
	var texts []string
	for _, s := range stayed {
		texts = append(texts, s.ID.String()+": "+s.Why)
	}
	return texts
}

// durationText accepts a Go duration that is not negative.
type durationText struct{}

func (durationText) Description(context.Context) string { return "a duration such as 30s or 5m" }

func (v durationText) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (durationText) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if d, err := time.ParseDuration(req.ConfigValue.ValueString()); err != nil || d < 0 {
		resp.Diagnostics.AddAttributeError(req.Path, "Unable to read the duration", fmt.Sprintf("%q is not a duration such as 30s or 5m.", req.ConfigValue.ValueString()))
	}
}
