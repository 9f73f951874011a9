// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// split parts options from operands.
func split(args []string) (options string, operands []string) {
	for i, arg := range args {
		switch {
		case arg == "--":
			return options, append(operands, args[i+1:]...)
		case strings.HasPrefix(arg, "-") && arg != "-":
			options += strings.TrimLeft(arg, "-")
		default:
			operands = append(operands, arg)
		}
	}
	return options, operands
}

// runNothing is iptables-save and iptables-restore on a host without rules.
func runNothing(context.Context, []string) error { return nil }

func runBasename(_ context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("one operand is wanted")
	}
	fmt.Println(filepath.Base(args[0]))
	return nil
}

func runCat(_ context.Context, args []string) error {
	for _, name := range args {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(content); err != nil {
			return err
		}
	}
	return nil
}

// destination is where a file named from goes that is copied or moved to to.
func destination(from, to string) string {
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		return filepath.Join(to, filepath.Base(from))
	}
	return to
}

func runCopy(_ context.Context, args []string) error {
	_, operands := split(args)
	if len(operands) != 2 {
		return errors.New("two operands are wanted")
	}
	return copyFile(operands[0], destination(operands[0], operands[1]))
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

func runMove(_ context.Context, args []string) error {
	_, operands := split(args)
	if len(operands) != 2 {
		return errors.New("two operands are wanted")
	}
	return os.Rename(operands[0], destination(operands[0], operands[1]))
}

func runRemove(_ context.Context, args []string) error {
	options, operands := split(args)
	remove := os.Remove
	if strings.ContainsAny(options, "rR") {
		remove = os.RemoveAll
	}
	var errs []error
	for _, name := range operands {
		if err := remove(name); err != nil && (!errors.Is(err, os.ErrNotExist) || !strings.Contains(options, "f")) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func runMkdir(_ context.Context, args []string) error {
	options, operands := split(args)
	make := os.Mkdir
	if strings.Contains(options, "p") {
		make = os.MkdirAll
	}
	for _, name := range operands {
		if err := make(name, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// runGrep knows -E, -v, -c and -q, and reads standard input.
func runGrep(_ context.Context, args []string) error {
	options, operands := split(args)
	if len(operands) != 1 {
		return errors.New("only one pattern, for standard input, is understood")
	}
	pattern, err := regexp.Compile(operands[0])
	if err != nil {
		return err
	}
	count := 0
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if pattern.MatchString(lines.Text()) == strings.Contains(options, "v") {
			continue
		}
		count++
		if !strings.ContainsAny(options, "cq") {
			fmt.Println(lines.Text())
		}
	}
	if strings.Contains(options, "c") {
		fmt.Println(count)
	}
	if count == 0 {
		return errors.Join(lines.Err(), exitCode(1))
	}
	return lines.Err()
}

// runMount lists the mounts, and mounts nothing: the lab's nodes have no eBPF
// file system, and an ordinary user's pod may not mount one.
func runMount(_ context.Context, args []string) error {
	if len(args) > 0 {
		fmt.Fprintln(os.Stderr, "mount: nothing is mounted in the lab:", strings.Join(args, " "))
		return nil
	}
	mounts, err := os.Open("/proc/mounts")
	if err != nil {
		return err
	}
	defer func() { _ = mounts.Close() }()
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) > 3 {
			fmt.Printf("%s on %s type %s (%s)\n", f[0], f[1], f[2], f[3])
		}
	}
	return lines.Err()
}

// runNsenter runs nothing either: the host's mount namespace, for which the
// chart enters it, is not the lab's to change. It checks that what should run
// is named.
func runNsenter(_ context.Context, args []string) error {
	_, operands := split(args)
	if len(operands) == 0 {
		return errors.New("no program is named")
	}
	fmt.Fprintln(os.Stderr, "nsenter: the host is left alone in the lab:", strings.Join(args, " "))
	return nil
}

// runFind understands what /cni-uninstall.sh asks: the files of one folder by
// patterns of their names, and -delete.
func runFind(_ context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("no folder is named")
	}
	var patterns []string
	for i, arg := range args[:len(args)-1] {
		if arg == "-name" {
			patterns = append(patterns, args[i+1])
		}
	}
	entries, err := os.ReadDir(args[0])
	if err != nil {
		return err
	}
	for _, entry := range entries {
		matches := func(pattern string) bool {
			ok, err := filepath.Match(pattern, entry.Name())
			return ok && err == nil
		}
		// The first pattern is wanted, and one of the others.
		if !entry.Type().IsRegular() || len(patterns) == 0 || !matches(patterns[0]) ||
			(len(patterns) > 1 && !slices.ContainsFunc(patterns[1:], matches)) {
			continue
		}
		if err := os.Remove(filepath.Join(args[0], entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
