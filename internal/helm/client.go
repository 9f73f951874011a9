// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"helm.sh/helm/v3/pkg/action"
	helmkube "helm.sh/helm/v3/pkg/kube"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// boundTransport ends every request with a context: Helm's library makes its
// requests with contexts of its own, that nothing cancels.
type boundTransport struct {
	ctx  context.Context
	next http.RoundTripper
}

func (t boundTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.ctx.Err() != nil {
		return nil, context.Cause(t.ctx)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	stop := context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
	resp, err := t.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		stop()
		cancel(nil)
		return nil, err
	}
	resp.Body = &boundBody{ReadCloser: resp.Body, release: func() { stop(); cancel(nil) }}
	return resp, nil
}

// boundBody lets go of the context when the response was read.
type boundBody struct {
	io.ReadCloser
	release func()
}

func (b *boundBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// configure makes Helm's configuration for one release on a cluster. All of its
// requests end with ctx.
func configure(ctx context.Context, c *kube.Client, namespace, name string, report progress.Reporter) (*action.Configuration, error) {
	getter, err := newGetter(ctx, c.Config, namespace)
	if err != nil {
		return nil, err
	}
	cfg := &action.Configuration{}
	// The library's own log is a programmer's; boundClient says what matters to users.
	if err := cfg.Init(getter, namespace, "secret", func(string, ...any) {}); err != nil {
		return nil, fmt.Errorf("setting up Helm: %w", err)
	}
	library, ok := cfg.KubeClient.(*helmkube.Client)
	if !ok {
		return nil, fmt.Errorf("setting up Helm: its client is a %T", cfg.KubeClient)
	}
	library.Namespace = namespace
	clients, err := kubernetes.NewForConfig(getter.config)
	if err != nil {
		return nil, fmt.Errorf("setting up Helm: %w", err)
	}
	cfg.KubeClient = &boundClient{Client: library, ctx: ctx, cluster: c, discovery: getter.live, clients: clients, report: report, release: name}
	cfg.Releases.MaxHistory = historyLimit
	return cfg, nil
}

// getter gives Helm its clients from a configuration in memory.
type getter struct {
	config    *rest.Config
	namespace string
	// live asks the server each time, discovery remembers.
	live      discovery.DiscoveryInterface
	discovery discovery.CachedDiscoveryInterface
	mapper    meta.RESTMapper
}

func newGetter(ctx context.Context, config *rest.Config, namespace string) (*getter, error) {
	bound := rest.CopyConfig(config)
	// The API server's warnings (deprecations) would go to the standard error output.
	bound.WarningHandler = rest.NoWarnings{}
	bound.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundTransport{ctx, next} })
	client, err := discovery.NewDiscoveryClientForConfig(bound)
	if err != nil {
		return nil, fmt.Errorf("making a discovery client for %s: %w", config.Host, err)
	}
	cached := memory.NewMemCacheClient(client)
	return &getter{config: bound, namespace: namespace, live: client, discovery: cached, mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached)}, nil
}

func (g *getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return g.discovery, nil
}

func (g *getter) ToRESTMapper() (meta.RESTMapper, error) { return g.mapper, nil }

// ToRawKubeConfigLoader only tells Helm the namespace: everything else comes
// from ToRESTConfig.
func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	overrides := &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: g.namespace}}
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), overrides)
}
