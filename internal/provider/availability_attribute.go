// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
)

// mostReplicas keeps a slip of the finger from filling a small cluster.
const mostReplicas = 9

// availabilityAttribute is how managers survive the loss of a node.
func availabilityAttribute() schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		Optional: true,
		MarkdownDescription: "How the managers of the providers survive the loss of a node, and with `method = \"operator\"` also the operator and the cert-manager that are installed here. " +
			"Set it before a cluster that manages itself replaces its own nodes. What is not set stays as the projects have it.",
		Attributes: map[string]schema.Attribute{
			"replicas": schema.Int64Attribute{
				Optional:            true,
				MarkdownDescription: "Pods of each manager, of which one leads.",
				Validators:          []validator.Int64{int64validator.Between(1, mostReplicas)},
			},
			"spread": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "Label of nodes over whose values the pods of a manager are spread, such as `kubernetes.io/hostname`, as far as there are nodes for it.",
				Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
			},
			"disruption_budget": schema.BoolAttribute{
				Optional:            true,
				MarkdownDescription: "Let at most one pod of each manager be evicted at a time, as when a node is drained. Needs at least two `replicas`, else it would change nothing.",
			},
			"tolerations": schema.ListNestedAttribute{
				Optional:            true,
				MarkdownDescription: "Taints that the managers bear besides those that their projects name.",
				Validators:          []validator.List{listvalidator.SizeAtLeast(1)},
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"key":      schema.StringAttribute{Optional: true, MarkdownDescription: "Key of the taint. None means every taint, with `operator = \"Exists\"`."},
					"operator": schema.StringAttribute{Optional: true, MarkdownDescription: "`Exists` or `Equal`, the default.", Validators: []validator.String{stringvalidator.OneOf("Exists", "Equal")}},
					"value":    schema.StringAttribute{Optional: true, MarkdownDescription: "Value of the taint, with `Equal`."},
					"effect": schema.StringAttribute{
						Optional: true, MarkdownDescription: "`NoSchedule`, `PreferNoSchedule` or `NoExecute`. None means all.",
						Validators: []validator.String{stringvalidator.OneOf("NoSchedule", "PreferNoSchedule", "NoExecute")},
					},
				}},
			},
			"requests": schema.MapAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "What a manager's container asks for, by resource: `{ cpu = \"100m\", memory = \"128Mi\" }`.",
			},
			"limits": schema.MapAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "What a manager's container may use, by resource.",
			},
		},
	}
}

type availabilityModel struct {
	Replicas         types.Int64  `tfsdk:"replicas"`
	Spread           types.String `tfsdk:"spread"`
	DisruptionBudget types.Bool   `tfsdk:"disruption_budget"`
	Tolerations      types.List   `tfsdk:"tolerations"`
	Requests         types.Map    `tfsdk:"requests"`
	Limits           types.Map    `tfsdk:"limits"`
}

type tolerationModel struct {
	Key      types.String `tfsdk:"key"`
	Operator types.String `tfsdk:"operator"`
	Value    types.String `tfsdk:"value"`
	Effect   types.String `tfsdk:"effect"`
}

// availabilityFrom reads the attribute: nil where it is not set. known is false
// while part of it is not known.
func availabilityFrom(ctx context.Context, object types.Object) (availability *capi.Availability, known bool, diags diag.Diagnostics) {
	if object.IsNull() {
		return nil, true, nil
	}
	if object.IsUnknown() {
		return nil, false, nil
	}
	var model availabilityModel
	diags.Append(object.As(ctx, &model, basetypes.ObjectAsOptions{})...)
	if diags.HasError() || model.Replicas.IsUnknown() || model.Spread.IsUnknown() || model.DisruptionBudget.IsUnknown() {
		return nil, false, diags
	}
	at := path.Root("availability")
	availability = &capi.Availability{
		Replicas: int32(model.Replicas.ValueInt64()), //nolint:gosec // a validator bounds it
		Spread:   model.Spread.ValueString(), DisruptionBudget: model.DisruptionBudget.ValueBool(),
	}
	if availability.DisruptionBudget && availability.Replicas < 2 {
		diags.AddAttributeError(at.AtName("disruption_budget"), "Unable to use the availability",
			"A disruption budget with fewer than two replicas lets the only pod be evicted, as without it. Set replicas to 2 or more.")
	}
	tolerations, tolerationsKnown, found := tolerationsFrom(ctx, at.AtName("tolerations"), model.Tolerations)
	diags.Append(found...)
	availability.Tolerations = tolerations
	requests, requestsKnown, found := quantities(at.AtName("requests"), model.Requests)
	diags.Append(found...)
	limits, limitsKnown, found := quantities(at.AtName("limits"), model.Limits)
	diags.Append(found...)
	availability.Requests, availability.Limits = requests, limits
	return availability, tolerationsKnown && requestsKnown && limitsKnown && !diags.HasError(), diags
}

func tolerationsFrom(ctx context.Context, at path.Path, list types.List) (tolerations []corev1.Toleration, known bool, diags diag.Diagnostics) {
	if list.IsUnknown() {
		return nil, false, nil
	}
	var models []tolerationModel
	diags.Append(list.ElementsAs(ctx, &models, true)...)
	if diags.HasError() {
		return nil, false, diags
	}
	for i, m := range models {
		if m.Key.IsUnknown() || m.Operator.IsUnknown() || m.Value.IsUnknown() || m.Effect.IsUnknown() {
			return nil, false, diags
		}
		toleration := corev1.Toleration{
			Key: m.Key.ValueString(), Operator: corev1.TolerationOperator(m.Operator.ValueString()),
			Value: m.Value.ValueString(), Effect: corev1.TaintEffect(m.Effect.ValueString()),
		}
		switch exists := toleration.Operator == corev1.TolerationOpExists; {
		case exists && toleration.Value != "":
			diags.AddAttributeError(at.AtListIndex(i), "Unable to use the toleration", "The operator Exists takes no value.")
		case !exists && toleration.Key == "":
			diags.AddAttributeError(at.AtListIndex(i), "Unable to use the toleration", "A toleration without a key needs the operator Exists: it then bears every taint.")
		}
		tolerations = append(tolerations, toleration)
	}
	return tolerations, true, diags
}

func quantities(at path.Path, values types.Map) (list corev1.ResourceList, known bool, diags diag.Diagnostics) {
	texts, known := textMap(values)
	for name, text := range texts {
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() < 0 {
			diags.AddAttributeError(at.AtMapKey(name), "Unable to use the quantity", fmt.Sprintf("%q is not a quantity such as 100m, 1 or 128Mi.", text))
			continue
		}
		if list == nil {
			list = corev1.ResourceList{}
		}
		list[corev1.ResourceName(name)] = quantity
	}
	return list, known, diags
}
