// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

// checkIgnored checks the text of a field in ignore_fields.
func checkIgnored(text string) error {
	_, err := cluster.ParseIgnored(text)
	return err
}

func (m *managementClusterModel) ignored(ctx context.Context) ([]cluster.IgnoredField, error) {
	var texts []string
	if diags := m.IgnoreFields.ElementsAs(ctx, &texts, false); diags.HasError() {
		return nil, errors.New("ignore_fields cannot be read")
	}
	var ignored []cluster.IgnoredField
	for _, text := range texts {
		f, err := cluster.ParseIgnored(text)
		if err != nil {
			return nil, err
		}
		ignored = append(ignored, f)
	}
	return ignored, nil
}

// refreshDrift compares the cluster's objects with the manifest in state. That it
// cannot is a warning, and the drift stays as it was.
func (m *managementClusterModel) refreshDrift(ctx context.Context, home cluster.Home) diag.Diagnostics {
	var diags diag.Diagnostics
	if m.Manifest.ValueString() == "" || m.Phase.ValueString() != phaseReady {
		return nil
	}
	values, found := m.values(ctx)
	diags.Append(found...)
	ignored, err := m.ignored(ctx)
	var manifest *cluster.Manifest
	if err == nil {
		manifest, err = cluster.Load(m.Manifest.ValueString(), values)
	}
	var lines []string
	if err == nil {
		lines, err = home.Drift(ctx, manifest, ignored)
	}
	if err != nil {
		failure{verb: "compare", thing: m.thing() + " with its manifest", cause: err, exists: "the cluster is as it was, and so is the attribute drift"}.warn(&diags)
		return diags
	}
	m.Drift = textOrNull(strings.Join(lines, "\n"))
	return diags
}

// expiryWarning is how long before its end a client certificate is warned of.
const expiryWarning = 30 * 24 * time.Hour

func (m *managementClusterModel) setExpiry() {
	m.KubeconfigExpiry = timeOrNull(kube.KubeconfigEnd([]byte(m.Kubeconfig.ValueString())))
	m.TalosconfigExpiry = timeOrNull(talos.TalosconfigEnd([]byte(m.Talosconfig.ValueString())))
}

func timeOrNull(t time.Time) types.String {
	if t.IsZero() {
		return types.StringNull()
	}
	return types.StringValue(t.UTC().Format(time.RFC3339))
}

func (m *managementClusterModel) warnOfExpiry(now time.Time) diag.Diagnostics {
	var diags diag.Diagnostics
	for name, at := range map[string]types.String{"kubeconfig": m.KubeconfigExpiry, "talosconfig": m.TalosconfigExpiry} {
		end, err := time.Parse(time.RFC3339, at.ValueString())
		if err != nil || end.Sub(now) > expiryWarning {
			continue
		}
		diags.AddWarning(fmt.Sprintf("The %s of the management cluster %s/%s ends at %s", name, m.Namespace.ValueString(), m.Name.ValueString(), at.ValueString()),
			"The control plane provider renews it in the Secret of the cluster; that it has not yet may mean that its controllers do not run where the cluster's objects are.")
	}
	return diags
}

// hashRounds makes a guess at a Secret by its hash in state slow.
const hashRounds = 200_000

// secretsHash is the hash of a write-only text, salted by the instance's UUID;
// null for none.
func secretsHash(instance string, secrets types.String) types.String {
	if secrets.ValueString() == "" {
		return types.StringNull()
	}
	key, err := pbkdf2.Key(sha256.New, secrets.ValueString(), []byte(instance), hashRounds, sha256.Size)
	if err != nil {
		return types.StringNull() // the lengths are fixed, so there is no other error
	}
	return types.StringValue(hex.EncodeToString(key))
}

// secretsChanged says whether the Secrets differ from those applied. Those that
// are not known yet, or that an import has not seen, count as unchanged.
func secretsChanged(state *managementClusterModel, secrets types.String) bool {
	if secrets.IsUnknown() || state.SecretsHash.IsNull() && secrets.IsNull() || state.Instance.IsNull() {
		return false
	}
	return !secretsHash(state.Instance.ValueString(), secrets).Equal(state.SecretsHash)
}
