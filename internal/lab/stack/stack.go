// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package stack runs an example's configuration through the real CLI with the
// provider of this checkout, as a user does.
package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hashicorp/terraform-exec/tfexec"
	tfjson "github.com/hashicorp/terraform-json"
)

// address is the provider's source address, as the examples write it.
const address = "registry.terraform.io/terraform-provider-capi/capi"

// ConfigurationFile is the CLI's configuration in the working folder, by which
// the CLI takes this checkout's provider.
const ConfigurationFile = "cli.tfrc"

// program is the file name of the provider.
const program = "terraform-provider-capi"

// Options says what to run.
type Options struct {
	// Dir is the working folder. It gets a copy of the example, the state and the
	// CLI's configuration, and is kept between runs.
	Dir string
	// Example is the folder with the configuration.
	Example string
	// CLI is the path of terraform or tofu.
	CLI string
	// Provider is the folder that holds the provider's program; see [BuildProvider].
	Provider string
	// Variables become terraform.tfvars.json.
	Variables map[string]any
	// Output takes what the CLI prints; nil drops it.
	Output io.Writer
	// Env is added to the environment of the CLI and so of the provider.
	Env map[string]string
}

// Stack is a working folder with a configuration.
type Stack struct {
	cli    *tfexec.Terraform
	dir    string
	output io.Writer
}

// BuildProvider builds the provider of the checkout whose root is source into
// dir.
func BuildProvider(ctx context.Context, source, dir string) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, program), ".")
	build.Dir = source
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the provider: %w\n%s", err, out)
	}
	return nil
}

// New prepares the working folder. Nothing is run yet.
func New(o Options) (*Stack, error) {
	if err := copyExample(o.Example, o.Dir); err != nil {
		return nil, fmt.Errorf("copying the example %s: %w", o.Example, err)
	}
	variables, err := json.MarshalIndent(o.Variables, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the variables: %w", err)
	}
	configuration := fmt.Sprintf("provider_installation {\n  dev_overrides {\n    %q = %q\n    %q = %q\n  }\n}\n",
		address, o.Provider, strings.Replace(address, "terraform.io", "opentofu.org", 1), o.Provider)
	for name, content := range map[string][]byte{"terraform.tfvars.json": variables, ConfigurationFile: []byte(configuration)} {
		// The variables hold the administrator's token.
		if err := os.WriteFile(filepath.Join(o.Dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	cli, err := tfexec.NewTerraform(o.Dir, o.CLI)
	if err != nil {
		return nil, fmt.Errorf("using %s: %w", o.CLI, err)
	}
	env := map[string]string{}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	env = tfexec.CleanEnv(env)
	env["TF_CLI_CONFIG_FILE"] = filepath.Join(o.Dir, ConfigurationFile)
	env["CHECKPOINT_DISABLE"] = "1"
	for name, value := range o.Env {
		env[name] = value
	}
	if err := cli.SetEnv(env); err != nil {
		return nil, err
	}
	if o.Output == nil {
		o.Output = io.Discard
	}
	cli.SetStdout(o.Output)
	cli.SetStderr(o.Output)
	return &Stack{cli: cli, dir: o.Dir, output: o.Output}, nil
}

func copyExample(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, content, 0o600)
	})
}

// Plan answers whether there is anything to change, and the plan.
func (s *Stack) Plan(ctx context.Context) (bool, *tfjson.Plan, error) {
	file := filepath.Join(s.dir, "plan.bin")
	defer func() { _ = os.Remove(file) }()
	changes, err := s.cli.Plan(ctx, tfexec.Out(file))
	if err != nil {
		return false, nil, err
	}
	defer s.quiet()()
	plan, err := s.cli.ShowPlanFile(ctx, file)
	return changes, plan, err
}

// Apply applies the configuration, with further variables ("name=value").
func (s *Stack) Apply(ctx context.Context, variables ...string) error {
	var options []tfexec.ApplyOption
	for _, v := range variables {
		options = append(options, tfexec.Var(v))
	}
	return s.cli.Apply(ctx, options...)
}

// ApplyTo applies one resource and what it depends on.
func (s *Stack) ApplyTo(ctx context.Context, address string, variables ...string) error {
	options := []tfexec.ApplyOption{tfexec.Target(address)}
	for _, v := range variables {
		options = append(options, tfexec.Var(v))
	}
	return s.cli.Apply(ctx, options...)
}

// Attribute answers an attribute of a resource in state; nil when either is not
// there.
func (s *Stack) Attribute(ctx context.Context, address, name string) (any, error) {
	state, err := s.State(ctx)
	if err != nil {
		return nil, err
	}
	if state.Values == nil || state.Values.RootModule == nil {
		return nil, nil
	}
	for _, r := range state.Values.RootModule.Resources {
		if r.Address == address {
			return r.AttributeValues[name], nil
		}
	}
	return nil, nil
}

// Destroy destroys all that the state holds, with further variables
// ("name=value").
func (s *Stack) Destroy(ctx context.Context, variables ...string) error {
	var options []tfexec.DestroyOption
	for _, v := range variables {
		options = append(options, tfexec.Var(v))
	}
	return s.cli.Destroy(ctx, options...)
}

// State answers the values in state, sensitive ones included.
func (s *Stack) State(ctx context.Context) (*tfjson.State, error) {
	defer s.quiet()()
	return s.cli.Show(ctx)
}

// quiet keeps what the CLI answers to a question, secrets among it, out of the
// output until the function that it answers is called.
func (s *Stack) quiet() func() {
	s.cli.SetStdout(io.Discard)
	return func() { s.cli.SetStdout(s.output) }
}

// Output answers one output.
func (s *Stack) Output(ctx context.Context, name string, value any) error {
	defer s.quiet()()
	outputs, err := s.cli.Output(ctx)
	if err != nil {
		return err
	}
	output, ok := outputs[name]
	if !ok {
		return errors.New("there is no output " + name)
	}
	return json.Unmarshal(output.Value, value)
}
