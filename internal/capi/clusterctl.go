// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/cluster"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/config"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/repository"
	"sigs.k8s.io/yaml"
)

// CertManager says which cert-manager the providers' webhooks get their
// certificates from.
type CertManager struct {
	// Version is a release, with its v; ignored where External is set.
	Version string
	// URL is where its manifest of any version lies; empty means the
	// repository given to the engine (label cert-manager), else its releases.
	URL string
	// External means that somebody else installs it; it is only waited for.
	External bool
}

const certManagerURL = "https://github.com/cert-manager/cert-manager/releases/latest/cert-manager.yaml"

func (c CertManager) provider() Provider {
	return Provider{Name: "cert-manager", Version: c.Version, URL: c.URL}
}

// location answers where the manifest lies. In clusterctl's eyes cert-manager
// is a provider without a type.
func (c CertManager) location(ctx context.Context, source Source) (string, error) {
	p := c.provider()
	if p.URL == "" && source.Repository == "" {
		p.URL = certManagerURL
	}
	location, err := componentsURL(ctx, p, source)
	if err != nil {
		return "", err
	}
	return location.String(), nil
}

// configuration is clusterctl's configuration of a set of providers, in
// memory. Its variables are those given and nothing of the environment.
func configuration(ctx context.Context, providers []Provider, certManager *CertManager, timeout time.Duration, source Source, variables map[string]string) (config.Client, error) {
	reader := config.NewMemoryReader()
	for _, p := range providers {
		location, err := componentsURL(ctx, p, source)
		if err != nil {
			return nil, err
		}
		// clusterctl fills variables of the environment into URLs.
		if _, err := reader.AddProvider(p.Name, p.Type, strings.ReplaceAll(location.String(), "$", "%24")); err != nil {
			return nil, fmt.Errorf("configuring clusterctl for %s: %w", p, err)
		}
	}
	if err := reader.Init(ctx, ""); err != nil {
		return nil, fmt.Errorf("configuring clusterctl: %w", err)
	}
	if certManager != nil {
		if err := setCertManager(ctx, reader, *certManager, timeout, source); err != nil {
			return nil, err
		}
	}
	for key, value := range variables {
		reader.Set(key, value)
	}
	client, err := config.New(ctx, "", config.InjectReader(reader))
	if err != nil {
		return nil, fmt.Errorf("configuring clusterctl: %w", err)
	}
	return client, nil
}

func setCertManager(ctx context.Context, reader *config.MemoryReader, certManager CertManager, timeout time.Duration, source Source) error {
	settings := map[string]string{
		"externallyProvisioned": strconv.FormatBool(certManager.External),
		"timeout":               timeout.String(),
	}
	if !certManager.External {
		location, err := certManager.location(ctx, source)
		if err != nil {
			return err
		}
		settings["url"], settings["version"] = strings.ReplaceAll(location, "$", "%24"), certManager.Version
	}
	content, err := yaml.Marshal(settings)
	if err != nil {
		return fmt.Errorf("configuring clusterctl for cert-manager: %w", err)
	}
	reader.Set(config.CertManagerConfigKey, string(content))
	return nil
}

// repositories makes clusterctl read releases through [release].
func repositories(_ context.Context, p config.Provider, client config.Client, _ ...repository.Option) (repository.Client, error) {
	return newRelease(p, client)
}

// ClusterClient answers clusterctl's client of the cluster that a client
// configuration leads to, for reading, describing and moving: its inventory is
// what [Inventory] reads, so it does not matter whether clusterctl or the
// operator installed the providers. It leaves nothing behind in the cluster,
// clusterctl's own CustomResourceDefinition of providers included.
func ClusterClient(ctx context.Context, restConfig *rest.Config) (cluster.Client, error) {
	client, err := configuration(ctx, nil, nil, 0, Source{}, nil)
	if err != nil {
		return nil, err
	}
	return clusterClient(client, &proxy{config: restConfig, readInventory: true}, repositories), nil
}

func clusterClient(client config.Client, p *proxy, releases cluster.RepositoryClientFactory) cluster.Client {
	return cluster.New(cluster.Kubeconfig{}, client, cluster.InjectProxy(p), cluster.InjectRepositoryFactory(releases))
}
