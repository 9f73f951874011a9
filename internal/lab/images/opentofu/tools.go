// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build tools

// Package tools pins the main package that the lab builds, so that go.mod and
// go.sum cover its whole dependency graph.
package tools

import (
	_ "github.com/opentofu/opentofu/cmd/tofu"
)
