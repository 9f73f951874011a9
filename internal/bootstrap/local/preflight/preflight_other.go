// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package preflight

import (
	"context"
	"runtime"
)

// Check says that the local runtime is for Linux alone.
func Check(context.Context) Report {
	return Report{{
		Fatal:   true,
		Problem: "the local runtime needs Linux, and this is " + runtime.GOOS,
		Remedy:  `use runtime = "kind" with a container engine, or run Terraform on Linux`,
	}}
}
