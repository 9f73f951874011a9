// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package plane

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
)

// Program is the test's own binary as a program that does one piece of work and
// can be killed: the work is in the environment variable, as JSON, and the test's
// TestMain looks there. It is not started yet; the buffer takes what it prints.
func Program(t testing.TB, variable string, work any) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	text, err := json.Marshal(work)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	output := &bytes.Buffer{}
	program := exec.CommandContext(t.Context(), self)
	program.Env = append(os.Environ(), variable+"="+string(text))
	program.Stdout, program.Stderr = output, output
	return program, output
}
