// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	helmkube "helm.sh/helm/v3/pkg/kube"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/resource"
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

// configure makes Helm's configuration for one namespace of a cluster. All of
// its requests end with ctx.
func configure(ctx context.Context, c *kube.Client, namespace string, report progress.Reporter) (*action.Configuration, error) {
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
	cfg.KubeClient = &boundClient{Client: library, ctx: ctx, clients: clients, report: report}
	return cfg, nil
}

// getter gives Helm its clients from a configuration in memory.
type getter struct {
	config    *rest.Config
	namespace string
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
	return &getter{config: bound, namespace: namespace, discovery: cached, mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached)}, nil
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

// boundClient is Helm's client with three changes: it never deletes a
// CustomResourceDefinition, its waits end with the context, and they say what
// they wait for.
type boundClient struct {
	*helmkube.Client
	ctx     context.Context
	clients kubernetes.Interface
	report  progress.Reporter
}

// Update leaves the CustomResourceDefinitions in place that are no longer in
// the chart.
func (c *boundClient) Update(original, target helmkube.ResourceList, force bool) (*helmkube.Result, error) {
	return c.Client.Update(keepDefinitions(original, target), target, force)
}

// UpdateThreeWayMerge does as [boundClient.Update].
func (c *boundClient) UpdateThreeWayMerge(original, target helmkube.ResourceList, force bool) (*helmkube.Result, error) {
	return c.Client.UpdateThreeWayMerge(keepDefinitions(original, target), target, force)
}

func keepDefinitions(original, target helmkube.ResourceList) helmkube.ResourceList {
	return original.Filter(func(info *resource.Info) bool { return !isDefinition(info) || target.Contains(info) })
}

// Delete deletes everything but CustomResourceDefinitions.
func (c *boundClient) Delete(resources helmkube.ResourceList) (*helmkube.Result, []error) {
	return c.Client.Delete(withoutDefinitions(resources))
}

// DeleteWithPropagationPolicy does as [boundClient.Delete].
func (c *boundClient) DeleteWithPropagationPolicy(resources helmkube.ResourceList, policy metav1.DeletionPropagation) (*helmkube.Result, []error) {
	return c.Client.DeleteWithPropagationPolicy(withoutDefinitions(resources), policy)
}

func withoutDefinitions(resources helmkube.ResourceList) helmkube.ResourceList {
	return resources.Filter(func(info *resource.Info) bool { return !isDefinition(info) })
}

// isDefinition says whether an object is a CustomResourceDefinition. Deleting
// one deletes every object of its kind in the cluster.
func isDefinition(info *resource.Info) bool {
	kind := info.Mapping.GroupVersionKind
	return kind.Group == "apiextensions.k8s.io" && kind.Kind == "CustomResourceDefinition"
}

// Wait waits until the objects are ready.
func (c *boundClient) Wait(resources helmkube.ResourceList, timeout time.Duration) error {
	return c.await(resources, timeout, false)
}

// WaitWithJobs waits for Jobs as well.
func (c *boundClient) WaitWithJobs(resources helmkube.ResourceList, timeout time.Duration) error {
	return c.await(resources, timeout, true)
}

// await uses Helm's own judgement of readiness. In contrast to the library's
// wait it ends with the context, survives an API server that is away for a
// while, and says in its error what was not ready.
func (c *boundClient) await(resources helmkube.ResourceList, timeout time.Duration, jobs bool) error {
	if len(resources) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	said := ""
	checker := helmkube.NewReadyChecker(c.clients, func(format string, values ...any) { said = fmt.Sprintf(format, values...) },
		helmkube.PausedAsReady(true), helmkube.CheckJobs(jobs))
	what := fmt.Sprintf("the %d objects of the release to be ready", len(resources))
	reported := ""
	return kube.Wait(ctx, what, func(ctx context.Context) (bool, string, error) {
		for _, info := range resources {
			said = ""
			ready, err := checker.IsReady(ctx, info)
			if err != nil && strings.Contains(err.Error(), "job is failed") {
				return false, "", kube.Fatal(fmt.Errorf("%s: %w", info.ObjectName(), err))
			}
			if err != nil {
				return false, "", fmt.Errorf("%s: %w", info.ObjectName(), err)
			}
			if ready {
				continue
			}
			now := strings.TrimSpace(info.ObjectName() + ": " + said)
			if now != reported {
				reported = now
				c.report.Report(ctx, "waiting", now)
			}
			return false, now, nil
		}
		return true, "", nil
	})
}

// WatchUntilReady waits for hooks. The library's watch knows no context but
// ends by its time; its requests end with ours, so that nothing more happens
// after this has returned.
func (c *boundClient) WatchUntilReady(resources helmkube.ResourceList, timeout time.Duration) error {
	for _, info := range resources {
		c.report.Report(c.ctx, "running-hook", "waiting for the hook "+info.ObjectName())
	}
	done := make(chan error, 1)
	go func() { done <- c.Client.WatchUntilReady(resources, timeout) }()
	select {
	case err := <-done:
		return err
	case <-c.ctx.Done():
		return fmt.Errorf("waiting for hooks: %w", context.Cause(c.ctx))
	}
}

// WaitForDelete waits until the objects are gone.
func (c *boundClient) WaitForDelete(resources helmkube.ResourceList, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	return kube.Wait(ctx, fmt.Sprintf("%d objects of the release to be gone", len(resources)), func(ctx context.Context) (bool, string, error) {
		for _, info := range withoutDefinitions(resources) {
			err := kube.Classify(info.Get())
			if err == nil {
				return false, info.ObjectName() + " is still there", nil
			}
			if !kube.IsAbsent(err) {
				return false, "", err
			}
		}
		return true, "", nil
	})
}

func manifestReader(manifest string) io.Reader { return strings.NewReader(manifest) }
