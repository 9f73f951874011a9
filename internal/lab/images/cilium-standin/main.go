// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Command cilium-standin stands in for Cilium's programs in the lab, whose
// nodes have no eBPF, no interfaces of their own and no pod network to set up.
// It goes through everything that the real chart asks of Cilium's images: their
// commands, scripts, mounts, probes and service accounts' rights. It then does
// the visible things that a cluster waits for:
//
//   - cilium-dbg build-config reads the ConfigMap and writes it to files;
//   - cilium-agent waits for Cilium's CRDs and for its node's pod range, makes
//     its CiliumNode, writes the CNI configuration and answers /healthz;
//   - cilium-operator-generic takes the leader's lease, makes the real CRDs,
//     and taints and untaints nodes by their agents' readiness;
//   - cilium-envoy-starter opens the listeners of its bootstrap configuration.
//
// What the API server refuses ends the program, as it ends Cilium's. Shell and
// tools are those that the chart's scripts call, and not more.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// program is what one of the names of this binary does.
type program func(ctx context.Context, args []string) error

var programs = map[string]program{
	"cilium-agent":            runAgent,
	"cilium-dbg":              runDebug,
	"cilium-operator-generic": runOperator,
	"cilium-envoy-starter":    runEnvoy,
	"bash":                    runShell,
	"sh":                      runShell,
	"basename":                runBasename,
	"cat":                     runCat,
	"cp":                      runCopy,
	"find":                    runFind,
	"grep":                    runGrep,
	"iptables-restore":        runNothing,
	"iptables-save":           runNothing,
	"mkdir":                   runMkdir,
	"mount":                   runMount,
	"mv":                      runMove,
	"nsenter":                 runNsenter,
	"rm":                      runRemove,
}

// exitCode ends the program with a status and no message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if programs[name] == nil && len(args) > 0 {
		name, args = args[0], args[1:]
	}
	run := programs[name]
	if run == nil {
		fmt.Fprintln(os.Stderr, "usage: cilium-standin PROGRAM [argument ...]; programs:", strings.Join(names(), " "))
		os.Exit(2)
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, args)
	terminated := ctx.Err() != nil
	stop()
	var code exitCode
	switch {
	case err == nil, terminated && errors.Is(err, context.Canceled):
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func names() []string {
	var all []string
	for name := range programs {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
