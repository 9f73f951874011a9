// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"errors"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/diag"
)

func TestAFailureSaysCauseStateAndNextStep(t *testing.T) {
	for name, test := range map[string]struct {
		failure failure
		detail  string
	}{
		"the cause alone": {failure{verb: "read", thing: "it", cause: errors.New("dial: refused")}, "Dial: refused."},
		"all three parts": {
			failure{verb: "read", thing: "it", cause: errors.New("it refused"), exists: "a half-made VM 100", next: "run apply again"},
			"It refused.\n\nWhat exists now: A half-made VM 100.\n\nWhat to do next: Run apply again.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var diags diag.Diagnostics
			test.failure.addTo(&diags)
			if got := diags[0].Summary(); got != "Unable to read it" {
				t.Errorf("summary %q", got)
			}
			if got := diags[0].Detail(); got != test.detail {
				t.Errorf("detail %q, want %q", got, test.detail)
			}
		})
	}
}
