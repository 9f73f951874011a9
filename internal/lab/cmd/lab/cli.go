// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

// runCLI prints the path of a Terraform-compatible command, for scripts.
func runCLI(ctx context.Context, _ []string) error {
	path, err := artifacts.CLI(ctx, reporter())
	if err != nil {
		return err
	}
	fmt.Println(path)
	return nil
}
