// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

type pivotModel struct {
	ID           types.String   `tfsdk:"id"`
	Source       types.Object   `tfsdk:"source"`
	Target       types.Object   `tfsdk:"target"`
	RetireSource types.Bool     `tfsdk:"retire_source"`
	ClusterUID   types.String   `tfsdk:"cluster_uid"`
	Clusters     types.List     `tfsdk:"clusters"`
	Objects      types.Map      `tfsdk:"objects"`
	ProviderIDs  types.List     `tfsdk:"provider_ids"`
	Phase        types.String   `tfsdk:"phase"`
	Timeouts     timeouts.Value `tfsdk:"timeouts"`
}

// set takes over what the move came to.
func (m *pivotModel) set(ctx context.Context, result *pivot.Result, uid string) diag.Diagnostics {
	names := make([]string, 0, len(result.Clusters))
	for _, key := range result.Clusters {
		names = append(names, key.String())
	}
	clusters, diags := types.ListValueFrom(ctx, types.StringType, names)
	objects, moreDiags := types.MapValueFrom(ctx, types.Int64Type, result.Counts)
	diags.Append(moreDiags...)
	ids := result.ProviderIDs
	if ids == nil {
		ids = []string{}
	}
	providerIDs, moreDiags := types.ListValueFrom(ctx, types.StringType, ids)
	diags.Append(moreDiags...)
	m.Clusters, m.Objects, m.ProviderIDs = clusters, objects, providerIDs
	m.ClusterUID, m.ID = types.StringValue(uid), types.StringValue(uid)
	return diags
}
