// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package bootstrap

import (
	"context"
	"fmt"
	"strings"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// Manager knows the runtimes by name. It resolves the ephemeral clusters of
// access objects.
type Manager map[string]Runtime

var _ kube.Resolver = Manager{}

func (m Manager) runtime(name string) (Runtime, error) {
	runtime, ok := m[name]
	if !ok {
		return nil, fmt.Errorf("runtime %q: %w", name, errNoRuntime)
	}
	return runtime, nil
}

// Ensure makes the cluster that spec describes run with all its providers
// working, and answers its kubeconfig, which is a secret. It continues what an
// earlier call left unfinished. Where the cluster runs but the providers do not
// come up, the kubeconfig is answered together with the error.
func (m Manager) Ensure(ctx context.Context, spec Spec, report progress.Reporter) ([]byte, error) {
	kubeconfig, err := m.start(ctx, spec, report)
	if err != nil {
		return nil, err
	}
	config, err := kube.ConfigFromKubeconfig(kubeconfig, "")
	if err != nil {
		return nil, fmt.Errorf("the ephemeral cluster %q: %w", spec.Name, err)
	}
	if err := capi.Init(ctx, config, spec.initOptions(), report); err != nil {
		return kubeconfig, fmt.Errorf("installing providers into the ephemeral cluster %q: %w", spec.Name, err)
	}
	return kubeconfig, nil
}

func (m Manager) start(ctx context.Context, spec Spec, report progress.Reporter) ([]byte, error) {
	runtime, err := m.runtime(spec.Runtime)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := runtime.Ensure(ctx, spec.cluster(), report)
	if err != nil {
		return nil, fmt.Errorf("starting the ephemeral cluster %q: %w", spec.Name, err)
	}
	return kubeconfig, nil
}

// Wake makes an ephemeral cluster run again that is stopped: this machine was
// switched off, or the cluster has lost one of its programs. It goes on from its
// data, and Wake answers once its providers work. One that runs or that is not
// here is left as it is.
func (m Manager) Wake(ctx context.Context, e kube.Ephemeral, report progress.Reporter) error {
	status, err := m.Status(ctx, e)
	if err != nil {
		return fmt.Errorf("looking for the ephemeral cluster %q: %w", e.Name, err)
	}
	if status != Stopped {
		return nil
	}
	spec, c, err := m.restart(ctx, e, fmt.Sprintf("the ephemeral cluster %q is stopped: it is started again from its data", e.Name), report)
	if err != nil {
		return err
	}
	if err := capi.WaitReady(ctx, c.Config, capi.Labels(spec.Providers), report); err != nil {
		return fmt.Errorf("waiting for the providers of the ephemeral cluster %q, which was stopped: %w", e.Name, err)
	}
	return nil
}

// Kubeconfig answers the kubeconfig of a running ephemeral cluster.
// [kube.IsAbsent] holds for the error when it is not here.
func (m Manager) Kubeconfig(ctx context.Context, e kube.Ephemeral) ([]byte, error) {
	runtime, err := m.runtime(e.Runtime)
	if err != nil {
		return nil, err
	}
	return runtime.Kubeconfig(ctx, e.Name)
}

// Status says what this machine sees of an ephemeral cluster.
func (m Manager) Status(ctx context.Context, e kube.Ephemeral) (Status, error) {
	runtime, err := m.runtime(e.Runtime)
	if err != nil {
		return "", err
	}
	return runtime.Status(ctx, e.Name)
}

// OwnedError says that an ephemeral cluster is not deleted since it holds
// Clusters: their machines would be left without a manager.
type OwnedError struct {
	Name string
	// Clusters are namespace/name.
	Clusters []string
}

// Error names the Clusters.
func (e *OwnedError) Error() string {
	return fmt.Sprintf("the ephemeral cluster %q still holds %s: without it nothing manages their machines", e.Name, strings.Join(e.Clusters, ", "))
}

// Retire deletes an ephemeral cluster that holds no Cluster. One that does is
// left as it is: the error is then an [*OwnedError]. One that is stopped is
// started to be asked, which needs its specification, unless it never ran. One
// that is not here is retired already.
func (m Manager) Retire(ctx context.Context, e kube.Ephemeral, report progress.Reporter) error {
	return m.retire(ctx, e, report, func(context.Context, *kube.Client) error { return nil })
}

// retire deletes the cluster unless it holds Clusters or may says no.
func (m Manager) retire(ctx context.Context, e kube.Ephemeral, report progress.Reporter, may func(context.Context, *kube.Client) error) error {
	runtime, err := m.runtime(e.Runtime)
	if err != nil {
		return err
	}
	status, err := runtime.Status(ctx, e.Name)
	if err != nil {
		return fmt.Errorf("looking for the ephemeral cluster %q: %w", e.Name, err)
	}
	if status == NotHere {
		return nil
	}
	if status == Stopped {
		if gone, err := discard(ctx, runtime, e.Name, report); gone || err != nil {
			return err
		}
	}
	c, err := m.wake(ctx, runtime, e, status, report)
	if err != nil {
		return err
	}
	if err := may(ctx, c); err != nil {
		return err
	}
	owned, err := capi.Clusters(ctx, c.Config)
	if err != nil {
		return fmt.Errorf("asking the ephemeral cluster %q for its Clusters: %w", e.Name, err)
	}
	if len(owned) > 0 {
		return &OwnedError{Name: e.Name, Clusters: owned}
	}
	report.Report(ctx, "retiring", fmt.Sprintf("deleting the ephemeral cluster %q, which holds no Cluster", e.Name))
	if err := runtime.Delete(ctx, e.Name); err != nil {
		return fmt.Errorf("deleting the ephemeral cluster %q: %w", e.Name, err)
	}
	return nil
}

// discard removes a cluster that never ran: to start it in order to ask it for
// its Clusters would fail as its first start did, and nobody could get rid of it.
func discard(ctx context.Context, runtime Runtime, name string, report progress.Reporter) (bool, error) {
	d, ok := runtime.(Discarder)
	if !ok {
		return false, nil
	}
	gone, err := d.Discard(ctx, name)
	if err != nil {
		return false, fmt.Errorf("deleting the ephemeral cluster %q: %w", name, err)
	}
	if gone {
		report.Report(ctx, "retiring", fmt.Sprintf("the ephemeral cluster %q never ran, and its folder was removed", name))
	}
	return gone, nil
}

// wake answers a client for a cluster that is here, started if need be.
func (m Manager) wake(ctx context.Context, runtime Runtime, e kube.Ephemeral, status Status, report progress.Reporter) (*kube.Client, error) {
	if status == Running {
		kubeconfig, err := runtime.Kubeconfig(ctx, e.Name)
		if err != nil {
			return nil, fmt.Errorf("connecting to the ephemeral cluster %q: %w", e.Name, err)
		}
		return connect(kubeconfig)
	}
	_, c, err := m.restart(ctx, e, fmt.Sprintf("starting the stopped ephemeral cluster %q to ask it for its Clusters", e.Name), report)
	return c, err
}

// restart starts a stopped cluster by its specification. why says so.
func (m Manager) restart(ctx context.Context, e kube.Ephemeral, why string, report progress.Reporter) (Spec, *kube.Client, error) {
	spec, err := SpecOf(e)
	if err != nil {
		return spec, nil, err
	}
	report.Report(ctx, "starting", why)
	kubeconfig, err := m.start(ctx, spec, report)
	if err != nil {
		return spec, nil, err
	}
	c, err := connect(kubeconfig)
	return spec, c, err
}
