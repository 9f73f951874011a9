// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	helmkube "helm.sh/helm/v3/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

func init() {
	// Otherwise it is the program's file name, which holds the provider's version:
	// each version would become another owner of the same fields.
	helmkube.ManagedFieldsManager = kube.FieldManager
}

// boundClient is Helm's client with changes: it never deletes a
// CustomResourceDefinition, its waits end with the context and say what they
// wait for, it merges custom resources with what is on the cluster, and it can
// leave out objects whose kind the cluster no longer serves.
type boundClient struct {
	*helmkube.Client
	ctx       context.Context
	cluster   *kube.Client
	discovery discovery.DiscoveryInterface
	clients   kubernetes.Interface
	report    progress.Reporter

	// forgiving leaves out of the objects that were installed those of kinds that
	// are no longer served: they are gone with their kind. Charts that are older
	// than the cluster's version could neither be upgraded nor removed without it.
	forgiving bool
	// uninstalled is called with what became of the wait until the objects of an
	// uninstalled release are gone. Its record is still there.
	uninstalled func(context.Context, error) error
	// hook says that the objects which are waited for next are a hook's and not
	// those of the release.
	hook bool
	// undeleted is why objects could not be deleted the last time, which the
	// library does not pass on.
	undeleted error
	// release is the name of the release that this is about.
	release string
}

// clientOf answers the client of a configuration.
func clientOf(cfg *action.Configuration) (*boundClient, error) {
	bound, ok := cfg.KubeClient.(*boundClient)
	if !ok {
		return nil, fmt.Errorf("the client of Helm is a %T", cfg.KubeClient)
	}
	return bound, nil
}

// Build reads the objects of a manifest. validate is set for what is to be
// installed and not for what was.
func (c *boundClient) Build(reader io.Reader, validate bool) (helmkube.ResourceList, error) {
	if validate || !c.forgiving {
		return c.Client.Build(reader, validate)
	}
	return c.buildServed(reader)
}

// buildServed reads the objects of a manifest that are of kinds which the
// cluster serves.
func (c *boundClient) buildServed(reader io.Reader) (helmkube.ResourceList, error) {
	manifest, err := io.ReadAll(reader)
	if err != nil {
		return nil, err
	}
	objects, err := kube.ParseDocuments(manifest)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest on record: %w", err)
	}
	var left bytes.Buffer
	kinds := map[string]bool{}
	for _, object := range objects {
		kind := object.GetAPIVersion() + " " + object.GetKind()
		served, known := kinds[kind]
		if !known {
			if served, err = c.serves(object); err != nil {
				return nil, fmt.Errorf("asking whether the cluster serves %s: %w", kind, err)
			}
			kinds[kind] = served
		}
		if !served {
			continue
		}
		document, err := json.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("writing %s: %w", kube.Describe(object), err)
		}
		left.WriteString("---\n")
		left.Write(document)
		left.WriteString("\n")
	}
	return c.Client.Build(&left, false)
}

// serves answers whether the cluster serves an object's kind. Only the API
// server's own word counts as a no.
func (c *boundClient) serves(object *unstructured.Unstructured) (bool, error) {
	resources, err := c.discovery.ServerResourcesForGroupVersion(object.GetAPIVersion())
	if kube.IsAbsent(kube.Classify(err)) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, served := range resources.APIResources {
		if served.Kind == object.GetKind() {
			return true, nil
		}
	}
	return false, nil
}

// Update does as [boundClient.UpdateThreeWayMerge]. The library merges custom
// resources in two ways here: it looks at what changed in the chart alone, and
// leaves what a failed revision, or somebody, has made of them.
func (c *boundClient) Update(original, target helmkube.ResourceList, force bool) (*helmkube.Result, error) {
	return c.UpdateThreeWayMerge(original, target, force)
}

// UpdateThreeWayMerge leaves the CustomResourceDefinitions in place that are no
// longer in the chart. To the library it is a success when it could not delete
// the other objects that are no longer in it, which nobody would find again.
func (c *boundClient) UpdateThreeWayMerge(original, target helmkube.ResourceList, force bool) (*helmkube.Result, error) {
	result, err := c.Client.UpdateThreeWayMerge(original.Intersect(target), target, force)
	if err != nil {
		return result, err
	}
	result.Deleted, err = c.deleteOwned(original.Difference(target), c.notAnothers)
	return result, err
}

// Delete deletes everything but CustomResourceDefinitions and what another
// release has taken over.
func (c *boundClient) Delete(resources helmkube.ResourceList) (*helmkube.Result, []error) {
	c.hook = true
	return c.delete(resources, metav1.DeletePropagationBackground)
}

// DeleteWithPropagationPolicy does as [boundClient.Delete]. The library deletes
// hooks with that one, and the objects of a release with this one.
func (c *boundClient) DeleteWithPropagationPolicy(resources helmkube.ResourceList, policy metav1.DeletionPropagation) (*helmkube.Result, []error) {
	c.hook = false
	return c.delete(resources, policy)
}

// delete takes it that there may be nothing to delete, which is an error to the library.
func (c *boundClient) delete(resources helmkube.ResourceList, policy metav1.DeletionPropagation) (*helmkube.Result, []error) {
	left, err := c.notTaken(withoutDefinitions(resources))
	if err != nil {
		c.undeleted = err
		return nil, []error{err}
	}
	if len(left) == 0 {
		return &helmkube.Result{}, nil
	}
	result, errs := c.Client.DeleteWithPropagationPolicy(left, policy)
	c.undeleted = errors.Join(errs...)
	return result, errs
}

func withoutDefinitions(resources helmkube.ResourceList) helmkube.ResourceList {
	return resources.Filter(func(info *resource.Info) bool { return !isDefinition(info) })
}

// isDefinition says whether an object is a CustomResourceDefinition. Deleting
// one deletes every object of its kind in the cluster.
func isDefinition(info *resource.Info) bool {
	kind := info.Mapping.GroupVersionKind
	return kind.Group == definitionGroup && kind.Kind == definitionKind
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
	return kube.Wait(ctx, what, unlessRefused(refusalTime, func(ctx context.Context) (bool, string, error) {
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
			now := info.ObjectName() + ": " + cmp.Or(strings.TrimSpace(said), "not seen by its controller yet")
			if now != reported {
				reported = now
				c.report.Report(ctx, "waiting", now)
			}
			return false, now, nil
		}
		return true, "", nil
	}))
}

// refusalTime is how long credentials may be refused while something is waited
// for: an API server that is starting may do so for a moment, and a kubeconfig
// that was revoked does not come back.
const refusalTime = 30 * time.Second

// unlessRefused ends a wait once the API server has refused the credentials at
// each look for so long.
func unlessRefused(limit time.Duration, check kube.Check) kube.Check {
	var since time.Time
	return func(ctx context.Context) (bool, string, error) {
		done, now, err := check(ctx)
		switch {
		case !apierrors.IsUnauthorized(err):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= limit:
			err = kube.Fatal(err)
		}
		return done, now, err
	}
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
	err := c.awaitGone(ctx, resources)
	if c.uninstalled == nil || c.hook {
		c.hook = false
		return err
	}
	return c.uninstalled(ctx, err)
}

func (c *boundClient) awaitGone(ctx context.Context, resources helmkube.ResourceList) error {
	return kube.Wait(ctx, fmt.Sprintf("%d objects of the release to be gone", len(resources)), unlessRefused(refusalTime, func(ctx context.Context) (bool, string, error) {
		for _, info := range withoutDefinitions(resources) {
			object, whose, err := live(info)
			if err != nil {
				return false, "", err
			}
			if object != nil && c.notAnothers(whose) {
				return false, info.ObjectName() + " is still there", nil
			}
		}
		return true, "", nil
	}))
}
