// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cert-manager/cert-manager/pkg/util/cmapichecker"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/wait"
)

// runStartupAPICheck waits until cert-manager's API takes objects.
func runStartupAPICheck(ctx context.Context, flags *pflag.FlagSet, args []string) error {
	client := addClientFlags(flags)
	// The chart asks for details with a bare -v.
	flags.Lookup("v").NoOptDefVal = "1"
	namespace := flags.StringP("namespace", "n", os.Getenv("POD_NAMESPACE"), "where to try to make an object")
	timeout := flags.Duration("wait", 0, "how long to try")
	interval := flags.Duration("interval", 5*time.Second, "how long to wait between tries")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 || flags.Arg(0) != "check" || flags.Arg(1) != "api" {
		return errors.New("usage: startupapicheck check api [--wait=DURATION]")
	}
	config, err := client.apply("startupapicheck")
	if err != nil {
		return err
	}
	if *namespace == "" {
		*namespace = "default"
	}
	checker, err := cmapichecker.New(config, *namespace)
	if err != nil {
		return err
	}
	var last error
	check := func(ctx context.Context) (bool, error) {
		if last = checker.Check(ctx); last != nil {
			fmt.Fprintln(os.Stderr, "not ready:", cmapichecker.TranslateToSimpleError(last))
		}
		return last == nil, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, *interval, *timeout, true, check); err != nil {
		return errors.Join(err, last)
	}
	fmt.Println("The cert-manager API is ready")
	return nil
}
