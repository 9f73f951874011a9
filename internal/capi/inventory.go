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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Method says who installed a provider and looks after it.
type Method string

// The methods of installing providers.
const (
	Clusterctl Method = "clusterctl"
	Operator   Method = "operator"
)

// operatorGroup is the API of cluster-api-operator (v0.28.0, api/v1alpha2).
const operatorGroup = "operator.cluster.x-k8s.io/v1alpha2"

const inventoryDefinition = "providers.clusterctl.cluster.x-k8s.io"

// Installed is a provider that a cluster's inventory names.
type Installed struct {
	Type      Type
	Name      string
	Namespace string
	// Version is what is installed; empty while the operator has not installed
	// anything yet.
	Version string
	Method  Method
}

// Label names the provider among all: "infrastructure-proxmox".
func (i Installed) Label() string { return clusterctlv1.ManifestLabel(i.Name, i.Type) }

// Inventory lists the providers of a cluster, whoever installed them, in the
// order of their labels. A cluster without any answers an empty list. An error
// means that it is not known.
func Inventory(ctx context.Context, restConfig *rest.Config) ([]Installed, error) {
	reader, err := (&proxy{config: restConfig}).NewClient(ctx)
	if err != nil {
		return nil, err
	}
	return inventory(ctx, reader)
}

func inventory(ctx context.Context, reader client.Client) ([]Installed, error) {
	found, err := clusterctlInventory(ctx, reader)
	if err != nil {
		return nil, err
	}
	for _, kind := range Types() {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(operatorGroup)
		list.SetKind(string(kind) + "List")
		switch err := kube.Classify(reader.List(ctx, list)); {
		case errors.Is(err, kube.ErrAbsent):
			continue
		case err != nil:
			return nil, fmt.Errorf("listing the operator's %ss: %w", kind, err)
		}
		for i := range list.Items {
			found = append(found, operatorInstalled(&list.Items[i], kind))
		}
	}
	slices.SortFunc(found, func(a, b Installed) int {
		return strings.Compare(a.Label()+"/"+a.Namespace, b.Label()+"/"+b.Namespace)
	})
	return found, nil
}

func operatorInstalled(object *unstructured.Unstructured, kind Type) Installed {
	installed, _, _ := unstructured.NestedString(object.Object, "status", "installedVersion")
	return Installed{Type: kind, Name: object.GetName(), Namespace: object.GetNamespace(), Version: installed, Method: Operator}
}

func clusterctlInventory(ctx context.Context, reader client.Client) ([]Installed, error) {
	list := &clusterctlv1.ProviderList{}
	switch err := kube.Classify(reader.List(ctx, list)); {
	case errors.Is(err, kube.ErrAbsent):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("listing clusterctl's inventory: %w", err)
	}
	var found []Installed
	for i := range list.Items {
		item := &list.Items[i]
		found = append(found, Installed{
			Type: item.GetProviderType(), Name: item.ProviderName, Namespace: item.Namespace, Version: item.Version, Method: Clusterctl,
		})
	}
	return found, nil
}

// inventoryClient answers clusterctl's questions about its inventory from
// [Inventory]: clusterctl writes objects of its own, the operator writes none,
// and clusterctl refuses to move to a cluster whose inventory is empty.
type inventoryClient struct{ client.Client }

// List answers the inventory, and passes every other question on.
func (c *inventoryClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	providers, ok := list.(*clusterctlv1.ProviderList)
	if !ok {
		return c.Client.List(ctx, list, options...)
	}
	found, err := inventory(ctx, c.Client)
	if err != nil {
		return err
	}
	providers.Items = nil
	for _, i := range found {
		item := clusterctlv1.Provider{ProviderName: i.Name, Type: string(i.Type), Version: i.Version}
		item.Namespace, item.Name = i.Namespace, i.Label()
		providers.Items = append(providers.Items, item)
	}
	return nil
}

// Get answers that the inventory's definition is there, since clusterctl would
// create it, and passes every other question on.
func (c *inventoryClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	definition, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok || key.Name != inventoryDefinition {
		return c.Client.Get(ctx, key, object, options...)
	}
	definition.Name = inventoryDefinition
	definition.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: clusterctlv1.GroupVersion.Version}}
	return nil
}

// Clusters lists the Cluster objects of a cluster as namespace/name. One without
// Cluster API holds none; an error means that it is not known.
func Clusters(ctx context.Context, restConfig *rest.Config) ([]string, error) {
	reader, err := (&proxy{config: restConfig}).NewClient(ctx)
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(clusterv1.GroupVersion.String())
	list.SetKind("ClusterList")
	switch err := kube.Classify(reader.List(ctx, list)); {
	case errors.Is(err, kube.ErrAbsent):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("listing the Clusters at %s: %w", restConfig.Host, err)
	}
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].GetNamespace() + "/" + list.Items[i].GetName()
	}
	slices.Sort(names)
	return names, nil
}
