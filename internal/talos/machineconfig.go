// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talos

import (
	"errors"
	"fmt"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
)

// KnownVersion is the newest Talos whose machine configuration is known here.
const KnownVersion = "v1.13"

// CheckPatch reads a patch of a machine configuration as CABPT does: it must be a
// strategic merge patch or a JSON patch, without a key that Talos does not know.
func CheckPatch(text string) error {
	if _, err := configpatcher.LoadPatch([]byte(text)); err != nil {
		return errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	return nil
}

// CheckVersionContract wants a version as TalosConfig's talosVersion takes it:
// v1.13, or a whole one such as v1.13.7.
func CheckVersionContract(version string) error {
	if !strings.HasPrefix(version, "v") {
		return fmt.Errorf("%q does not start with v", version)
	}
	if _, err := config.ParseContractFromVersion(version); err != nil {
		return fmt.Errorf("%q is not a version of Talos: %w", version, err)
	}
	return nil
}

// SupportsKubernetes answers why a Talos version does not run a version of
// Kubernetes, by Talos's own table. A newer Talos than [KnownVersion] is not
// judged.
func SupportsKubernetes(talosVersion, kubernetesVersion string) error {
	contract, err := config.ParseContractFromVersion(talosVersion)
	if err != nil {
		return fmt.Errorf("reading Talos version %q: %w", talosVersion, err)
	}
	if contract.Greater(config.TalosVersion1_13) {
		return nil
	}
	version, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: contract.String()})
	if err != nil {
		return fmt.Errorf("reading Talos version %q: %w", talosVersion, err)
	}
	kubernetes, err := compatibility.ParseKubernetesVersion(kubernetesVersion)
	if err != nil {
		return fmt.Errorf("reading Kubernetes version %q: %w", kubernetesVersion, err)
	}
	return kubernetes.SupportedWith(version)
}
