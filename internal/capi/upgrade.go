// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/cluster"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/config"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/repository"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// checkUpgrade refuses to go from one version of a thing to an older one, which
// the stored objects of the newer one would not survive.
func checkUpgrade(what, from, to string) error {
	if from == "" || from == to {
		return nil
	}
	there, err := version.ParseSemantic(from)
	if err != nil {
		return fmt.Errorf("%s %s is installed, which is not the version of a release: %w", what, from, err)
	}
	if wanted, err := version.ParseSemantic(to); err != nil || wanted.LessThan(there) {
		return fmt.Errorf("%s %s is installed and %s is asked for: nothing is taken back to an older version", what, from, to)
	}
	return nil
}

// upgrade takes the providers that are installed in older versions to those
// asked for, in clusterctl's way: all of them are scaled down first, and then
// replaced one by one, from the core provider on. The inventory has the old
// version until a provider's new components are there, so that a run which is
// cut off is made again by the next.
func (n *installation) upgrade(ctx context.Context) error {
	if len(n.upgrades) == 0 {
		return nil
	}
	var items []cluster.UpgradeItem
	var said []string
	for _, s := range n.upgrades {
		entry := s.components.InventoryObject()
		entry.Version = s.from
		items = append(items, cluster.UpgradeItem{Provider: entry, NextVersion: s.provider.Version})
		said = append(said, fmt.Sprintf("%s from %s to %s", s.provider.Label(), s.from, s.provider.Version))
	}
	n.report.Report(ctx, "upgrading-providers", "upgrading "+strings.Join(said, ", "))
	// Whether they work is waited for when all is done.
	if err := n.cluster.ProviderUpgrader().ApplyCustomPlan(ctx, cluster.UpgradeOptions{}, items...); err != nil {
		return fmt.Errorf("upgrading %s: %w", strings.Join(said, ", "), n.redact(err))
	}
	for _, s := range n.upgrades {
		if err := n.enter(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// redact takes the values of all providers' variables out of an error.
func (n *installation) redact(err error) error {
	for _, p := range n.options.Providers {
		err = p.redact(err)
	}
	return err
}

// repositories makes clusterctl's upgrade install the components that were
// rendered for each provider, with its own variables and settings.
func (n *installation) repositories(ctx context.Context, p config.Provider, settings config.Client, _ ...repository.Option) (repository.Client, error) {
	found, err := newRelease(p, settings)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(n.upgrades, func(s step) bool { return s.provider.Label() == p.ManifestLabel() })
	if i < 0 {
		return found, nil
	}
	return renderedRelease{release: found, components: n.upgrades[i].components}, nil
}

// renderedRelease is a release whose components are rendered already.
type renderedRelease struct {
	*release
	components repository.Components
}

func (r renderedRelease) Components() repository.ComponentsClient { return renderedComponents(r) }

type renderedComponents renderedRelease

func (r renderedComponents) Raw(ctx context.Context, options repository.ComponentsOptions) ([]byte, error) {
	return releaseComponents{r.release}.Raw(ctx, options)
}

func (r renderedComponents) Get(_ context.Context, options repository.ComponentsOptions) (repository.Components, error) {
	if options.Version != r.components.Version() || options.TargetNamespace != r.components.TargetNamespace() {
		return nil, fmt.Errorf("%s %s was rendered for namespace %s, and %s for %s is asked for", r.ManifestLabel(), r.components.Version(), r.components.TargetNamespace(), options.Version, options.TargetNamespace)
	}
	return r.components, nil
}

// unnamed lists the entries of the inventory that are the owner's and no longer
// named, last installed first.
func (n *installation) unnamed(ctx context.Context) ([]clusterctlv1.Provider, error) {
	if n.options.Owner == "" {
		return nil, nil
	}
	list := &clusterctlv1.ProviderList{}
	if err := n.reader.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing clusterctl's inventory: %w", err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(entry clusterctlv1.Provider) bool {
		named := slices.ContainsFunc(n.options.Providers, func(p Provider) bool { return p.Label() == entry.ManifestLabel() })
		return named || entry.Annotations[ownerAnnotation] != n.options.Owner
	})
	slices.SortFunc(list.Items, func(a, b clusterctlv1.Provider) int {
		return b.GetProviderType().Order() - a.GetProviderType().Order()
	})
	return list.Items, nil
}

// checkUnnamed refuses to remove a provider whose objects nobody would look
// after.
func (n *installation) checkUnnamed(ctx context.Context) error {
	entries, err := n.unnamed(ctx)
	if err != nil {
		return err
	}
	var faults []error
	for _, entry := range entries {
		faults = append(faults, checkUnused(ctx, n.reader, entry.ManifestLabel()))
	}
	return errors.Join(faults...)
}

func (n *installation) removeUnnamed(ctx context.Context) error {
	entries, err := n.unnamed(ctx)
	if err != nil {
		return err
	}
	return removeEntries(ctx, n.cluster, entries, n.report)
}

// removeEntries deletes providers that clusterctl installed. Definitions and
// namespaces stay, and the entry goes last.
func removeEntries(ctx context.Context, c cluster.Client, entries []clusterctlv1.Provider, report progress.Reporter) error {
	for _, entry := range entries {
		report.Report(ctx, "removing-providers", "removing "+entry.ManifestLabel()+" "+entry.Version)
		for _, skip := range []bool{true, false} {
			if err := c.ProviderComponents().Delete(ctx, cluster.DeleteOptions{Provider: entry, SkipInventory: skip}); err != nil {
				return fmt.Errorf("removing %s: %w", entry.ManifestLabel(), err)
			}
		}
	}
	return nil
}

// RemoveClusterctl takes away the providers that [Init] installed for owner,
// last installed first. Definitions, namespaces and cert-manager stay, as with
// clusterctl, and so does what carries another owner's mark. It is the caller's
// to see that no Cluster is left.
func RemoveClusterctl(ctx context.Context, restConfig *rest.Config, owner string, report progress.Reporter) error {
	settings, err := configuration(ctx, nil, nil, 0, Source{}, nil)
	if err != nil {
		return err
	}
	way := &proxy{config: restConfig}
	reader, err := way.NewClient(ctx)
	if err != nil {
		return err
	}
	n := &installation{options: InitOptions{Owner: owner}, reader: reader}
	entries, err := n.unnamed(ctx)
	switch {
	case kube.IsAbsent(kube.Classify(err)):
		return nil
	case err != nil:
		return err
	}
	return removeEntries(ctx, clusterClient(settings, way, repositories), entries, report)
}

// checkUnused refuses to let a provider go while objects of its kinds exist.
func checkUnused(ctx context.Context, reader client.Client, label string) error {
	list := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := reader.List(ctx, list, client.MatchingLabels{clusterv1.ProviderNameLabel: label}); err != nil {
		return fmt.Errorf("listing the definitions of %s: %w", label, err)
	}
	var left []string
	for i := range list.Items {
		objects, err := kube.Instances(ctx, reader, &list.Items[i], 0)
		if err != nil {
			return fmt.Errorf("looking for objects of %s, the %s: %w", label, list.Items[i].Spec.Names.Plural, err)
		}
		if count := len(objects); count > 0 {
			left = append(left, fmt.Sprintf("%d %s", count, list.Items[i].Spec.Names.Plural))
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%s cannot be removed: there are %s, which nothing would look after. Delete them first, or name the provider again", label, strings.Join(left, ", "))
	}
	return nil
}
