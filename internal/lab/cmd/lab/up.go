// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

func labCommands() []subcommand {
	return []subcommand{
		{"up", "start a lab in the background and say where it answers", runUp},
		{"run", "run a lab in the foreground until it is interrupted", runForeground},
		{"status", "say what a lab holds", runStatus},
		{"down", "stop a lab and remove all that it made", runDown},
	}
}

// labFlags are what up and run understand.
type labFlags struct {
	dir, block, release string
	speed               float64
	bare                bool
}

// defaultDir is a lab's folder, below the checkout's .lab.
const defaultDir = ".lab/lab"

// hypervisorSpeed is how much faster than real hardware the simulated one is by
// default.
const hypervisorSpeed = 5

func parseLab(name string, args []string) (labFlags, error) {
	var f labFlags
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.StringVar(&f.dir, "dir", defaultDir, "folder of the lab")
	set.StringVar(&f.block, "block", "", "addresses of the lab, a /24 of 127.0.0.0/8; without it a free one")
	set.StringVar(&f.release, "release", "", "release of Proxmox VE to simulate")
	set.Float64Var(&f.speed, "speed", hypervisorSpeed, "how much faster than hardware the hypervisor is")
	set.BoolVar(&f.bare, "bare", false, "build no images: nodes answer their machine API and run no Kubernetes")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	if set.NArg() > 0 || f.speed <= 0 {
		return f, fmt.Errorf("%s takes flags only, and -speed is above zero", name)
	}
	var err error
	f.dir, err = filepath.Abs(f.dir)
	return f, err
}

// arguments are those that start the same lab in another process.
func (f labFlags) arguments() []string {
	return []string{
		"run", "-dir", f.dir, "-block", f.block, "-release", f.release, fmt.Sprintf("-speed=%g", f.speed), fmt.Sprintf("-bare=%v", f.bare),
	}
}

func (f labFlags) options(ctx context.Context) (lab.Options, error) {
	o := lab.Options{Dir: f.dir, Release: f.release, Timing: pvesim.RealTiming().Scale(1 / f.speed), Report: reporter()}
	if f.block != "" {
		block, err := netip.ParsePrefix(f.block)
		if err != nil {
			return o, fmt.Errorf("-block: %w", err)
		}
		o.Block = block.Masked()
	}
	if f.bare {
		return o, nil
	}
	set, err := artifacts.Ensure(ctx, o.Report)
	if err != nil {
		return o, err
	}
	o.Artifacts = set
	return o, nil
}

func runUp(ctx context.Context, args []string) error {
	f, err := parseLab("up", args)
	if err != nil {
		return err
	}
	// What takes long is done here, where it can be watched.
	if _, err := f.options(ctx); err != nil {
		return err
	}
	st, err := lab.Detach(ctx, f.dir, f.arguments()...)
	if err != nil {
		return err
	}
	printStatus(st)
	return nil
}

func runForeground(ctx context.Context, args []string) error {
	f, err := parseLab("run", args)
	if err != nil {
		return err
	}
	o, err := f.options(ctx)
	if err != nil {
		return err
	}
	return lab.Serve(ctx, o)
}

func printStatus(st lab.Status) {
	fmt.Println("Proxmox VE:   ", st.Proxmox)
	fmt.Println("Image Factory:", st.Factory)
	fmt.Println("addresses:    ", st.Block)
	fmt.Println("variables:    ", st.Variables)
	fmt.Println("process:      ", st.PID)
}

// parseDir reads the flags of status and down.
func parseDir(name string, args []string) (dir string, keep bool, err error) {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.StringVar(&dir, "dir", defaultDir, "folder of the lab")
	if name == "down" {
		set.BoolVar(&keep, "keep", false, "keep the folder, so that up goes on where the lab stopped")
	}
	if err := set.Parse(args); err != nil {
		return "", false, err
	}
	if set.NArg() > 0 {
		return "", false, errors.New(name + " takes flags only")
	}
	dir, err = filepath.Abs(dir)
	return dir, keep, err
}

func runStatus(ctx context.Context, args []string) error {
	dir, _, err := parseDir("status", args)
	if err != nil {
		return err
	}
	st, err := lab.Find(dir)
	if err != nil {
		return err
	}
	printStatus(st)
	return lab.Describe(ctx, dir, os.Stdout)
}

func runDown(ctx context.Context, args []string) error {
	dir, keep, err := parseDir("down", args)
	if err != nil {
		return err
	}
	return lab.Stop(ctx, dir, keep)
}
