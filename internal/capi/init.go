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
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/cluster"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/repository"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// providersLease is held by a run that changes an owner's providers.
var providersLease = client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "terraform-provider-capi-providers"}

const (
	certManagerNamespace = "cert-manager"
	// finishedAnnotation says that the owner's run came to its end and that its
	// caller keeps the owner's UUID: nobody else takes the providers over.
	finishedAnnotation = "terraform-provider-capi/finished"
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
	// Owner is the UUID of whoever owns the providers: those that carry it and are
	// no longer named are removed. Empty removes none.
	Owner string
	// Adopt takes up what somebody else has installed, after an import.
	Adopt bool
	// Leases can be given other times for tests. Only an owner's run takes one.
	Leases kube.Leases
}

// Init makes a cluster hold the given providers, as clusterctl init and
// clusterctl upgrade do, and waits until all of them work: Deployments
// available, webhooks answering. It can be called again at any time, also after
// a run that was cut off. A provider that is not there is installed; an older
// one is upgraded, in clusterctl's order; one that is there in the same version
// is left alone, or, when its settings have changed, brought up to date and
// restarted. A newer one, and one that the operator looks after, is an error and
// nothing is done.
//
// An owner's providers carry its mark then. Until [Finish] a run of another
// owner takes them over, as if this one had been cut off.
func Init(ctx context.Context, restConfig *rest.Config, options InitOptions, report progress.Reporter) (err error) {
	if err := Check(ctx, options.Providers, options.Source); err != nil {
		return fmt.Errorf("checking the providers: %w", err)
	}
	if options.Owner != "" {
		c, err := (&proxy{config: restConfig}).NewClient(ctx)
		if err != nil {
			return err
		}
		held, lease, err := options.Leases.Acquire(ctx, c, providersLease, options.Owner, report)
		if err != nil {
			return err
		}
		ctx = held
		defer func() { err = errors.Join(err, lease.Release(context.WithoutCancel(ctx))) }()
	}
	return install(ctx, restConfig, options, report)
}

func install(ctx context.Context, restConfig *rest.Config, options InitOptions, report progress.Reporter) error {
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
	if err := run.upgrade(ctx); err != nil {
		return err
	}
	for _, s := range run.steps {
		if err := run.install(ctx, s); err != nil {
			return err
		}
	}
	if err := run.removeUnnamed(ctx); err != nil {
		return err
	}
	if err := WaitReady(ctx, restConfig, Labels(options.Providers), report); err != nil {
		return err
	}
	return run.own(ctx)
}

// own marks those of the named providers that were there already as the owner's.
func (n *installation) own(ctx context.Context) error {
	if n.options.Owner == "" {
		return nil
	}
	return mark(ctx, n.reader, func(entry *clusterctlv1.Provider) bool {
		named := slices.ContainsFunc(n.options.Providers, func(p Provider) bool { return p.Label() == entry.ManifestLabel() })
		if !named || entry.Annotations[ownerAnnotation] == n.options.Owner {
			return false
		}
		metav1.SetMetaDataAnnotation(&entry.ObjectMeta, ownerAnnotation, n.options.Owner)
		delete(entry.Annotations, finishedAnnotation)
		return true
	})
}

// Finish marks the owner's providers as known to be kept somewhere: from now on
// another owner is refused. Whoever called [Init] calls it once the owner's UUID
// cannot be lost any more.
func Finish(ctx context.Context, restConfig *rest.Config, owner string) error {
	c, err := (&proxy{config: restConfig}).NewClient(ctx)
	if err != nil {
		return err
	}
	return mark(ctx, c, func(entry *clusterctlv1.Provider) bool {
		if entry.Annotations[ownerAnnotation] != owner || entry.Annotations[finishedAnnotation] == "true" {
			return false
		}
		metav1.SetMetaDataAnnotation(&entry.ObjectMeta, finishedAnnotation, "true")
		return true
	})
}

// mark writes those entries of clusterctl's inventory that change changes.
func mark(ctx context.Context, c client.Client, change func(*clusterctlv1.Provider) bool) error {
	list := &clusterctlv1.ProviderList{}
	if err := c.List(ctx, list); err != nil {
		return fmt.Errorf("listing clusterctl's inventory: %w", err)
	}
	for i := range list.Items {
		entry := &list.Items[i]
		// A run that took the entry over meanwhile has written it.
		patch := client.MergeFromWithOptions(entry.DeepCopy(), client.MergeFromWithOptimisticLock{})
		if !change(entry) {
			continue
		}
		if err := c.Patch(ctx, entry, patch); err != nil {
			return fmt.Errorf("marking %s as this resource's: %w", entry.ManifestLabel(), err)
		}
	}
	return nil
}

// installation is one run of Init.
type installation struct {
	options   InitOptions
	report    progress.Reporter
	timeout   time.Duration
	rest      *rest.Config
	cluster   cluster.Client
	reader    client.Client
	installed []Installed
	// upgrades come before the steps.
	upgrades []step
	steps    []step
}

// step installs a provider, brings the settings of an installed one up to date,
// or upgrades it.
type step struct {
	provider   Provider
	components repository.Components
	restart    bool
	// from is the version that an upgrade begins at.
	from string
}

func newInstallation(ctx context.Context, restConfig *rest.Config, options InitOptions, report progress.Reporter) (*installation, error) {
	timeout := defaultTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	options.Providers = slices.Clone(options.Providers)
	slices.SortStableFunc(options.Providers, func(a, b Provider) int { return a.Type.Order() - b.Type.Order() })
	way := &proxy{config: restConfig}
	reader, err := way.NewClient(ctx)
	if err != nil {
		return nil, err
	}
	n := &installation{options: options, report: report, timeout: timeout, rest: restConfig, reader: reader}
	report.Report(ctx, "reading-providers", "reading what is installed at "+restConfig.Host)
	if n.installed, err = inventory(ctx, reader); err != nil {
		return nil, err
	}
	settings, err := configuration(ctx, n.known(ctx), &options.CertManager, timeout, options.Source, nil)
	if err != nil {
		return nil, err
	}
	n.cluster = clusterClient(settings, way, n.repositories)
	return n, nil
}

// known are the named providers, and of the others that are installed those
// whose releases can be found: an upgrade asks for the contracts of all.
func (n *installation) known(ctx context.Context) []Provider {
	known := slices.Clone(n.options.Providers)
	for _, i := range n.installed {
		other := Provider{Type: i.Type, Name: i.Name, Version: i.Version}
		if slices.ContainsFunc(known, func(p Provider) bool { return p.Label() == other.Label() }) {
			continue
		}
		if _, err := componentsURL(ctx, other, n.options.Source); err == nil {
			known = append(known, other)
		}
	}
	return known
}

// plan decides what is to be done and has clusterctl check the outcome:
// versions, contracts, one core provider, names of definitions.
func (n *installation) plan(ctx context.Context) error {
	n.report.Report(ctx, "reading-providers", "reading the providers' components")
	if err := n.cluster.ProviderInventory().EnsureCustomResourceDefinitions(ctx); err != nil {
		return fmt.Errorf("preparing clusterctl's inventory: %w", err)
	}
	if err := n.cluster.ProviderInventory().CheckCAPIContract(ctx, cluster.AllowCAPINotInstalled{}); err != nil {
		return fmt.Errorf("checking the Cluster API that is installed: %w", err)
	}
	installer := n.cluster.ProviderInstaller()
	var faults []error
	for _, p := range n.options.Providers {
		components, err := n.components(ctx, p)
		if err != nil {
			return err
		}
		there, from, err := n.there(ctx, p, components)
		switch {
		case err != nil:
			faults = append(faults, err)
		case there == missing:
			installer.Add(components)
			n.steps = append(n.steps, step{provider: p, components: components})
		case there == outdated:
			n.steps = append(n.steps, step{provider: p, components: components, restart: true})
		case there == older:
			n.upgrades = append(n.upgrades, step{provider: p, components: components, from: from})
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if err := installer.Validate(ctx); err != nil {
		return fmt.Errorf("checking that the providers work together: %w", err)
	}
	return n.checkUnnamed(ctx)
}

// components renders a provider with the variables that are its own.
func (n *installation) components(ctx context.Context, p Provider) (repository.Components, error) {
	found, err := openRelease(ctx, p, n.options.Source, p.variables())
	if err != nil {
		return nil, err
	}
	return found.render(ctx, p)
}

// render fills the variables in and makes the changes that the provider's
// settings ask for.
func (r *release) render(ctx context.Context, p Provider) (repository.Components, error) {
	components, err := r.Components().Get(ctx, repository.ComponentsOptions{Version: p.Version})
	if err == nil {
		err = repository.AlterComponents(components, p.withSettings)
	}
	if err != nil {
		return nil, fmt.Errorf("rendering the components of %s: %w", p, p.redact(err))
	}
	return components, nil
}

type presence int

const (
	missing presence = iota
	current
	outdated
	older
)

// there says what is there of a provider, and in which version.
func (n *installation) there(ctx context.Context, p Provider, components repository.Components) (presence, string, error) {
	i := slices.IndexFunc(n.installed, func(i Installed) bool { return i.Label() == p.Label() })
	if i < 0 {
		return missing, "", nil
	}
	found := n.installed[i]
	switch {
	case found.Method == Operator:
		return missing, "", fmt.Errorf("%s is installed by the cluster-api-operator in namespace %s: clusterctl must not install it as well", p.Label(), found.Namespace)
	case found.Namespace != components.TargetNamespace():
		return missing, "", fmt.Errorf("%s is installed in namespace %s, and its components are for %s: only one may run", p.Label(), found.Namespace, components.TargetNamespace())
	}
	if err := checkUpgrade(p.Label(), found.Version, p.Version); err != nil {
		return missing, "", err
	}
	entry := &clusterctlv1.Provider{}
	key := client.ObjectKey{Namespace: found.Namespace, Name: p.Label()}
	if err := n.reader.Get(ctx, key, entry); err != nil {
		return missing, "", fmt.Errorf("reading the inventory's entry of %s: %w", p.Label(), err)
	}
	// What an owner has not finished goes on with whoever holds the lease.
	others := entry.Annotations[ownerAnnotation] == "" || entry.Annotations[finishedAnnotation] == "true"
	if n.options.Owner != "" && entry.Annotations[ownerAnnotation] != n.options.Owner && others && !n.options.Adopt {
		return missing, "", fmt.Errorf("%s is installed in namespace %s, and not by this resource: import it, so that two do not change it", p.Label(), found.Namespace)
	}
	if found.Version != p.Version {
		return older, found.Version, nil
	}
	// An entry without a hash was written by clusterctl itself: whether its
	// variables were the same is not known, and it is left alone.
	if hash, ok := entry.Annotations[credentialsHashKey]; ok && hash != p.settingsHash() {
		return outdated, "", nil
	}
	return current, "", nil
}

// certManager installs cert-manager where it is ours to install, and waits
// until it issues a certificate.
func (n *installation) certManager(ctx context.Context) error {
	if n.options.CertManager.External {
		n.report.Report(ctx, "waiting-for-cert-manager", "waiting for the cert-manager that somebody else installs")
		return awaitCertManager(ctx, n.reader, n.timeout)
	}
	works, older, err := n.installedCertManager(ctx)
	if err != nil || works {
		return err
	}
	n.report.Report(ctx, "installing-cert-manager", "installing cert-manager "+n.options.CertManager.Version+" and waiting until it issues certificates")
	if err := n.awaitTrialGone(ctx); err != nil {
		return err
	}
	if older {
		err = n.cluster.CertManager().EnsureLatestVersion(ctx)
	}
	if err == nil {
		err = n.cluster.CertManager().EnsureInstalled(ctx)
	}
	if err != nil {
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

// installedCertManager says whether the asked-for cert-manager works already, or
// an older one of clusterctl's is there. clusterctl's own test for it takes any
// version, and installs again when an earlier test's namespace is still on its
// way out. An error is a newer version, and one that somebody else looks after.
func (n *installation) installedCertManager(ctx context.Context) (works, older bool, err error) {
	list := &appsv1.DeploymentList{}
	if err := n.reader.List(ctx, list, client.InNamespace(certManagerNamespace)); err != nil {
		return false, false, fmt.Errorf("looking for an installed cert-manager: %w", err)
	}
	works = len(list.Items) > 0
	for i := range list.Items {
		d := &list.Items[i]
		if d.Labels[clusterctlv1.ClusterctlCoreLabel] != clusterctlv1.ClusterctlCoreLabelCertManagerValue {
			return false, false, fmt.Errorf("the Deployment %s/%s was not installed by clusterctl, and is not touched: set external = true for a cert-manager that somebody else looks after", d.Namespace, d.Name)
		}
		found := d.Annotations[clusterctlv1.CertManagerVersionAnnotation]
		if err := checkUpgrade("cert-manager", found, n.options.CertManager.Version); err != nil {
			return false, false, err
		}
		older = older || found != n.options.CertManager.Version
		works = works && unavailable(d) == ""
	}
	if !works || older {
		return false, older, nil
	}
	selector := client.MatchingLabels{clusterctlv1.ClusterctlCoreLabel: clusterctlv1.ClusterctlCoreLabelCertManagerValue}
	return webhooksAnswer(ctx, n.reader, selector) == nil, false, nil
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
	if err := n.sweepBudgets(ctx, s); err != nil {
		return err
	}
	return n.enter(ctx, s)
}

// enter writes a provider's entry into the inventory. It comes last: it says
// that all components are there.
func (n *installation) enter(ctx context.Context, s step) error {
	entry := s.components.InventoryObject()
	entry.Annotations = map[string]string{credentialsHashKey: s.provider.settingsHash()}
	if n.options.Owner != "" {
		entry.Annotations[ownerAnnotation] = n.options.Owner
	}
	if err := n.cluster.ProviderInventory().Create(ctx, entry); err != nil {
		return fmt.Errorf("writing the inventory's entry of %s: %w", s.provider, err)
	}
	return nil
}

// sweepBudgets removes the disruption budgets that a provider's components no
// longer hold.
func (n *installation) sweepBudgets(ctx context.Context, s step) error {
	list := &policyv1.PodDisruptionBudgetList{}
	selector := client.MatchingLabels{clusterv1.ProviderNameLabel: s.provider.Label()}
	if err := n.reader.List(ctx, list, client.InNamespace(s.components.TargetNamespace()), selector); err != nil {
		return fmt.Errorf("listing the disruption budgets of %s: %w", s.provider, err)
	}
	for i := range list.Items {
		budget := &list.Items[i]
		kept := slices.ContainsFunc(s.components.Objs(), func(o unstructured.Unstructured) bool {
			return o.GetKind() == "PodDisruptionBudget" && o.GetName() == budget.Name
		})
		if kept {
			continue
		}
		if err := n.reader.Delete(ctx, budget); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing the disruption budget of %s: %w", s.provider, err)
		}
	}
	return nil
}

// withRestart makes the provider's pods start again with its new settings.
// clusterctl changes a Deployment by a merge patch, in which what is no longer
// set must be null to go.
func (p Provider) withRestart(objects []unstructured.Unstructured) ([]unstructured.Unstructured, error) {
	for i := range objects {
		if objects[i].GetKind() != "Deployment" {
			continue
		}
		err := unstructured.SetNestedField(objects[i].Object, p.settingsHash(), "spec", "template", "metadata", "annotations", credentialsHashKey)
		if err != nil {
			return nil, fmt.Errorf("marking Deployment %s for a restart: %w", objects[i].GetName(), err)
		}
		pod := []string{"spec", "template", "spec"}
		for _, list := range []string{"tolerations", "topologySpreadConstraints"} {
			at := append(slices.Clone(pod), list)
			if _, set, err := unstructured.NestedFieldNoCopy(objects[i].Object, at...); err != nil || set {
				continue
			}
			if err := unstructured.SetNestedField(objects[i].Object, nil, at...); err != nil {
				return nil, fmt.Errorf("clearing %s of Deployment %s: %w", list, objects[i].GetName(), err)
			}
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
