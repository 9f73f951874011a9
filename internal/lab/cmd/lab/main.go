// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Command lab builds and runs the lab: a Cluster API world in which all
// software is real and only the hypervisor is simulated.
//
//	go run ./internal/lab/cmd/lab images   build all images, the repository and the charts
//	go run ./internal/lab/cmd/lab cli      print the path of terraform, tofu or an OpenTofu built here
//	go run ./internal/lab/cmd/lab up       start a lab in the background (-dir, -block, -release, -speed, -bare)
//	go run ./internal/lab/cmd/lab run      the same in the foreground
//	go run ./internal/lab/cmd/lab status   say what it holds
//	go run ./internal/lab/cmd/lab down     stop it and remove all that it made
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// subcommand is one word that lab understands.
type subcommand struct {
	name, help string
	run        func(ctx context.Context, args []string) error
}

func subcommands() []subcommand {
	return append([]subcommand{
		{"images", "build all images, the repository and the charts", runImages},
		{"cli", "print the path of a Terraform-compatible command, built if there is none", runCLI},
	}, append(labCommands(), quickstartCommands()...)...)
}

func main() {
	local.ReexecMain()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	commands := subcommands()
	if len(args) > 0 {
		i := slices.IndexFunc(commands, func(c subcommand) bool { return c.name == args[0] })
		if i >= 0 {
			return commands[i].run(ctx, args[1:])
		}
	}
	fmt.Fprintln(os.Stderr, "usage: lab SUBCOMMAND [argument ...]")
	for _, c := range commands {
		fmt.Fprintf(os.Stderr, "  %-10s %s\n", c.name, c.help)
	}
	return errors.New("no such subcommand")
}

// reporter prints progress with the time since the start.
func reporter() progress.Reporter {
	start := time.Now()
	return func(_ context.Context, _, message string) {
		fmt.Fprintf(os.Stderr, "[%4.0fs] %s\n", time.Since(start).Seconds(), message)
	}
}
