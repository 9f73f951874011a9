// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Delete does as on_destroy says. In a replacement it leaves an unfinished
// release to the Create that follows.
func (r *helmReleaseResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var state helmReleaseModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	forGood, diags := destroyPlanned(ctx, req.Private)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() || !forGood && state.Phase.ValueString() != phaseReady || state.OnDestroy.ValueString() == onDestroyForget {
		return
	}
	timeout, diags := state.Timeouts.Delete(ctx, helmReleaseTimes.Delete)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := r.remove(ctx, &state, forGood, &resp.Diagnostics); err != nil {
		failure{
			verb: "uninstall", thing: state.thing(), cause: err, exists: "the release, as far as it was not removed yet",
			next: "mend the cause and run destroy again. If the cluster is lost for good, set on_destroy = \"forget\", apply, and destroy",
		}.addTo(&resp.Diagnostics)
	}
}

func (r *helmReleaseResource) remove(ctx context.Context, state *helmReleaseModel, forGood bool, diags *diag.Diagnostics) error {
	if err := r.data.awake(ctx, state.Cluster, reporter(nil)); err != nil {
		return err
	}
	client, _, err := r.data.reachSame(ctx, state.Cluster, state.ClusterUID, "it was installed on")
	switch {
	case kube.IsAbsent(err):
		return nil
	case err != nil:
		return err
	}
	if state.OnDestroy.ValueString() != onDestroyRemove && forGood {
		clusters, err := capi.Clusters(ctx, client.Config)
		if err != nil {
			return err
		}
		if len(clusters) > 0 {
			diags.AddWarning("The Helm release stays", sentence(fmt.Sprintf("%s was forgotten and not uninstalled, since its cluster holds Cluster API clusters: %s. "+
				"Set on_destroy = \"remove\" and apply before a destroy that shall uninstall it", state.thing(), strings.Join(clusters, ", "))))
			return nil
		}
	}
	stay, err := helm.Engine{Leases: helmLeases, Report: reporter(nil)}.Remove(ctx, client, helm.Removal{
		Namespace: state.Namespace.ValueString(), Name: state.Name.ValueString(), Owner: state.Instance.ValueString(),
		// What follows a replacement finds its custom resources again.
		Definitions: state.DeleteCRDs.ValueBool() && forGood,
	})
	if len(stay) > 0 {
		diags.AddWarning("CustomResourceDefinitions stay", sentence(fmt.Sprintf("%s was uninstalled, and definitions of which objects are left were kept: %s. "+
			"Delete the objects and then the definitions where they are no longer wanted", state.thing(), strings.Join(stay, "; "))))
	}
	return err
}
