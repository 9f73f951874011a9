// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	helmkube "helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/utils/ptr"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Annotations that Helm puts on the objects of a release
// (helm.sh/helm/v3/pkg/action, validate.go).
const (
	releaseNameAnnotation      = "meta.helm.sh/release-name"
	releaseNamespaceAnnotation = "meta.helm.sh/release-namespace"
)

// Unfinished names the releases, as namespace/name, that interrupted runs of this
// provider have left on a cluster and nobody has taken up since. Where nobody
// may look for them it answers none.
func Unfinished(ctx context.Context, c *kube.Client) ([]string, error) {
	leases := &coordinationv1.LeaseList{}
	err := c.List(ctx, leases)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for unfinished Helm releases: %w", err)
	}
	var unfinished []string
	for _, lease := range leases.Items {
		name, ok := strings.CutPrefix(lease.Name, leasePrefix)
		lasts := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
		if ok && time.Since(ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time) > lasts {
			unfinished = append(unfinished, lease.Namespace+"/"+name)
		}
	}
	return unfinished, nil
}

// neverComplete answers the revisions that failed or were interrupted.
func neverComplete(records []*release.Release) []*release.Release {
	var unfinished []*release.Release
	for _, record := range records {
		if status := record.Info.Status; status == release.StatusFailed || status.IsPending() {
			unfinished = append(unfinished, record)
		}
	}
	return unfinished
}

// leftBy answers the objects that revisions have brought and a manifest does not
// have. The library compares a new revision with the newest complete one alone,
// and uninstalls the newest one alone: an object that only a failed revision had
// would stay for good.
func (c *boundClient) leftBy(revisions []*release.Release, manifest string) (helmkube.ResourceList, error) {
	if len(revisions) == 0 {
		return nil, nil
	}
	kept, err := c.buildServed(strings.NewReader(manifest))
	if err != nil {
		return nil, err
	}
	var left helmkube.ResourceList
	for _, revision := range revisions {
		objects, err := c.buildServed(strings.NewReader(revision.Manifest))
		if err != nil {
			return nil, fmt.Errorf("reading revision %d: %w", revision.Version, err)
		}
		left = append(left, objects.Difference(kept).Difference(left)...)
	}
	return withoutDefinitions(left), nil
}

// mark is whose an object is, by the annotations that Helm has given it.
type mark struct{ name, namespace string }

// marked says that an object is certainly this release's.
func (c *boundClient) marked(m mark) bool { return m == mark{c.release, c.Namespace} }

// notAnothers says that no other release has taken an object over that was this
// release's.
func (c *boundClient) notAnothers(m mark) bool { return m == mark{} || c.marked(m) }

// deleteOwned deletes the objects that are ours to delete, but for definitions and
// those that the chart wants to be kept. It answers which ones were there.
func (c *boundClient) deleteOwned(objects helmkube.ResourceList, ours func(mark) bool) (deleted helmkube.ResourceList, err error) {
	var failed []error
	for _, info := range withoutDefinitions(objects) {
		there, err := deleteOne(info, ours)
		if err != nil {
			failed = append(failed, fmt.Errorf("deleting %s, which the release has no longer: %w", info.ObjectName(), err))
		}
		if there {
			deleted = append(deleted, info)
		}
	}
	return deleted, errors.Join(failed...)
}

// live answers an object as it is on the cluster, and whose it is; nil where it is
// not there.
func live(info *resource.Info) (metav1.Object, mark, error) {
	found, err := resource.NewHelper(info.Client, info.Mapping).Get(info.Namespace, info.Name)
	if kube.IsAbsent(kube.Classify(err)) {
		return nil, mark{}, nil
	}
	if err != nil {
		return nil, mark{}, err
	}
	object, err := meta.Accessor(found)
	if err != nil {
		return nil, mark{}, err
	}
	annotations := object.GetAnnotations()
	return object, mark{annotations[releaseNameAnnotation], annotations[releaseNamespaceAnnotation]}, nil
}

// notTaken answers the objects that are there and that no other release has taken
// over. The library would delete what is another release's.
func (c *boundClient) notTaken(objects helmkube.ResourceList) (left helmkube.ResourceList, err error) {
	for _, info := range objects {
		object, whose, err := live(info)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", info.ObjectName(), err)
		}
		if object != nil && c.notAnothers(whose) {
			left = append(left, info)
		}
	}
	return left, nil
}

func deleteOne(info *resource.Info, ours func(mark) bool) (deleted bool, err error) {
	object, whose, err := live(info)
	if err != nil || object == nil {
		return false, err
	}
	if object.GetAnnotations()[helmkube.ResourcePolicyAnno] == helmkube.KeepPolicy || !ours(whose) {
		return false, nil
	}
	uid, policy := object.GetUID(), metav1.DeletePropagationBackground
	_, err = resource.NewHelper(info.Client, info.Mapping).DeleteWithOptions(info.Namespace, info.Name, &metav1.DeleteOptions{PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &uid}})
	if kube.IsAbsent(kube.Classify(err)) {
		return false, nil
	}
	return err == nil, err
}

// sweep deletes what the unfinished revisions among records have left and the
// release, which is as it was wanted now, does not have.
func (o *operation) sweep(records []*release.Release) error {
	unfinished := neverComplete(records)
	if len(unfinished) == 0 {
		return nil
	}
	last, err := newest(o.cfg, o.Name)
	if err != nil {
		return fmt.Errorf("reading Helm release %s to compare it with its unfinished revisions: %w", o, err)
	}
	bound, err := clientOf(o.cfg)
	if err != nil {
		return err
	}
	left, err := bound.leftBy(unfinished, last.Manifest)
	if err == nil {
		_, err = bound.deleteOwned(left, bound.marked)
	}
	if err != nil {
		return fmt.Errorf("removing what unfinished revisions of Helm release %s have left: %w", o, err)
	}
	return nil
}

// teardown says how a release is uninstalled.
type teardown struct {
	name string
	// hookless leaves the chart's hooks out.
	hookless bool
	// gone is called when the objects are gone and the record is still there; nil
	// for nothing.
	gone func(context.Context) error
}

// uninstall has the library uninstall a release, with what unfinished revisions
// have left. In contrast to the library it keeps the record until everything is
// gone, so that what could not be removed is found again.
func uninstall(ctx context.Context, cfg *action.Configuration, down teardown) error {
	bound, err := clientOf(cfg)
	if err != nil {
		return err
	}
	records, err := history(cfg, down.name)
	if err != nil {
		return err
	}
	last := records[len(records)-1]
	former := neverComplete(records)
	if complete := lastComplete(records); complete != nil {
		former = append(former, complete)
	}
	left, err := bound.leftBy(former, last.Manifest)
	if err != nil {
		return err
	}
	var failed error
	bound.forgiving, bound.undeleted = true, nil
	bound.uninstalled = func(ctx context.Context, err error) error {
		var deleted helmkube.ResourceList
		if err == nil {
			deleted, err = bound.deleteOwned(left, bound.marked)
		}
		if err == nil {
			err = bound.awaitGone(ctx, deleted)
		}
		if err == nil && down.gone != nil {
			err = down.gone(ctx)
		}
		failed = err
		return err
	}
	storage := cfg.Releases.Driver
	cfg.Releases.Driver = keepingDriver{storage, func() error { return failed }}
	defer func() { bound.forgiving, bound.uninstalled, cfg.Releases.Driver = false, nil, storage }()
	uninstall := action.NewUninstall(cfg)
	uninstall.Timeout, uninstall.Wait, uninstall.DisableHooks = patience(ctx), true, down.hookless
	_, err = uninstall.Run(down.name)
	switch {
	case failed != nil:
		return failed
	case err != nil && bound.undeleted != nil:
		return fmt.Errorf("%w: %w", err, bound.undeleted)
	}
	return err
}

// keepingDriver keeps the records of a release as long as unfinished answers why.
type keepingDriver struct {
	driver.Driver
	unfinished func() error
}

// Delete removes a record. One that somebody else has removed, as the end of a
// namespace does, is what was wanted.
func (d keepingDriver) Delete(key string) (*release.Release, error) {
	if err := d.unfinished(); err != nil {
		return nil, err
	}
	record, err := d.Driver.Delete(key)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return record, nil
	}
	return record, err
}
