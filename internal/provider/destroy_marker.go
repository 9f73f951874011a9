// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
)

// destroyKey is the key in a resource's private state that says: the plan was to
// destroy it for good. Measured with Terraform 1.11.4 and OpenTofu 1.12.6: a
// plain replacement calls Delete without a plan of its own, so that the mark is
// missing there; `destroy`, a removed block and the deposed half of
// create_before_destroy plan with a null plan and so set it.
const destroyKey = "destroy"

// privateReader and privateWriter are the framework's private state, whose type
// is internal to it.
type privateReader interface {
	GetKey(ctx context.Context, key string) ([]byte, diag.Diagnostics)
}

type privateWriter interface {
	SetKey(ctx context.Context, key string, value []byte) diag.Diagnostics
}

// planDestroy marks a plan that destroys the resource, and answers whether it
// is one. ModifyPlan calls it first and returns when it answers true and has
// nothing to refuse.
func planDestroy(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) bool {
	if !req.Plan.Raw.IsNull() {
		return false
	}
	resp.Diagnostics.Append(markDestroy(ctx, resp.Private)...)
	return true
}

func markDestroy(ctx context.Context, private privateWriter) diag.Diagnostics {
	return private.SetKey(ctx, destroyKey, []byte("true"))
}

// destroyPlanned answers in Delete whether the resource is destroyed for good,
// as opposed to being replaced. In a replacement Delete of an unfinished
// resource leaves its objects to the Create that follows.
func destroyPlanned(ctx context.Context, private privateReader) (bool, diag.Diagnostics) {
	value, diags := private.GetKey(ctx, destroyKey)
	return string(value) == "true", diags
}
