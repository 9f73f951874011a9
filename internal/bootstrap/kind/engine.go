// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kind

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/kind/pkg/cluster/nodes"
	kindexec "sigs.k8s.io/kind/pkg/exec"
	"sigs.k8s.io/kind/pkg/log"
)

// Engines are the container engines that kind works with, in the order in which
// they are looked for (sigs.k8s.io/kind v0.33.0, pkg/cluster/provider.go).
func Engines() []string { return []string{"docker", "nerdctl", "podman"} }

// errNoEngine says that this machine has no engine's command at all.
var errNoEngine = errors.New("there is no container engine here: none of the commands " + strings.Join(Engines(), ", ") + " is on the PATH")

// engine is a container engine that answers.
type engine struct {
	name string
	*cluster.Provider
}

func newEngine(name string, logger log.Logger) *engine {
	option := cluster.ProviderWithDocker()
	switch name {
	case "podman":
		option = cluster.ProviderWithPodman()
	case "nerdctl":
		option = cluster.ProviderWithNerdctl("")
	}
	return &engine{name, cluster.NewProvider(option, cluster.ProviderWithLogger(logger))}
}

// probe answers the engine of that name, or the first one that answers where the
// name is empty. The error names each one that was tried and quotes what its
// command says, which is where its socket is and what is wrong with it.
func probe(name string, logger log.Logger) (*engine, error) {
	names := Engines()
	if name != "" {
		names = []string{name}
	}
	var faults []error
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			continue
		}
		e := newEngine(name, logger)
		_, err := e.List()
		if err == nil {
			return e, nil
		}
		faults = append(faults, fmt.Errorf("%s does not answer: %w", name, told(err)))
	}
	switch {
	case len(faults) > 0:
		return nil, errors.Join(faults...)
	case name != "":
		return nil, fmt.Errorf("the command %s is not on the PATH: %w", name, exec.ErrNotFound)
	}
	return nil, errNoEngine
}

// told adds to an error of kind's what the command said that failed: kind leaves
// it out (sigs.k8s.io/kind v0.33.0, pkg/exec/types.go).
func told(err error) error {
	failed := kindexec.RunErrorForError(err)
	if err == nil || failed == nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(failed.Output)), "\n")
	if len(lines) > 20 {
		lines = lines[len(lines)-20:]
	}
	output := strings.Join(lines, "\n")
	if output == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, output)
}

// nodesOf answers the containers of a cluster, the stopped ones too.
func (e *engine) nodesOf(name string) ([]nodes.Node, error) {
	found, err := e.ListInternalNodes(name)
	if err != nil {
		return nil, fmt.Errorf("asking %s for the nodes of the cluster %q: %w", e.name, name, told(err))
	}
	return found, nil
}

// kubeconfigOf reads the administrator's kubeconfig out of the control plane.
func (e *engine) kubeconfigOf(name string) ([]byte, error) {
	text, err := e.KubeConfig(name, false)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the cluster %q: %w", name, told(err))
	}
	return []byte(text), nil
}

// stopped answers the names of those nodes whose containers do not run.
func stopped(found []nodes.Node) []string {
	var names []string
	for _, n := range found {
		if n.Command("true").Run() != nil {
			names = append(names, n.String())
		}
	}
	return names
}

// start starts stopped containers. kind has no call for it, and this is how it
// gives orders to an engine itself.
func (e *engine) start(names []string) error {
	if err := kindexec.Command(e.name, append([]string{"start"}, names...)...).Run(); err != nil {
		return fmt.Errorf("starting the stopped containers %s: %w", strings.Join(names, ", "), told(err))
	}
	return nil
}
