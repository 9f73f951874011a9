// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// serveVariable makes the test binary a provider plugin: its value is the file
// that it writes its process id to.
const serveVariable = "CAPI_TEST_SERVE_PROVIDER"

func TestMain(m *testing.M) {
	local.ReexecMain()
	proxmoxPoll, proxmoxLease = 20*time.Millisecond, time.Millisecond
	helmLeases = kube.Leases{Duration: 2 * time.Second, Renewal: 500 * time.Millisecond}
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
	for _, name := range []string{"terraform", "tofu"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if name == "tofu" {
			_ = os.Setenv("TF_ACC_TERRAFORM_PATH", path)
			_ = os.Setenv("TF_ACC_PROVIDER_HOST", "registry.opentofu.org")
		}
		return path
	}
	t.Skip("neither terraform nor tofu is on the PATH, and TF_ACC_TERRAFORM_PATH names none")
	return ""
}
