// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// ImportState takes CLUSTER#NAMESPACE/NAME, or the resource identity.
func (r *helmReleaseResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	id, err := importedObject(ctx, req)
	if err != nil {
		failure{verb: "import", thing: "the Helm release", cause: err}.addTo(&resp.Diagnostics)
		return
	}
	imported := helmReleaseModel{Namespace: types.StringValue(id.Namespace), Name: types.StringValue(id.Name)}
	for name, value := range map[string]any{
		"id": types.StringValue(id.Namespace + "/" + id.Name), "cluster": accessObject(id.access()),
		"namespace": imported.Namespace, "name": imported.Name, "phase": types.StringValue(phaseImported),
	} {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), value)...)
	}
	resp.Diagnostics.Append(resp.Identity.Set(ctx, imported.identity())...)
}

// MoveState takes over a helm_release of the provider hashicorp/helm. As after
// an import, the configuration brings the rest, with an update in place that
// makes no new revision where chart and values are the same.
func (r *helmReleaseResource) MoveState(context.Context) []resource.StateMover {
	return []resource.StateMover{{StateMover: func(ctx context.Context, req resource.MoveStateRequest, resp *resource.MoveStateResponse) {
		// The address is written as ns/name or host/ns/name; OpenTofu has sent a bare name.
		parts := strings.Split(req.SourceProviderAddress, "/")
		if req.SourceTypeName != "helm_release" || parts[len(parts)-1] != "helm" || req.SourceRawState == nil {
			return
		}
		var source struct{ Name, Namespace string }
		err := json.Unmarshal(req.SourceRawState.JSON, &source)
		if err == nil && source.Name == "" {
			err = errors.New("it has no name")
		}
		if err != nil {
			failure{verb: "move", thing: "the helm_release", cause: err, exists: "both resources are as they were", next: "import the release instead: terraform import ADDRESS CLUSTER#NAMESPACE/NAME"}.addTo(&resp.Diagnostics)
			return
		}
		if source.Namespace == "" {
			source.Namespace = "default"
		}
		moved := helmReleaseModel{Namespace: types.StringValue(source.Namespace), Name: types.StringValue(source.Name)}
		for name, value := range map[string]any{
			"id": types.StringValue(source.Namespace + "/" + source.Name), "namespace": moved.Namespace, "name": moved.Name, "phase": types.StringValue(phaseImported),
		} {
			resp.Diagnostics.Append(resp.TargetState.SetAttribute(ctx, path.Root(name), value)...)
		}
		if resp.TargetIdentity != nil {
			resp.Diagnostics.Append(resp.TargetIdentity.Set(ctx, moved.identity())...)
		}
	}}}
}
