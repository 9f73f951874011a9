// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
)

// cloudMode is the runtime mode of the platform nocloud: the disk image is
// already installed, so the configuration needs no install section.
type cloudMode struct{}

func (cloudMode) String() string        { return "cloud" }
func (cloudMode) RequiresInstall() bool { return false }
func (cloudMode) InContainer() bool     { return false }

// loadMachineConfig loads a machine configuration and validates it as a booting
// Talos v1.13 does, with machinery's own validation. The warnings are returned
// even when the configuration is refused.
func loadMachineConfig(raw []byte) (config.Provider, []string, error) {
	cfg, err := configloader.NewFromBytes(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("load the machine configuration: %w", err)
	}
	warnings, err := cfg.Validate(cloudMode{})
	if err != nil {
		return nil, warnings, fmt.Errorf("validate the machine configuration: %w", err)
	}
	if cfg.Machine() == nil || cfg.Cluster() == nil {
		return nil, warnings, fmt.Errorf("the machine configuration has no machine or no cluster section")
	}
	return cfg, warnings, nil
}

// configHostname is the name that the configuration itself gives, in which case
// the platform's name does not count. Empty means the platform decides.
func configHostname(cfg config.Provider) string {
	if h := cfg.NetworkHostnameConfig(); h != nil {
		return h.Hostname()
	}
	return ""
}

// shortHostname is the name of the Node: without the domain, in lower case, the
// way Talos gives it to the kubelet unless registerWithFQDN is on.
func shortHostname(fqdn string) string {
	short, _, _ := strings.Cut(fqdn, ".")
	return strings.ToLower(short)
}

// virtualIPs are the shared addresses of the control plane, from the interfaces
// of the v1alpha1 document and from Layer2VIPConfig documents.
func virtualIPs(cfg config.Provider) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, d := range cfg.Machine().Network().Devices() {
		if d.Ignore() || d.VIPConfig() == nil {
			continue
		}
		a, err := netip.ParseAddr(d.VIPConfig().IP())
		if err != nil {
			return nil, fmt.Errorf("the virtual IP %q of an interface: %w", d.VIPConfig().IP(), err)
		}
		out = append(out, a)
	}
	for _, v := range cfg.NetworkVirtualIPConfigs() {
		out = append(out, v.VIP())
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// staticAddresses are the addresses that the configuration adds to those of the
// platform.
func staticAddresses(cfg config.Provider) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, d := range cfg.Machine().Network().Devices() {
		if d.Ignore() {
			continue
		}
		for _, text := range d.Addresses() {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("the address %q of an interface: %w", text, err)
			}
			out = append(out, p)
		}
	}
	return out, nil
}
