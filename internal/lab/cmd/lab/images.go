// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

// runImages builds everything that the lab runs, and says where it is.
func runImages(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return errors.New("images takes no arguments")
	}
	set, err := artifacts.Ensure(ctx, reporter())
	if err != nil {
		return err
	}
	fmt.Println("images:    ", set.ImageLayout)
	fmt.Println("repository:", set.Repository)
	for _, name := range slices.Sorted(maps.Keys(set.Charts)) {
		fmt.Println("chart:     ", set.Charts[name])
	}
	return nil
}
