// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"os"
	"strings"

	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// runShell is bash for the chart's and the images' scripts:
// bash [-e] -c [--] SCRIPT [NAME ARGUMENT ...] or bash FILE [ARGUMENT ...].
func runShell(ctx context.Context, args []string) error {
	var settings []string
	command := false
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		option := args[0]
		args = args[1:]
		if option == "--" {
			break
		}
		letters := strings.TrimPrefix(option, "-")
		if strings.Contains(letters, "c") {
			command = true
			letters = strings.ReplaceAll(letters, "c", "")
		}
		if letters != "" {
			settings = append(settings, "-"+letters)
		}
	}
	if len(args) == 0 {
		return errors.New("there is no script")
	}
	text, name := args[0], "bash"
	args = args[1:]
	if command {
		if len(args) > 0 {
			name, args = args[0], args[1:]
		}
	} else {
		name = text
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		text = string(content)
	}
	return interpret(ctx, name, text, append(append(settings, "--"), args...))
}

func interpret(ctx context.Context, name, text string, params []string) error {
	script, err := syntax.NewParser().Parse(strings.NewReader(text), name)
	if err != nil {
		return err
	}
	runner, err := interp.New(interp.StdIO(os.Stdin, os.Stdout, os.Stderr), interp.Params(params...))
	if err != nil {
		return err
	}
	err = runner.Run(ctx, script)
	var status interp.ExitStatus
	if errors.As(err, &status) {
		return exitCode(status)
	}
	return err
}
