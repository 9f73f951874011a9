// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package chain holds the test of the whole chain below the provider: the real
// controllers of Cluster API build the example's cluster on the simulated
// hypervisor and its simulated Talos nodes, without Terraform.
package chain
