// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import "slices"

// endpoints is the table of the API. It is written by hand from the behaviour
// that clients can see and holds what the provider and the Cluster API provider
// for Proxmox VE call, with all of each call's parameters.
var endpoints = slices.Concat(
	clusterEndpoints(), taskEndpoints(), userEndpoints(), accessEndpoints(), storageEndpoints(), agentEndpoints(), vmEndpoints(),
)
