// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Client-side request rates. The engines make hundreds of small requests (a
// clusterctl init alone some four hundred); client-go's default of 5 a second
// would be the slowest part of an apply.
const (
	requestsPerSecond = 100
	requestBurst      = 200
)

// Connector turns access objects into connections. Its zero value connects
// to everything but ephemeral clusters and entries of the clusters map.
type Connector struct {
	// Resolver answers for ephemeral clusters; nil means none can be reached.
	Resolver Resolver
	// Clusters is the provider's clusters map.
	Clusters map[string]Access
}

// Kubeconfig answers a kubeconfig that holds only the context that access
// means, with every referenced file's content inlined. It is a secret. For an
// ephemeral cluster that is proven not to be here [IsAbsent] holds for the
// error; a file that is not there proves nothing about a cluster.
func (c *Connector) Kubeconfig(ctx context.Context, access Access) ([]byte, error) {
	config, err := c.load(ctx, access)
	if err != nil {
		return nil, err
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		return nil, fmt.Errorf("reading the files that the kubeconfig refers to: %w", err)
	}
	content, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return content, nil
}

// Config answers the client configuration that access means, held in memory
// alone. Errors are as for [Connector.Kubeconfig]; nothing is dialled.
func (c *Connector) Config(ctx context.Context, access Access) (*rest.Config, error) {
	config, err := c.load(ctx, access)
	if err != nil {
		return nil, err
	}
	return restConfig(config)
}

// Client answers a client for the cluster that access means. Errors are as for
// [Connector.Kubeconfig]; nothing is dialled.
func (c *Connector) Client(ctx context.Context, access Access) (*Client, error) {
	config, err := c.Config(ctx, access)
	if err != nil {
		return nil, err
	}
	return NewClient(config)
}

func (c *Connector) load(ctx context.Context, access Access) (*clientcmdapi.Config, error) {
	if err := access.validate(); err != nil {
		return nil, err
	}
	switch {
	case len(access.Kubeconfig) > 0:
		return parse(access.Kubeconfig, access.Context)
	case access.KubeconfigPath != "":
		return loadFile(access.KubeconfigPath, access.Context)
	case access.ClusterName != "":
		return c.loadNamed(ctx, access)
	default:
		return c.loadEphemeral(ctx, access)
	}
}

func (c *Connector) loadNamed(ctx context.Context, access Access) (*clientcmdapi.Config, error) {
	named, ok := c.Clusters[access.ClusterName]
	if !ok {
		return nil, fmt.Errorf("the provider's clusters map has no entry %q", access.ClusterName)
	}
	if named.ClusterName != "" {
		return nil, fmt.Errorf("entry %q of the provider's clusters map refers to another entry, %q", access.ClusterName, named.ClusterName)
	}
	if access.Context != "" {
		named.Context = access.Context
	}
	config, err := c.load(ctx, named)
	if err != nil {
		return nil, fmt.Errorf("entry %q of the provider's clusters map: %w", access.ClusterName, err)
	}
	return config, nil
}

func (c *Connector) loadEphemeral(ctx context.Context, access Access) (*clientcmdapi.Config, error) {
	if c.Resolver == nil {
		return nil, fmt.Errorf("no runtime is at hand to find the ephemeral cluster %q", access.Ephemeral.Name)
	}
	content, err := c.Resolver.Kubeconfig(ctx, *access.Ephemeral)
	if err != nil {
		return nil, fmt.Errorf("finding the ephemeral cluster %q: %w", access.Ephemeral.Name, err)
	}
	return parse(content, access.Context)
}

func (a Access) validate() error {
	var sources []string
	if len(a.Kubeconfig) > 0 {
		sources = append(sources, "kubeconfig")
	}
	if a.KubeconfigPath != "" {
		sources = append(sources, "kubeconfig_path")
	}
	if a.ClusterName != "" {
		sources = append(sources, "cluster_name")
	}
	if a.Ephemeral != nil {
		sources = append(sources, "ephemeral_cluster")
	}
	switch len(sources) {
	case 0:
		return errors.New("the access object names no cluster: set one of kubeconfig, kubeconfig_path, cluster_name and ephemeral_cluster")
	case 1:
		return nil
	default:
		return fmt.Errorf("the access object names more than one cluster: %s", strings.Join(sources, ", "))
	}
}

// parse never quotes the content in an error: it is a secret.
func parse(content []byte, context string) (*clientcmdapi.Config, error) {
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, errors.New("the kubeconfig is not valid: it does not parse as a v1 Config")
	}
	return minify(config, context)
}

func loadFile(path, context string) (*clientcmdapi.Config, error) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("finding the home directory for kubeconfig_path %q: %w", path, err)
		}
		path = filepath.Join(home, rest)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config, err := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}).Load()
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig %s is not valid: it cannot be read or does not parse as a v1 Config", path)
	}
	return minify(config, context)
}

func minify(config *clientcmdapi.Config, context string) (*clientcmdapi.Config, error) {
	if context != "" {
		config.CurrentContext = context
	}
	if config.CurrentContext == "" && len(config.Contexts) == 1 {
		for name := range config.Contexts {
			config.CurrentContext = name
		}
	}
	if config.CurrentContext == "" {
		return nil, errors.New("the kubeconfig has no current context: set context")
	}
	chosen, ok := config.Contexts[config.CurrentContext]
	if !ok {
		return nil, fmt.Errorf("the kubeconfig has no context %q", config.CurrentContext)
	}
	if _, ok := config.Clusters[chosen.Cluster]; !ok {
		return nil, fmt.Errorf("context %q of the kubeconfig names cluster %q, which is not in it", config.CurrentContext, chosen.Cluster)
	}
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return nil, fmt.Errorf("choosing context %q of the kubeconfig: %w", config.CurrentContext, err)
	}
	return config, nil
}

// ConfigFromKubeconfig answers the client configuration of a kubeconfig's
// content and one of its contexts (empty: the current one).
func ConfigFromKubeconfig(content []byte, context string) (*rest.Config, error) {
	config, err := parse(content, context)
	if err != nil {
		return nil, err
	}
	return restConfig(config)
}

func restConfig(config *clientcmdapi.Config) (*rest.Config, error) {
	result, err := clientcmd.NewNonInteractiveClientConfig(*config, config.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("context %q of the kubeconfig: %w", config.CurrentContext, err)
	}
	result.QPS, result.Burst = requestsPerSecond, requestBurst
	// API warnings (deprecations) are the providers' matter and would only fill
	// the plugin's log.
	result.WarningHandler = rest.NoWarnings{}
	result.UserAgent = "terraform-provider-capi"
	return result, nil
}

// KubeconfigFor answers a kubeconfig for a client configuration that holds its
// credentials in memory, under the given name for cluster, user and context.
// It is a secret.
func KubeconfigFor(config *rest.Config, name string) ([]byte, error) {
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server:                   config.Host,
			CertificateAuthorityData: config.CAData,
			InsecureSkipTLSVerify:    config.Insecure,
			TLSServerName:            config.ServerName,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificateData: config.CertData,
			ClientKeyData:         config.KeyData,
			Token:                 config.BearerToken,
			Username:              config.Username,
			Password:              config.Password,
		}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, fmt.Errorf("writing a kubeconfig for %s: %w", name, err)
	}
	return content, nil
}
