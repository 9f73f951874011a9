// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// Releases and namespaces of the charts, as the projects' own instructions name
// them.
const (
	certManagerRelease = "cert-manager"
	operatorRelease    = "capi-operator"
	operatorNamespace  = "capi-operator-system"
	operatorCore       = "capi-operator"
)

// OperatorOptions is what [EnsureOperator] brings about.
type OperatorOptions struct {
	Providers []Provider
	Source    Source
	// CertManager is cert-manager's chart; nil means that somebody else installs
	// it, and it is only waited for.
	CertManager *helm.Chart
	// Operator is cluster-api-operator's chart.
	Operator helm.Chart
	// Owner is the UUID of whoever owns the releases and the providers. Providers
	// that carry it and are no longer named are removed.
	Owner string
	// Availability, where set, is that of cert-manager and the operator. A
	// provider's own is the provider's.
	Availability *Availability
	// Adopt takes up what somebody else has installed, after an import.
	Adopt bool
}

// operation is one run of EnsureOperator.
type operation struct {
	OperatorOptions
	client    *kube.Client
	report    progress.Reporter
	installed []Installed
}

// EnsureOperator makes a cluster hold cert-manager, the cluster-api-operator and
// the given providers, and waits until all of them work. It continues what an
// earlier run left unfinished, upgrades in place, one provider after the other,
// and restarts a provider whose settings changed. Nothing is taken back to an
// older version. Components reach the operator in ConfigMaps, so the cluster needs
// no way to where they are published. Errors say what each part was waiting
// for.
func EnsureOperator(ctx context.Context, c *kube.Client, options OperatorOptions, report progress.Reporter) error {
	if err := Check(ctx, options.Providers, options.Source); err != nil {
		return fmt.Errorf("checking the providers: %w", err)
	}
	o := &operation{OperatorOptions: options, client: c, report: report}
	if err := o.checkInstalled(ctx); err != nil {
		return err
	}
	leaving, err := o.unnamed(ctx)
	if err != nil {
		return err
	}
	if err := o.charts(ctx); err != nil {
		return err
	}
	ordered := slices.Clone(options.Providers)
	slices.SortStableFunc(ordered, func(a, b Provider) int { return a.Type.Order() - b.Type.Order() })
	var labels []string
	var entries []entry
	for _, p := range ordered {
		e, err := o.apply(ctx, p)
		if err != nil {
			return err
		}
		labels, entries = append(labels, p.Label()), append(entries, e)
		// The operator installs nothing before the core provider is ready, and an
		// upgrade that fails should not find the next one under way.
		if p.Type == Core || o.upgrades(p) {
			if err := o.await(ctx, e); err != nil {
				return err
			}
		}
	}
	for _, e := range entries {
		if err := o.await(ctx, e); err != nil {
			return err
		}
	}
	if err := WaitReady(ctx, c.Config, labels, report); err != nil {
		return err
	}
	for _, e := range entries {
		if err := o.sweep(ctx, e); err != nil {
			return err
		}
	}
	for i := range leaving {
		if err := removeProvider(ctx, c, &leaving[i], report); err != nil {
			return err
		}
	}
	return nil
}

// checkInstalled refuses to bring a second installer to a provider, and to take
// one back to an older version.
func (o *operation) checkInstalled(ctx context.Context) (err error) {
	if o.installed, err = Inventory(ctx, o.client.Config); err != nil {
		return err
	}
	var faults []error
	for _, i := range o.installed {
		if i.Method == Clusterctl {
			faults = append(faults, fmt.Errorf("%s %s in namespace %s was installed by clusterctl: the operator must not install providers beside it", i.Label(), i.Version, i.Namespace))
		}
		for _, p := range o.Providers {
			if p.Label() == i.Label() {
				faults = append(faults, checkUpgrade(p.Label(), i.Version, p.Version))
			}
		}
	}
	return errors.Join(faults...)
}

// upgrades says whether a provider is there in another version.
func (o *operation) upgrades(p Provider) bool {
	return slices.ContainsFunc(o.installed, func(i Installed) bool {
		return i.Label() == p.Label() && i.Version != "" && i.Version != p.Version
	})
}

// unnamed lists the owner's providers that are no longer named. It refuses where
// objects of theirs exist.
func (o *operation) unnamed(ctx context.Context) ([]unstructured.Unstructured, error) {
	leaving, err := ownedProviders(ctx, o.client, o.Owner)
	if err != nil {
		return nil, err
	}
	leaving = slices.DeleteFunc(leaving, func(object unstructured.Unstructured) bool {
		return slices.ContainsFunc(o.Providers, func(p Provider) bool { return p.Label() == labelOf(&object) })
	})
	var faults []error
	for i := range leaving {
		faults = append(faults, checkUnused(ctx, o.client.Client, labelOf(&leaving[i])))
	}
	return leaving, errors.Join(faults...)
}

// charts installs cert-manager and the operator, and waits for their webhooks.
func (o *operation) charts(ctx context.Context) error {
	if o.CertManager != nil {
		values, err := o.Availability.certManagerValues()
		if err != nil {
			return err
		}
		if err := o.release(ctx, certManagerRelease, certManagerNamespace, *o.CertManager, values); err != nil {
			return err
		}
	}
	o.report.Report(ctx, "waiting-for-cert-manager", "waiting until cert-manager takes an Issuer")
	if err := awaitCertManager(ctx, o.client.Client, defaultTimeout); err != nil {
		return fmt.Errorf("%w%s", err, describeNamespace(context.WithoutCancel(ctx), o.client.Client, certManagerNamespace))
	}
	values, err := o.Availability.operatorValues()
	if err != nil {
		return err
	}
	if err := o.release(ctx, operatorRelease, operatorNamespace, o.Operator, values); err != nil {
		return err
	}
	if err := o.operatorBudget(ctx); err != nil {
		return err
	}
	return waitWebhooks(ctx, o.client.Client, "cluster-api-operator", client.MatchingLabels{clusterctlv1.ClusterctlCoreLabel: operatorCore})
}

func (o *operation) release(ctx context.Context, name, namespace string, chart helm.Chart, values map[string]any) error {
	_, err := helm.Engine{Report: o.report}.Ensure(ctx, o.client, helm.Spec{
		Name: name, Namespace: namespace, Chart: chart, Values: values, CreateNamespace: true, Wait: true, Owner: o.Owner, Adopt: o.Adopt,
	})
	if err != nil {
		return fmt.Errorf("installing %s: %w%s", name, err, describeNamespace(context.WithoutCancel(ctx), o.client.Client, namespace))
	}
	return nil
}

// entry is a provider's object for the operator, and what it refers to.
type entry struct {
	provider   Provider
	object     *unstructured.Unstructured
	components string
	config     string
	additional string
}

// apply hands a provider to the operator.
func (o *operation) apply(ctx context.Context, p Provider) (entry, error) {
	o.report.Report(ctx, "installing-providers", "handing "+p.String()+" to the operator")
	found, err := fetch(ctx, p, o.Source)
	if err != nil {
		return entry{}, err
	}
	if err := o.checkNamespace(ctx, p, found.namespace); err != nil {
		return entry{}, err
	}
	if err := o.client.EnsureNamespace(ctx, found.namespace); err != nil {
		return entry{}, err
	}
	e := entry{provider: p, components: found.configMapName()}
	objects := []*unstructured.Unstructured{found.configMap()}
	if len(p.variables()) > 0 {
		secret := p.configSecret(found.namespace)
		e.config = secret.GetName()
		objects = append(objects, secret)
	}
	if p.Credentials != nil && p.Credentials.CA != "" {
		objects = append(objects, p.caConfigMap(found.namespace))
	}
	additional, err := found.additional()
	if err != nil {
		return entry{}, err
	}
	if additional != nil {
		e.additional = additional.GetName()
		objects = append(objects, additional)
	}
	if e.object, err = o.object(p, found, e); err != nil {
		return entry{}, err
	}
	for _, object := range append(objects, e.object) {
		if _, err := o.client.ApplyObject(ctx, object, kube.ApplyOptions{Force: true}); err != nil {
			return entry{}, fmt.Errorf("handing %s to the operator: %w", p, err)
		}
	}
	return e, nil
}

// checkNamespace refuses a provider that is installed in another namespace.
func (o *operation) checkNamespace(ctx context.Context, p Provider, namespace string) error {
	others, err := o.client.Objects(ctx, operatorGroup, string(p.Type), "")
	if err != nil {
		return err
	}
	for i := range others {
		if others[i].GetName() == p.Name && others[i].GetNamespace() != namespace {
			return fmt.Errorf("%s is installed in namespace %s, and its components are for %s: only one may run", p.Label(), others[i].GetNamespace(), namespace)
		}
	}
	return nil
}

func (o *operation) object(p Provider, found *components, e entry) (*unstructured.Unstructured, error) {
	spec := map[string]any{
		"version":     p.Version,
		"fetchConfig": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{componentsLabel: found.hash()}}},
	}
	if e.config != "" {
		spec["configSecret"] = map[string]any{"name": e.config, "namespace": found.namespace}
	}
	if e.additional != "" {
		spec["additionalManifests"] = map[string]any{"name": e.additional, "namespace": found.namespace}
	}
	deployment, err := found.deploymentSpec()
	if err != nil {
		return nil, err
	}
	if len(deployment) > 0 {
		spec["deployment"] = deployment
	}
	patches, err := found.spreadPatches()
	if err != nil {
		return nil, err
	}
	if p.Credentials != nil {
		patch, err := found.mergePatch()
		if err != nil {
			return nil, fmt.Errorf("writing the patch of %s: %w", p, err)
		}
		patches = append(patches, map[string]any{"patch": patch, "target": map[string]any{"kind": "Deployment", "name": capmoxDeployment}})
	}
	if len(patches) > 0 {
		spec["patches"] = patches
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": operatorGroup,
		"kind":       string(p.Type),
		"metadata": map[string]any{
			"name": p.Name, "namespace": found.namespace,
			"annotations": map[string]any{ownerAnnotation: o.Owner},
		},
		"spec": spec,
	}}, nil
}

// await waits until the operator has installed exactly what it was told to.
func (o *operation) await(ctx context.Context, e entry) error {
	o.report.Report(ctx, "waiting-for-providers", "waiting for the operator to install "+e.provider.String())
	err := kube.Wait(ctx, "the operator to install "+e.provider.String(), func(ctx context.Context) (bool, string, error) {
		found, err := o.client.Object(ctx, operatorGroup, e.object.GetKind(), e.object.GetNamespace(), e.object.GetName())
		if err != nil {
			return false, "", err
		}
		return operatorState(found, e.provider.Version)
	})
	if err != nil {
		ctx := context.WithoutCancel(ctx)
		return fmt.Errorf("%w%s%s", err, describeNamespace(ctx, o.client.Client, e.object.GetNamespace()), describeNamespace(ctx, o.client.Client, operatorNamespace))
	}
	return nil
}

func operatorState(object *unstructured.Unstructured, version string) (bool, string, error) {
	seen, _, err := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	if err != nil {
		return false, "", err
	}
	installed, _, err := unstructured.NestedString(object.Object, "status", "installedVersion")
	if err != nil {
		return false, "", err
	}
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return false, "", err
	}
	ready := false
	var faults []string
	for _, item := range conditions {
		condition, ok := item.(map[string]any)
		if !ok {
			continue
		}
		if condition["type"] == "Ready" && condition["status"] == "True" {
			ready = true
		}
		if condition["status"] == "False" {
			faults = append(faults, fmt.Sprintf("%v is false: %v: %v", condition["type"], condition["reason"], condition["message"]))
		}
	}
	if ready && installed == version && seen >= object.GetGeneration() {
		return true, "", nil
	}
	if len(faults) == 0 {
		faults = append(faults, fmt.Sprintf("installed is %q, and generation %d of %d is worked in", installed, seen, object.GetGeneration()))
	}
	return false, strings.Join(faults, "; "), nil
}
