// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build tools

// Package tools pins the main packages that the lab builds, so that go.mod and
// go.sum cover their whole dependency graphs.
package tools

import (
	_ "github.com/ionos-cloud/cluster-api-provider-proxmox/cmd"
)
