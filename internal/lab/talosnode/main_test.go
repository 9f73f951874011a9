// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"os"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.ReexecMain() // pods are this program again
	os.Exit(m.Run())
}
