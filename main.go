// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Command terraform-provider-capi is the Terraform and OpenTofu provider that
// bootstraps Cluster API management clusters.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/provider"
)

// version is set by the release build.
var version = "dev"

func main() {
	// Pods of a local ephemeral cluster are processes of this very program.
	local.ReexecMain()

	debug := flag.Bool("debug", false, "serve for a debugger: print TF_REATTACH_PROVIDERS and wait")
	flag.Parse()

	err := providerserver.Serve(context.Background(), provider.New(version), providerserver.ServeOpts{
		Address:         provider.Address,
		Debug:           *debug,
		ProtocolVersion: provider.ProtocolVersion,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "Unable to serve the provider:", err)
		os.Exit(1)
	}
}
