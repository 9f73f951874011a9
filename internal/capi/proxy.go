// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	addonsv1 "sigs.k8s.io/cluster-api/api/addons/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1beta1 "sigs.k8s.io/cluster-api/api/core/v1beta1" //nolint:staticcheck // clusterctl still reads objects of the deprecated version
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/cluster"
	"sigs.k8s.io/cluster-api/version"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// requestTimeout is clusterctl's own (client/cluster/proxy.go, v1.14.2).
const requestTimeout = 30 * time.Second

// clusterctlScheme holds the types that clusterctl's library works with: a
// copy of its internal/scheme, which cannot be imported.
var clusterctlScheme = sync.OnceValues(func() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	builder := runtime.SchemeBuilder{
		clientgoscheme.AddToScheme,
		apiextensionsv1.AddToScheme,
		clusterctlv1.AddToScheme,
		clusterv1beta1.AddToScheme,
		clusterv1.AddToScheme,
		controlplanev1.AddToScheme,
		addonsv1.AddToScheme,
	}
	return scheme, builder.AddToScheme(scheme)
})

// proxy is clusterctl's way to a cluster, made from a client configuration in
// memory instead of a kubeconfig file. One client serves all calls; the library
// asks for a new one, with a new discovery, before each request.
type proxy struct {
	config *rest.Config
	// readInventory answers requests for the inventory from [Inventory].
	readInventory bool

	once   sync.Once
	client client.Client
	err    error
}

var _ cluster.Proxy = &proxy{}

// GetConfig answers the client configuration.
func (p *proxy) GetConfig() (*rest.Config, error) {
	config := rest.CopyConfig(p.config)
	config.Timeout = requestTimeout
	return config, nil
}

// CurrentNamespace is never asked for by the calls that this package makes,
// which always name their namespaces.
func (p *proxy) CurrentNamespace() (string, error) { return metav1.NamespaceDefault, nil }

// ValidateKubernetesVersion refuses a cluster older than Cluster API supports.
func (p *proxy) ValidateKubernetesVersion() error {
	return version.CheckKubernetesVersion(p.config, version.MinimumKubernetesVersion)
}

// NewClient answers a client that knows the types of clusterctl's library.
func (p *proxy) NewClient(context.Context) (client.Client, error) {
	p.once.Do(func() {
		var scheme *runtime.Scheme
		if scheme, p.err = clusterctlScheme(); p.err != nil {
			return
		}
		config, _ := p.GetConfig()
		if p.client, p.err = client.New(config, client.Options{Scheme: scheme}); p.err != nil {
			p.err = fmt.Errorf("making a client for %s: %w", p.config.Host, p.err)
			return
		}
		if p.readInventory {
			p.client = &inventoryClient{Client: p.client}
		}
	})
	return p.client, p.err
}

// CheckClusterAvailable asks the API server for its version.
func (p *proxy) CheckClusterAvailable(context.Context) error {
	found, err := p.discovery()
	if err != nil {
		return err
	}
	if _, err := found.ServerVersion(); err != nil {
		return fmt.Errorf("asking %s for its version: %w", p.config.Host, err)
	}
	return nil
}

// GetContexts knows no context: there is no kubeconfig.
func (p *proxy) GetContexts(string) ([]string, error) { return nil, nil }

// GetResourceNames lists the names of a kind's objects that begin with prefix.
func (p *proxy) GetResourceNames(ctx context.Context, groupVersion, kind string, options []client.ListOption, prefix string) ([]string, error) {
	items, err := p.list(ctx, groupVersion, kind, options...)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range items {
		if strings.HasPrefix(items[i].GetName(), prefix) {
			names = append(names, items[i].GetName())
		}
	}
	return names, nil
}

// ListResources lists all objects with the given labels, those of namespaced
// kinds in the given namespaces only. As in clusterctl's own proxy, objects of
// the providers' own kinds are left out: to list them needs their conversion
// webhooks.
func (p *proxy) ListResources(ctx context.Context, labels map[string]string, namespaces ...string) ([]unstructured.Unstructured, error) {
	kinds, err := p.discovery()
	if err != nil {
		return nil, err
	}
	lists, err := kinds.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("reading the kinds that %s serves: %w", p.config.Host, err)
	}
	left, err := p.providerKinds(ctx, labels)
	if err != nil {
		return nil, err
	}
	var found []unstructured.Unstructured
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		groupVersion, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("reading the kinds that %s serves: %w", p.config.Host, err)
		}
		for _, resource := range list.APIResources {
			if left.Has(groupVersion.WithKind(resource.Kind).GroupKind()) {
				continue
			}
			in := []string{""}
			if resource.Namespaced {
				in = namespaces
			}
			for _, namespace := range in {
				items, err := p.list(ctx, list.GroupVersion, resource.Kind, client.MatchingLabels(labels), client.InNamespace(namespace))
				if err != nil {
					return nil, err
				}
				found = append(found, items...)
			}
		}
	}
	return found, nil
}

func (p *proxy) providerKinds(ctx context.Context, labels map[string]string) (sets.Set[schema.GroupKind], error) {
	reader, err := p.NewClient(ctx)
	if err != nil {
		return nil, err
	}
	definitions := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := reader.List(ctx, definitions); err != nil {
		return nil, fmt.Errorf("listing CustomResourceDefinitions: %w", err)
	}
	ofCertManager := labels[clusterctlv1.ClusterctlCoreLabel] == clusterctlv1.ClusterctlCoreLabelCertManagerValue
	kinds := sets.Set[schema.GroupKind]{}
	for _, definition := range definitions.Items {
		if _, ofProvider := definition.Labels[clusterv1.ProviderNameLabel]; ofProvider || ofCertManager {
			kinds.Insert(schema.GroupKind{Group: definition.Spec.Group, Kind: definition.Spec.Names.Kind})
		}
	}
	return kinds, nil
}

func (p *proxy) list(ctx context.Context, groupVersion, kind string, options ...client.ListOption) ([]unstructured.Unstructured, error) {
	reader, err := p.NewClient(ctx)
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(groupVersion)
	list.SetKind(kind)
	if err := reader.List(ctx, list, options...); err != nil {
		return nil, fmt.Errorf("listing %s %s: %w", groupVersion, kind, err)
	}
	return list.Items, nil
}

func (p *proxy) discovery() (*discovery.DiscoveryClient, error) {
	config, _ := p.GetConfig()
	found, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", p.config.Host, err)
	}
	return found, nil
}
