// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package lab is a world in which the provider can be tried and tested without
// hardware: a simulated Proxmox VE cluster and Talos Image Factory, and behind
// every started machine a simulated Talos node with a real Kubernetes control
// plane. All of it lies in one block of addresses of 127.0.0.0/8, so several
// labs run side by side.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/factory"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/talosnode"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// Options describe a lab.
type Options struct {
	// Dir keeps the lab over restarts. It is required and belongs to one lab.
	Dir string
	// Block is a /24 of 127.0.0.0/8. The zero value takes the block that Dir was
	// used with before, else a free one.
	Block netip.Prefix
	// Artifacts are what control planes and pods come out of. Without them nodes
	// answer their machine API and run no Kubernetes.
	Artifacts *artifacts.Set
	// Control runs the nodes' control planes; nil takes that of the local runtime
	// over Artifacts.
	Control talosnode.Control
	// Timing is how long the hypervisor takes. The zero value takes no time.
	Timing pvesim.Timing
	// Release of Proxmox VE; see [pvesim.Options].
	Release string
	// Observe is told of every call that the hypervisor answers; see [pvesim.Options].
	Observe func(pvesim.Answer)
	// Report takes progress and what machines do.
	Report progress.Reporter
}

// Lab is a running lab.
type Lab struct {
	Options
	// PVE is the hypervisor and Factory the Image Factory.
	PVE     *pvesim.Simulator
	Factory *factory.Factory
	saved   saved
}

// saved is what a lab writes down about itself.
type saved struct {
	Block netip.Prefix `json:"block"`
	// Secret belongs to the administrator's token.
	Secret string `json:"secret"`
}

// TokenID is the administrator's API token in every lab.
const TokenID = superuser + "!" + tokenName

// VariablesFile holds, in a lab's folder, the variables of examples/talos-proxmox
// for this lab while it runs as a process of its own.
const VariablesFile = "talos-proxmox.tfvars.json"

const (
	superuser = "root@pam"
	tokenName = "lab"
	savedFile = "lab.json"
)

// Start runs a lab until [Lab.Close]. ctx bounds the start only. Programs that
// use it with artifacts call sandbox.ReexecMain first in main.
func Start(ctx context.Context, o Options) (*Lab, error) {
	if o.Dir == "" {
		return nil, errors.New("starting the lab: no folder given")
	}
	l := &Lab{Options: o}
	if err := l.load(); err != nil {
		return nil, fmt.Errorf("starting the lab: %w", err)
	}
	control, err := l.control()
	if err != nil {
		return nil, fmt.Errorf("starting the lab: %w", err)
	}
	booter := talosnode.New(talosnode.Options{
		Dir: filepath.Join(o.Dir, "disks"), Control: control, Extensions: l.extensions, Report: o.Report,
	})
	if err := l.listen(ctx, booter); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the lab: %w", err), l.Close())
	}
	if err := l.login(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the lab: %w", err), l.Close())
	}
	o.Report.Report(ctx, "lab", fmt.Sprintf("the lab answers at %s, its Image Factory at %s", l.PVE.URL(), l.Factory.URL()))
	return l, nil
}

func (l *Lab) extensions(schematic string) []string { return l.Factory.Extensions(schematic) }

// load reads what an earlier run wrote down.
func (l *Lab) load() error {
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(l.Dir, savedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &l.saved); err != nil {
		return fmt.Errorf("reading %s: %w", filepath.Join(l.Dir, savedFile), err)
	}
	if l.Block.IsValid() && l.saved.Block.IsValid() && l.Block != l.saved.Block {
		return fmt.Errorf("the lab in %s lies in %s, not in %s", l.Dir, l.saved.Block, l.Block)
	}
	if l.saved.Block.IsValid() {
		l.Block = l.saved.Block
	}
	return nil
}

// login makes the administrator's token, once in the life of a lab.
func (l *Lab) login() error {
	if l.saved.Secret == "" {
		secret, err := l.PVE.CreateToken(superuser, tokenName, false)
		if err != nil {
			return fmt.Errorf("making the administrator's token: %w", err)
		}
		l.saved.Secret = secret
	}
	l.saved.Block = l.Block
	data, err := json.Marshal(l.saved)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.Dir, savedFile), data, 0o600)
}

// TokenSecret is the secret of [TokenID].
func (l *Lab) TokenSecret() string { return l.saved.Secret }

// Close ends everything in the lab. What Dir holds stays.
func (l *Lab) Close() error {
	var errs []error
	if l.PVE != nil {
		errs = append(errs, l.PVE.Close())
	}
	if l.Factory != nil {
		errs = append(errs, l.Factory.Close())
	}
	return errors.Join(errs...)
}

// Variables are those of examples/talos-proxmox for this lab: where things are,
// and nothing else.
func (l *Lab) Variables() map[string]any {
	out := map[string]any{
		"proxmox_endpoint":     l.PVE.URL(),
		"proxmox_token_id":     TokenID,
		"proxmox_token_secret": l.TokenSecret(),
		"proxmox_ca_pem":       string(l.PVE.CA()),
		"factory_url":          l.Factory.URL(),
		"vip":                  l.Address(hostVIP).String(),
		"addresses":            l.Address(hostFirstNode).String() + "-" + l.Address(hostLastNode).String(),
		"prefix":               l.Block.Bits(),
		"gateway":              l.Address(hostGateway).String(),
		"dns_server":           l.Address(hostGateway).String(),
		"runtime":              "local",
	}
	if a := l.Artifacts; a != nil {
		out["images"] = []string{"oci-layout:" + a.ImageLayout}
		out["repository"] = "file://" + a.Repository
		out["charts"] = map[string]string{
			"cilium": a.Charts["cilium"], "talos_ccm": a.Charts["talos-cloud-controller-manager"],
			"cert_manager": a.Charts["cert-manager"], "operator": a.Charts["cluster-api-operator"],
		}
	}
	return out
}
