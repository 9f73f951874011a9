// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/cluster"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/config"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/repository"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

const (
	certManagerNamespace = "cert-manager"
	// certManagerTrial is the namespace of clusterctl's trial of cert-manager
	// (client/cluster/assets/cert-manager-test-resources.yaml, v1.14.2).
	certManagerTrial = "cert-manager-test"
	// defaultTimeout bounds the waits for which the caller's context has no end.
	defaultTimeout = 15 * time.Minute
)

// InitOptions is what [Init] installs.
type InitOptions struct {
	Providers   []Provider
	CertManager CertManager
	Source      Source
}

// Init makes a cluster hold the given providers, as clusterctl init does, and
// waits until all of them work: Deployments available, webhooks answering. It
// can be called again at any time. A provider that is not there is installed;
// one that is there in the same version is left alone, or, when its variables
// have changed, brought up to date and restarted. One that is there in another
// version, or that the operator looks after, is an error and nothing is done.
// Providers that are installed but not named stay as they are.
func Init(ctx context.Context, restConfig *rest.Config, options InitOptions, report progress.Reporter) error {
	if err := Check(ctx, options.Providers, options.Source); err != nil {
		return fmt.Errorf("checking the providers: %w", err)
	}
	run, err := newInstallation(ctx, restConfig, options, report)
	if err != nil {
		return err
	}
	if err := run.plan(ctx); err != nil {
		return err
	}
	if err := run.certManager(ctx); err != nil {
		return err
	}
	for _, s := range run.steps {
		if err := run.install(ctx, s); err != nil {
			return err
		}
	}
	labels := make([]string, len(options.Providers))
	for i, p := range options.Providers {
		labels[i] = p.Label()
	}
	return WaitReady(ctx, restConfig, labels, report)
}

// installation is one run of Init.
type installation struct {
	options InitOptions
	report  progress.Reporter
	timeout time.Duration
	rest    *rest.Config
	cluster cluster.Client
	reader  client.Client
	steps   []step
}

// step installs a provider, or brings the variables of an installed one up to
// date.
type step struct {
	provider   Provider
	components repository.Components
	restart    bool
}

func newInstallation(ctx context.Context, restConfig *rest.Config, options InitOptions, report progress.Reporter) (*installation, error) {
	timeout := defaultTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	options.Providers = slices.Clone(options.Providers)
	slices.SortStableFunc(options.Providers, func(a, b Provider) int { return a.Type.Order() - b.Type.Order() })
	settings, err := configuration(ctx, options.Providers, &options.CertManager, timeout, options.Source, nil)
	if err != nil {
		return nil, err
	}
	way := &proxy{config: restConfig}
	reader, err := way.NewClient(ctx)
	if err != nil {
		return nil, err
	}
	return &installation{options: options, report: report, timeout: timeout, rest: restConfig, cluster: clusterClient(settings, way), reader: reader}, nil
}

// plan decides what is to be done and has clusterctl check the outcome:
// versions, contracts, one core provider, names of definitions.
func (n *installation) plan(ctx context.Context) error {
	n.report.Report(ctx, "reading-providers", "reading the providers' components and what is installed at "+n.rest.Host)
	if err := n.cluster.ProviderInventory().EnsureCustomResourceDefinitions(ctx); err != nil {
		return fmt.Errorf("preparing clusterctl's inventory: %w", err)
	}
	if err := n.cluster.ProviderInventory().CheckCAPIContract(ctx, cluster.AllowCAPINotInstalled{}); err != nil {
		return fmt.Errorf("checking the Cluster API that is installed: %w", err)
	}
	installed, err := inventory(ctx, n.reader)
	if err != nil {
		return err
	}
	installer := n.cluster.ProviderInstaller()
	for _, p := range n.options.Providers {
		components, err := n.components(ctx, p)
		if err != nil {
			return err
		}
		there, err := n.there(ctx, p, components, installed)
		switch {
		case err != nil:
			return err
		case there == missing:
			installer.Add(components)
			n.steps = append(n.steps, step{provider: p, components: components})
		case there == outdated:
			n.steps = append(n.steps, step{provider: p, components: components, restart: true})
		}
	}
	if err := installer.Validate(ctx); err != nil {
		return fmt.Errorf("checking that the providers work together: %w", err)
	}
	return nil
}

// components renders a provider with the variables that are its own.
func (n *installation) components(ctx context.Context, p Provider) (repository.Components, error) {
	settings, err := configuration(ctx, []Provider{p}, nil, 0, n.options.Source, p.variables())
	if err != nil {
		return nil, err
	}
	configured, err := settings.Providers().Get(p.Name, p.Type)
	if err != nil {
		return nil, fmt.Errorf("configuring clusterctl for %s: %w", p, err)
	}
	components, err := render(ctx, configured, settings, p)
	if err != nil {
		return nil, fmt.Errorf("rendering the components of %s: %w", p, p.redact(err))
	}
	return components, nil
}

func render(ctx context.Context, configured config.Provider, settings config.Client, p Provider) (repository.Components, error) {
	found, err := newRelease(configured, settings)
	if err != nil {
		return nil, err
	}
	components, err := found.Components().Get(ctx, repository.ComponentsOptions{Version: p.Version})
	if err != nil {
		return nil, err
	}
	return components, repository.AlterComponents(components, p.withCredentials)
}

type presence int

const (
	missing presence = iota
	current
	outdated
)

func (n *installation) there(ctx context.Context, p Provider, components repository.Components, installed []Installed) (presence, error) {
	i := slices.IndexFunc(installed, func(i Installed) bool { return i.Label() == p.Label() })
	if i < 0 {
		return missing, nil
	}
	found := installed[i]
	switch {
	case found.Method == Operator:
		return missing, fmt.Errorf("%s is installed by the cluster-api-operator in namespace %s: clusterctl must not install it as well", p.Label(), found.Namespace)
	case found.Namespace != components.TargetNamespace():
		return missing, fmt.Errorf("%s is installed in namespace %s, and its components are for %s: only one may run", p.Label(), found.Namespace, components.TargetNamespace())
	case found.Version != p.Version:
		return missing, fmt.Errorf("%s %s is installed and %s is asked for: an installed provider's version is not changed", p.Label(), found.Version, p.Version)
	}
	entry := &clusterctlv1.Provider{}
	key := client.ObjectKey{Namespace: found.Namespace, Name: p.Label()}
	if err := n.reader.Get(ctx, key, entry); err != nil {
		return missing, fmt.Errorf("reading the inventory's entry of %s: %w", p.Label(), err)
	}
	if hash, ok := entry.Annotations[credentialsHashKey]; ok && hash != p.variablesHash() {
		return outdated, nil
	}
	return current, nil
}

// certManager installs cert-manager where it is ours to install, and waits
// until it issues a certificate.
func (n *installation) certManager(ctx context.Context) error {
	if n.options.CertManager.External {
		n.report.Report(ctx, "waiting-for-cert-manager", "waiting for the cert-manager that somebody else installs")
		return awaitCertManager(ctx, n.reader, n.timeout)
	}
	installed, err := n.certManagerInstalled(ctx)
	if err != nil || installed {
		return err
	}
	n.report.Report(ctx, "installing-cert-manager", "installing cert-manager "+n.options.CertManager.Version+" and waiting until it issues certificates")
	if err := n.awaitTrialGone(ctx); err != nil {
		return err
	}
	if err := n.cluster.CertManager().EnsureInstalled(ctx); err != nil {
		state := describeNamespace(context.WithoutCancel(ctx), n.reader, certManagerNamespace)
		return fmt.Errorf("installing cert-manager %s: %w%s", n.options.CertManager.Version, err, state)
	}
	return nil
}

// awaitCertManager waits for a cert-manager that clusterctl did not install:
// until its webhook lets an Issuer pass that is only tried.
func awaitCertManager(ctx context.Context, writer client.Client, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return kube.Wait(ctx, "cert-manager to take an Issuer", func(ctx context.Context) (bool, string, error) {
		issuer := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cert-manager.io/v1",
			"kind":       "Issuer",
			"metadata":   map[string]any{"name": probeName, "namespace": metav1.NamespaceDefault},
			"spec":       map[string]any{"selfSigned": map[string]any{}},
		}}
		err := writer.Create(ctx, issuer, client.DryRunAll)
		return err == nil, "", err
	})
}

// awaitTrialGone waits until the namespace is gone in which clusterctl tried
// out cert-manager before. clusterctl would take one that is on its way out for
// its own, and then wait for ever for it to take an Issuer.
func (n *installation) awaitTrialGone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	return kube.Wait(ctx, "the end of namespace "+certManagerTrial, func(ctx context.Context) (bool, string, error) {
		namespace := &corev1.Namespace{}
		err := kube.Classify(n.reader.Get(ctx, client.ObjectKey{Name: certManagerTrial}, namespace))
		switch {
		case kube.IsAbsent(err):
			return true, "", nil
		case err != nil:
			return false, "", err
		}
		return namespace.DeletionTimestamp.IsZero(), "it is still being deleted", nil
	})
}

// certManagerInstalled says whether the asked-for cert-manager works already.
// clusterctl's own test for it takes any version, and installs again when an
// earlier test's namespace is still on its way out. An error is another version.
func (n *installation) certManagerInstalled(ctx context.Context) (bool, error) {
	list := &appsv1.DeploymentList{}
	selector := client.MatchingLabels{clusterctlv1.ClusterctlCoreLabel: clusterctlv1.ClusterctlCoreLabelCertManagerValue}
	if err := n.reader.List(ctx, list, client.InNamespace(certManagerNamespace), selector); err != nil {
		return false, fmt.Errorf("looking for an installed cert-manager: %w", err)
	}
	works := len(list.Items) > 0
	for i := range list.Items {
		if found := list.Items[i].Annotations[clusterctlv1.CertManagerVersionAnnotation]; found != n.options.CertManager.Version {
			return false, fmt.Errorf("cert-manager %s is installed and %s is asked for: its version is not changed", found, n.options.CertManager.Version)
		}
		works = works && unavailable(&list.Items[i]) == ""
	}
	return works && webhooksAnswer(ctx, n.reader, selector) == nil, nil
}

func (n *installation) install(ctx context.Context, s step) error {
	doing := "installing"
	if s.restart {
		doing = "updating"
		if err := repository.AlterComponents(s.components, s.provider.withRestart); err != nil {
			return fmt.Errorf("updating %s: %w", s.provider, err)
		}
	}
	n.report.Report(ctx, doing+"-providers", fmt.Sprintf("%s %s into namespace %s", doing, s.provider, s.components.TargetNamespace()))
	if err := n.cluster.ProviderComponents().Create(ctx, s.components.Objs()); err != nil {
		return fmt.Errorf("%s %s: %w", doing, s.provider, err)
	}
	// The entry comes last: it says that all components are there.
	entry := s.components.InventoryObject()
	entry.Annotations = map[string]string{credentialsHashKey: s.provider.variablesHash()}
	if err := n.cluster.ProviderInventory().Create(ctx, entry); err != nil {
		return fmt.Errorf("%s %s: writing its inventory entry: %w", doing, s.provider, err)
	}
	return nil
}

// withRestart makes the provider's pods start again with its new variables.
func (p Provider) withRestart(objects []unstructured.Unstructured) ([]unstructured.Unstructured, error) {
	for i := range objects {
		if objects[i].GetKind() != "Deployment" {
			continue
		}
		err := unstructured.SetNestedField(objects[i].Object, p.variablesHash(), "spec", "template", "metadata", "annotations", credentialsHashKey)
		if err != nil {
			return nil, fmt.Errorf("marking Deployment %s for a restart: %w", objects[i].GetName(), err)
		}
	}
	return objects, nil
}

// Ready says whether a cluster holds the given providers in their versions,
// without changing anything: nil means it does. An error made by
// [errors.Join] of one line for each difference says what is missing.
func Ready(ctx context.Context, restConfig *rest.Config, providers []Provider) error {
	installed, err := Inventory(ctx, restConfig)
	if err != nil {
		return err
	}
	var differences []error
	for _, p := range providers {
		i := slices.IndexFunc(installed, func(i Installed) bool { return i.Label() == p.Label() })
		switch {
		case i < 0:
			differences = append(differences, fmt.Errorf("%s: %w", p, kube.ErrAbsent))
		case installed[i].Version != p.Version:
			differences = append(differences, fmt.Errorf("%s: %s is installed", p, installed[i].Version))
		}
	}
	return errors.Join(differences...)
}
