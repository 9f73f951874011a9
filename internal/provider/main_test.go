// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
)

// serveVariable makes the test binary a provider plugin: its value is the file
// that it writes its process id to.
const serveVariable = "CAPI_TEST_SERVE_PROVIDER"

// leaseVariable gives such a plugin another lease on what it makes on Proxmox VE.
const leaseVariable = "CAPI_TEST_LEASE"

func TestMain(m *testing.M) {
	local.ReexecMain()
	// The user's own CLI configuration plays no part; OpenTofu's warning of a
	// missing one would be taken for its version.
	_ = os.Unsetenv("TF_CLI_CONFIG_FILE")
	proxmoxPoll, proxmoxLease = 20*time.Millisecond, time.Millisecond
	if lease, err := time.ParseDuration(os.Getenv(leaseVariable)); err == nil {
		proxmoxLease = lease
	}
	helmLeases = kube.Leases{Duration: 2 * time.Second, Renewal: 500 * time.Millisecond}
	providersLeases = helmLeases
	// A busy machine must not take a lease from a move that is under way.
	pivotLeases = kube.Leases{Duration: 15 * time.Second, Renewal: 500 * time.Millisecond}
	if file := os.Getenv(serveVariable); file != "" {
		os.Exit(servePlugin(file))
	}
	os.Exit(m.Run())
}

func servePlugin(file string) int {
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	err := providerserver.Serve(context.Background(), New("test"), providerserver.ServeOpts{Address: Address, ProtocolVersion: ProtocolVersion})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// cliPath answers the Terraform-compatible CLI that the tests run, and has
// terraform-plugin-testing use the same: it would download one otherwise.
func cliPath(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("TF_ACC_TERRAFORM_PATH"); path != "" {
		return path
	}
	path, err := artifacts.CLI(t.Context(), func(_ context.Context, _, message string) { t.Log(message) })
	if err != nil {
		t.Fatal(err)
	}
	// Not t.Setenv, which would forbid parallel tests: the answer is the same for all.
	_ = os.Setenv("TF_ACC_TERRAFORM_PATH", path)
	if filepath.Base(path) != "terraform" {
		_ = os.Setenv("TF_ACC_PROVIDER_HOST", "registry.opentofu.org")
	}
	return path
}
