// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

func TestThePreviewTellsWhatTheTargetLacksAndIsNoRefusal(t *testing.T) {
	preview := &pivot.Preview{
		Clusters: []client.ObjectKey{{Namespace: "kmgt", Name: "kmgt"}},
		Counts:   map[string]int64{"Cluster": 1, "Machine": 3},
		Notices:  []string{"Argo CD applies Cluster kmgt/kmgt: suspend it"},
		Lacking:  errors.New("the target lacks the provider infrastructure-proxmox v0.9.0"),
	}
	text := previewText(preview)
	for _, want := range []string{"kmgt/kmgt", "1 Cluster, 3 Machine", "Argo CD applies", "could not take them as it is now", "lacks the provider infrastructure-proxmox v0.9.0"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	preview.Lacking = nil
	if text := previewText(preview); strings.Contains(text, "could not take") {
		t.Errorf("it warns of a target that is ready:\n%s", text)
	}
}
