// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package preflight finds out, before anything is made, whether this machine
// lets an ordinary user run the local runtime, and what an administrator has to
// set where it does not.
package preflight

import (
	"errors"
	"fmt"
	"strings"
)

// Finding is something that stands in the way, or may do so later.
type Finding struct {
	// Fatal says that the local runtime cannot work as things are.
	Fatal bool
	// Problem says what was found.
	Problem string
	// Remedy says what to set, with the exact command where there is one.
	Remedy string
}

// String is the finding in one line.
func (f Finding) String() string {
	if f.Remedy == "" {
		return f.Problem
	}
	return f.Problem + ": " + f.Remedy
}

// Report is all that was found, what is fatal first. It is empty where nothing
// stands in the way; what could not be read is not in it.
type Report []Finding

// Err is nil unless something fatal was found, and else says all of that.
func (r Report) Err() error {
	var fatal []string
	for _, f := range r {
		if f.Fatal {
			fatal = append(fatal, f.String())
		}
	}
	if len(fatal) == 0 {
		return nil
	}
	return errors.New("the local runtime does not work on this machine: " + strings.Join(fatal, "; "))
}

// Warnings are the findings that are not fatal, a line each.
func (r Report) Warnings() []string {
	var lines []string
	for _, f := range r {
		if !f.Fatal {
			lines = append(lines, f.String())
		}
	}
	return lines
}

// setSysctl is the remedy for a kernel setting.
func setSysctl(name string, value int) string {
	return fmt.Sprintf("run `sudo sysctl -w %[1]s=%[2]d`, and to keep it write `%[1]s = %[2]d` to /etc/sysctl.d/90-capi.conf", name, value)
}
