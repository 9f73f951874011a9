// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// The access object says how a cluster is reached. Resources that talk to a
// cluster take one (cluster, management, bootstrap, source, target); resources
// that make a cluster answer one as their computed attribute access. Both have
// the same type, so that one can be assigned to the other.

// ephemeralAccessTypes are the attribute types of access.ephemeral_cluster.
var ephemeralAccessTypes = map[string]attr.Type{
	"name":    types.StringType,
	"runtime": types.StringType,
	"spec":    types.StringType,
}

// accessTypes are the attribute types of an access object.
var accessTypes = map[string]attr.Type{
	"kubeconfig":        types.StringType,
	"kubeconfig_path":   types.StringType,
	"context":           types.StringType,
	"cluster_name":      types.StringType,
	"ephemeral_cluster": types.ObjectType{AttrTypes: ephemeralAccessTypes},
	"uid":               types.StringType,
}

type accessModel struct {
	Kubeconfig       types.String `tfsdk:"kubeconfig"`
	KubeconfigPath   types.String `tfsdk:"kubeconfig_path"`
	Context          types.String `tfsdk:"context"`
	ClusterName      types.String `tfsdk:"cluster_name"`
	EphemeralCluster types.Object `tfsdk:"ephemeral_cluster"`
	UID              types.String `tfsdk:"uid"`
}

type ephemeralAccessModel struct {
	Name    types.String `tfsdk:"name"`
	Runtime types.String `tfsdk:"runtime"`
	Spec    types.String `tfsdk:"spec"`
}

// accessInput is the attribute of a resource that takes an access object.
func accessInput(description string) schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		Required: true,
		MarkdownDescription: description + " Usually the `access` of the resource that made the cluster. Exactly one of `kubeconfig`, " +
			"`kubeconfig_path`, `cluster_name` and `ephemeral_cluster` says how it is reached. A change of the object alone never " +
			"replaces this resource.",
		Attributes: accessMembers(false),
		Validators: []validator.Object{accessSource{}},
	}
}

// accessOutput is the computed attribute access of a resource that makes a cluster.
func accessOutput(description string) schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		Computed:            true,
		MarkdownDescription: description,
		Attributes:          accessMembers(true),
	}
}

func accessMembers(computed bool) map[string]schema.Attribute {
	text := func(description string, sensitive bool) schema.StringAttribute {
		return schema.StringAttribute{Computed: computed, Optional: !computed, Sensitive: sensitive, MarkdownDescription: description}
	}
	return map[string]schema.Attribute{
		"kubeconfig":      text("Content of a kubeconfig file.", true),
		"kubeconfig_path": text("Path of a kubeconfig file on the machine that runs Terraform.", false),
		"context":         text("Context of the kubeconfig to use. Defaults to its current context.", false),
		"cluster_name":    text("Name of an entry of the provider's `clusters` map.", false),
		"ephemeral_cluster": schema.SingleNestedAttribute{
			Computed: computed, Optional: !computed,
			MarkdownDescription: "An ephemeral cluster, looked up at the time of use, and started where it is stopped.",
			Attributes: map[string]schema.Attribute{
				"name":    text("Name of the ephemeral cluster.", false),
				"runtime": text("Its runtime.", false),
				"spec":    text("Its specification as JSON, with the credentials of its providers.", true),
			},
		},
		"uid": text("UID of the cluster's namespace `kube-system`, by which two access objects are known to mean the same cluster. "+
			"Set by resources that make a cluster; leave it out in a hand-written object.", false),
	}
}

// accessSource checks that an access object names exactly one way to its
// cluster. Unknown values are left to the apply.
type accessSource struct{}

func (accessSource) Description(context.Context) string {
	return "exactly one of kubeconfig, kubeconfig_path, cluster_name and ephemeral_cluster"
}

func (v accessSource) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (v accessSource) ValidateObject(ctx context.Context, req validator.ObjectRequest, resp *validator.ObjectResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	var model accessModel
	resp.Diagnostics.Append(req.ConfigValue.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(model.check(req.Path)...)
}

// check answers what is wrong with the object as far as it is known.
func (m accessModel) check(at path.Path) diag.Diagnostics {
	var diags diag.Diagnostics
	named, unknown := m.sources()
	switch {
	case len(named) > 1:
		diags.AddAttributeError(at, "Unable to choose how to reach the cluster",
			fmt.Sprintf("%s are set together. Keep exactly one of kubeconfig, kubeconfig_path, cluster_name and ephemeral_cluster.",
				strings.Join(named, " and ")))
	case len(named) == 0 && !unknown:
		diags.AddAttributeError(at, "Unable to find out how to reach the cluster",
			"Set exactly one of kubeconfig, kubeconfig_path, cluster_name and ephemeral_cluster.")
	}
	if given(m.Context) && !unknown && m.Kubeconfig.IsNull() && m.KubeconfigPath.IsNull() {
		diags.AddAttributeError(at.AtName("context"), "Unable to use the context",
			"A context belongs to a kubeconfig: set it together with kubeconfig or kubeconfig_path. "+
				"An entry of the provider's clusters map has its own.")
	}
	return diags
}

// sources answers the names of the sources that are set, and whether one is unknown.
func (m accessModel) sources() (named []string, unknown bool) {
	for _, source := range []struct {
		name  string
		value attr.Value
	}{
		{"kubeconfig", m.Kubeconfig}, {"kubeconfig_path", m.KubeconfigPath},
		{"cluster_name", m.ClusterName}, {"ephemeral_cluster", m.EphemeralCluster},
	} {
		switch {
		case source.value.IsUnknown():
			unknown = true
		case !source.value.IsNull():
			named = append(named, source.name)
		}
	}
	return named, unknown
}

// accessFrom reads an access object. known is false when a value that is needed
// to reach the cluster is not known yet, as at a plan before the cluster exists.
func accessFrom(ctx context.Context, object types.Object) (access kube.Access, known bool, diags diag.Diagnostics) {
	if object.IsNull() || object.IsUnknown() {
		return kube.Access{}, false, nil
	}
	var model accessModel
	diags.Append(object.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if diags.HasError() {
		return kube.Access{}, false, diags
	}
	if _, unknown := model.sources(); unknown || model.Context.IsUnknown() {
		return kube.Access{}, false, diags
	}
	access = kube.Access{
		KubeconfigPath: model.KubeconfigPath.ValueString(),
		Context:        model.Context.ValueString(),
		ClusterName:    model.ClusterName.ValueString(),
		UID:            model.UID.ValueString(),
	}
	if given(model.Kubeconfig) {
		access.Kubeconfig = []byte(model.Kubeconfig.ValueString())
	}
	if model.EphemeralCluster.IsNull() {
		return access, true, diags
	}
	var ephemeral ephemeralAccessModel
	diags.Append(model.EphemeralCluster.As(ctx, &ephemeral, basetypes.ObjectAsOptions{})...)
	if diags.HasError() || ephemeral.Name.IsUnknown() || ephemeral.Runtime.IsUnknown() || ephemeral.Spec.IsUnknown() {
		return kube.Access{}, false, diags
	}
	access.Ephemeral = &kube.Ephemeral{
		Name:    ephemeral.Name.ValueString(),
		Runtime: ephemeral.Runtime.ValueString(),
		Spec:    []byte(ephemeral.Spec.ValueString()),
	}
	return access, true, diags
}

// accessObject writes an access object. What is empty becomes null.
func accessObject(access kube.Access) types.Object {
	ephemeral := types.ObjectNull(ephemeralAccessTypes)
	if access.Ephemeral != nil {
		ephemeral = types.ObjectValueMust(ephemeralAccessTypes, map[string]attr.Value{
			"name":    textOrNull(access.Ephemeral.Name),
			"runtime": textOrNull(access.Ephemeral.Runtime),
			"spec":    textOrNull(string(access.Ephemeral.Spec)),
		})
	}
	return types.ObjectValueMust(accessTypes, map[string]attr.Value{
		"kubeconfig":        textOrNull(string(access.Kubeconfig)),
		"kubeconfig_path":   textOrNull(access.KubeconfigPath),
		"context":           textOrNull(access.Context),
		"cluster_name":      textOrNull(access.ClusterName),
		"ephemeral_cluster": ephemeral,
		"uid":               textOrNull(access.UID),
	})
}

func textOrNull(text string) types.String {
	if text == "" {
		return types.StringNull()
	}
	return types.StringValue(text)
}

// sameness is what two access objects tell about the clusters they mean.
type sameness int

const (
	// undecided means that only the cluster itself can tell: Update compares its
	// UID with the cluster_uid that the consumer keeps in state.
	undecided sameness = iota
	// sameCluster means that at most the credentials changed.
	sameCluster
	// otherCluster means that the resource now belongs to another cluster.
	otherCluster
)

// compareAccess compares a prior and a planned access object by identity: by
// uid where both have one, by name and runtime of an ephemeral cluster, and by
// value where nothing but equality can be seen.
func compareAccess(ctx context.Context, prior, planned types.Object) sameness {
	if prior.Equal(planned) && !planned.IsUnknown() {
		return sameCluster
	}
	var before, after accessModel
	if prior.IsNull() || prior.IsUnknown() || planned.IsNull() || planned.IsUnknown() ||
		prior.As(ctx, &before, basetypes.ObjectAsOptions{}).HasError() || planned.As(ctx, &after, basetypes.ObjectAsOptions{}).HasError() {
		return undecided
	}
	if given(before.UID) && given(after.UID) {
		return same(before.UID.Equal(after.UID))
	}
	if before.EphemeralCluster.IsNull() || after.EphemeralCluster.IsNull() {
		return undecided
	}
	var was, is ephemeralAccessModel
	if before.EphemeralCluster.IsUnknown() || after.EphemeralCluster.IsUnknown() ||
		before.EphemeralCluster.As(ctx, &was, basetypes.ObjectAsOptions{}).HasError() ||
		after.EphemeralCluster.As(ctx, &is, basetypes.ObjectAsOptions{}).HasError() ||
		!given(was.Name) || !given(is.Name) {
		return undecided
	}
	return same(was.Name.Equal(is.Name) && (was.Runtime.Equal(is.Runtime) || is.Runtime.IsUnknown()))
}

func same(equal bool) sameness {
	if equal {
		return sameCluster
	}
	return otherCluster
}
