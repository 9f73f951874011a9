// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/stack"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// The quickstart's folder, below the checkout's .lab.
const (
	quickstartDir = ".lab/quickstart"
	bootstrapName = "ephemeral-cluster"
)

func quickstartCommands() []subcommand {
	return []subcommand{
		{"quickstart", "build and start everything, and apply examples/talos-proxmox on it", runQuickstart},
		{"quickstart-down", "destroy what quickstart made and leave nothing", runQuickstartDown},
	}
}

// quickstart is where the parts of a quickstart lie.
type quickstart struct {
	source, dir string
}

func newQuickstart() (quickstart, error) {
	source, err := os.Getwd()
	if err != nil {
		return quickstart{}, err
	}
	if _, err := os.Stat(filepath.Join(source, "examples", "talos-proxmox")); err != nil {
		return quickstart{}, fmt.Errorf("quickstart runs in the root of the checkout: %w", err)
	}
	return quickstart{source: source, dir: filepath.Join(source, filepath.FromSlash(quickstartDir))}, nil
}

func (q quickstart) path(name string) string { return filepath.Join(q.dir, name) }

// variables answers the example's variables, as the lab has written them.
func (q quickstart) variables() (map[string]any, error) {
	content, err := os.ReadFile(filepath.Join(q.path("lab"), lab.VariablesFile))
	if err != nil {
		return nil, fmt.Errorf("reading the lab's variables: %w", err)
	}
	variables := map[string]any{}
	if err := json.Unmarshal(content, &variables); err != nil {
		return nil, fmt.Errorf("reading the lab's variables: %w", err)
	}
	variables["bootstrap_name"] = bootstrapName
	return variables, nil
}

func (q quickstart) stack(ctx context.Context) (*stack.Stack, error) {
	cli, err := artifacts.CLI(ctx, reporter())
	if err != nil {
		return nil, err
	}
	variables, err := q.variables()
	if err != nil {
		return nil, err
	}
	return stack.New(stack.Options{
		Dir: q.path("stack"), Example: filepath.Join(q.source, "examples", "talos-proxmox"), CLI: cli, Provider: q.path("bin"),
		Variables: variables, Output: os.Stdout, Env: map[string]string{"CAPI_STATE_DIR": q.path("state")},
	})
}

func runQuickstart(ctx context.Context, _ []string) error {
	q, err := newQuickstart()
	if err != nil {
		return err
	}
	report := reporter()
	step := func(text string) { report.Report(ctx, "quickstart", text) }
	step("building the provider")
	if err := stack.BuildProvider(ctx, q.source, q.path("bin")); err != nil {
		return err
	}
	step("building the lab's images, or finding them in the cache")
	if _, err := artifacts.Ensure(ctx, report); err != nil {
		return err
	}
	if _, err := lab.Find(q.path("lab")); errors.Is(err, lab.ErrNotRunning) {
		step("starting the lab: a simulated Proxmox VE; everything that will run on it is real")
		if err := runUp(ctx, []string{"-dir", q.path("lab")}); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	s, err := q.stack(ctx)
	if err != nil {
		return err
	}
	step("applying examples/talos-proxmox")
	follow, done := context.WithCancel(ctx)
	defer done()
	s.Follow(follow, report)
	if err := s.Apply(ctx); err != nil {
		return fmt.Errorf("%w\nRun make quickstart again to continue, or make quickstart-down to remove everything", err)
	}
	step("applied")
	return q.show(ctx, s)
}

// show prints the cluster and how to look around.
func (q quickstart) show(ctx context.Context, s *stack.Stack) error {
	var kubeconfig, talosconfig string
	if err := errors.Join(s.Output(ctx, "kubeconfig", &kubeconfig), s.Output(ctx, "talosconfig", &talosconfig)); err != nil {
		return err
	}
	for name, content := range map[string]string{"kubeconfig": kubeconfig, "talosconfig": talosconfig} {
		if err := os.WriteFile(q.path(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	config, err := kube.ConfigFromKubeconfig([]byte(kubeconfig), "")
	if err != nil {
		return err
	}
	client, err := kube.NewClient(config)
	if err != nil {
		return err
	}
	cli, err := artifacts.CLI(ctx, reporter())
	if err != nil {
		return err
	}
	fmt.Printf("\nThe management cluster, which manages itself now:\n\n%s\n", cluster.Home{Client: client, Namespace: "kmgt", Name: "kmgt"}.Tree(ctx))
	fmt.Printf(`
Look around:
  kubectl --kubeconfig %[1]s/kubeconfig get clusters,machines,pods -A
  talosctl --talosconfig %[1]s/talosconfig version
  go run ./internal/lab/cmd/lab status -dir %[1]s/lab     the simulated hypervisor

The configuration, its variables and its state are in %[1]s/stack. To change it and apply:
  export TF_CLI_CONFIG_FILE=%[2]s CAPI_STATE_DIR=%[3]s
  %[4]s -chdir=%[1]s/stack plan

Remove everything: make quickstart-down
`, quickstartDir, filepath.Join(q.path("stack"), stack.ConfigurationFile), q.path("state"), cli)
	return nil
}

// runQuickstartDown destroys through the CLI, as a user would, and then removes
// what is left whatever came of that.
func runQuickstartDown(ctx context.Context, _ []string) error {
	q, err := newQuickstart()
	if err != nil {
		return err
	}
	if _, err := os.Stat(q.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	report := reporter()
	var problems []error
	if _, err := lab.Find(q.path("lab")); err == nil {
		problems = append(problems, q.destroy(ctx, report))
	}
	report.Report(ctx, "quickstart", "removing the bootstrap cluster, if it is still there")
	problems = append(problems, local.Runtime{State: q.path("state")}.Delete(ctx, bootstrapName))
	report.Report(ctx, "quickstart", "stopping the lab")
	problems = append(problems, lab.Stop(ctx, q.path("lab"), false), os.RemoveAll(q.dir))
	return errors.Join(problems...)
}

func (q quickstart) destroy(ctx context.Context, report progress.Reporter) error {
	s, err := q.stack(ctx)
	if err != nil {
		return err
	}
	phase, err := s.Attribute(ctx, "capi_management_cluster.kmgt", "phase")
	if err != nil {
		return err
	}
	if phase == "ready" {
		// A cluster that manages itself cannot delete itself. force_destroy lets the
		// destroy delete exactly its VMs; it must be in state before.
		report.Report(ctx, "quickstart", "applying force_destroy = true to the management cluster")
		if err := s.ApplyTo(ctx, "capi_management_cluster.kmgt", "force_destroy=true"); err != nil {
			return err
		}
	}
	report.Report(ctx, "quickstart", "destroying")
	if err := s.Destroy(ctx, "force_destroy=true"); err != nil {
		return err
	}
	check, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	left, err := lab.Left(check, q.path("lab"))
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("the destroy has left %v on the hypervisor", left)
	}
	return err
}
