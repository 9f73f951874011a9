// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	ctlcluster "sigs.k8s.io/cluster-api/cmd/clusterctl/client/cluster"
)

// withInventory answers a clusterctl client whose inventory of providers is the
// one that side knows. clusterctl reads Provider objects, which a cluster that
// the operator manages does not have, and so refuses it as a target. Nothing is
// written to the cluster, and the check of versions stays in force.
func withInventory(side *Side) ctlcluster.Client {
	proxy := &inventoryProxy{Proxy: side.Cluster.Proxy(), providers: side.Providers}
	// The configuration is not asked during a move.
	return ctlcluster.New(side.Cluster.Kubeconfig(), nil, ctlcluster.InjectProxy(proxy))
}

type inventoryProxy struct {
	ctlcluster.Proxy
	providers func(context.Context) (*clusterctlv1.ProviderList, error)
}

func (p *inventoryProxy) NewClient(ctx context.Context) (client.Client, error) {
	c, err := p.Proxy.NewClient(ctx)
	if err != nil {
		return nil, err
	}
	return &inventoryClient{Client: c, providers: p.providers}, nil
}

type inventoryClient struct {
	client.Client
	providers func(context.Context) (*clusterctlv1.ProviderList, error)
}

// List answers the injected inventory when clusterctl asks for Provider objects.
func (c *inventoryClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	out, ok := list.(*clusterctlv1.ProviderList)
	if !ok {
		return c.Client.List(ctx, list, options...)
	}
	providers, err := c.providers(ctx)
	if err != nil {
		return err
	}
	providers.DeepCopyInto(out)
	return nil
}
