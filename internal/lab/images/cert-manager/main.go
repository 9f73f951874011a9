// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Command cert-manager is cert-manager for the lab: controller, webhook,
// cainjector and startupapicheck in one binary.
//
// cert-manager's own commands are nested modules that the Go module proxy does
// not serve, so this starts the packages that they start, of the published
// module github.com/cert-manager/cert-manager. Only what Cluster API needs is
// linked in: the certificate controllers with the SelfSigned and CA issuers.
// Without ACME, Vault, Venafi and the ingress and gateway shims the cloud
// providers' SDKs stay out of the build. Flags of the originals that belong to
// these parts are accepted and ignored, so that the charts' arguments work.
//
// This module's path lies below cert-manager's, since the webhook is one of
// its internal packages.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/util"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// command is one of cert-manager's programs.
type command struct {
	name string
	run  func(ctx context.Context, flags *pflag.FlagSet, args []string) error
}

var commands = []command{
	{"controller", runController},
	{"webhook", runWebhook},
	{"cainjector", runCAInjector},
	{"startupapicheck", runStartupAPICheck},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "cert-manager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "--version" {
		fmt.Println("cert-manager", util.AppVersion)
		return nil
	}
	for _, c := range commands {
		if len(args) == 0 || args[0] != c.name {
			continue
		}
		flags := pflag.NewFlagSet(c.name, pflag.ContinueOnError)
		flags.ParseErrorsAllowlist.UnknownFlags = true
		ctrl.SetLogger(klog.Background())
		if err := c.run(logf.NewContext(ctx, klog.Background(), c.name), flags, args[1:]); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		return nil
	}
	return errors.New("usage: cert-manager controller|webhook|cainjector|startupapicheck [flags]")
}

// clientFlags are the flags that all but the webhook have.
type clientFlags struct {
	kubeconfig *string
	verbosity  *string
}

func addClientFlags(flags *pflag.FlagSet) clientFlags {
	verbosity := flags.StringP("v", "v", "0", "how much to log")
	// The chart's check passes a bare -v.
	flags.Lookup("v").NoOptDefVal = "1"
	return clientFlags{
		kubeconfig: flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "file with the connection; without one, the pod's service account"),
		verbosity:  verbosity,
	}
}

// apply sets the log level and returns the connection.
func (f clientFlags) apply(program string) (*rest.Config, error) {
	var level klog.Level
	if err := level.Set(*f.verbosity); err != nil {
		return nil, fmt.Errorf("flag --v: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", *f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("finding the API server: %w", err)
	}
	config.UserAgent = "cert-manager-" + program + "/" + util.AppVersion
	return config, nil
}

// electionFlags are the flags of programs that have one leader.
type electionFlags struct {
	enabled   *bool
	namespace *string
}

func addElectionFlags(flags *pflag.FlagSet) electionFlags {
	return electionFlags{
		enabled:   flags.Bool("leader-elect", true, "work only as the elected leader"),
		namespace: flags.String("leader-election-namespace", "kube-system", "where the lease is"),
	}
}
