// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package helm installs, upgrades, reads and removes Helm releases with Helm's
// own library (helm.sh/helm/v3, v3.22.0), without files of its own and without
// a kubeconfig on disk.
//
// It differs from the library where a release must survive failures: what an
// interrupted run left pending is taken up again, CustomResourceDefinitions are
// never deleted, waits and hooks end with the context, and the success that is
// answered is one that is on record.
package helm

import (
	"context"
	"errors"
	"fmt"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/storage/driver"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Labels of the Secret that holds a release's record. Helm keeps them through
// upgrades. It has a label "owner" of its own.
const (
	ownerLabel  = "terraform-provider-capi/owner"
	configLabel = "terraform-provider-capi/config"
)

// historyLimit is how many records of a release are kept, as by the helm command.
const historyLimit = 10

// ErrForeign says that a release of this name is there and is not ours to touch.
var ErrForeign = errors.New("it belongs to somebody else")

// Spec is a release as it shall be.
type Spec struct {
	// Name and Namespace identify the release on its cluster.
	Name, Namespace string
	Chart           Chart
	// Values are merged over the chart's own; see [MergeValues].
	Values map[string]any
	// Secrets are texts among the values that no error and no progress may show.
	Secrets []string
	// CreateNamespace makes the namespace where it is missing.
	CreateNamespace bool
	// Wait waits until all objects of the release are ready, WaitForJobs for its
	// Jobs as well.
	Wait, WaitForJobs bool
	// Owner is the UUID of whoever owns the release; only they may change and
	// remove it.
	Owner string
	// Adopt takes a release up whoever made it, as an imported one.
	Adopt bool
	// AdoptUnmarked takes one up that has no mark, as a release of this owner has
	// after somebody went back to a revision from before its time.
	AdoptUnmarked bool
	// SkipCRDs leaves the chart's folder crds out.
	SkipCRDs bool
	// Atomic undoes what fails: an upgrade by a roll-back, an install by an
	// uninstall.
	Atomic bool
	// Recover says what to do about a release that failed or was interrupted
	// before; empty means [RecoverRetry].
	Recover Recovery
	// Repair makes a new revision even where the record says that nothing changed,
	// to bring objects back that somebody has edited.
	Repair bool
}

func (s Spec) String() string { return s.Namespace + "/" + s.Name }

// Release is a release as its newest record has it.
type Release struct {
	Name, Namespace string
	// Revision counts installs, upgrades and roll-backs, from 1.
	Revision int
	// Status is Helm's: deployed, failed, pending-install and so on.
	Status string
	// Description is Helm's word on how the last operation ended.
	Description string
	// Chart is the name of the chart, Version its version, AppVersion that of
	// what it installs.
	Chart, Version, AppVersion string
	// Digest tells the chart's content from any other; empty on a release that
	// another Helm client has made.
	Digest string
	// ValuesHash is [HashValues] of the values that were given.
	ValuesHash string
	// Owner is the mark that [Ensure] left; empty on a release of somebody else.
	Owner string
	// TakenFrom is the mark of the owner whose finished release [Engine.Ensure] has
	// found in just this configuration and taken over; empty where it was another way.
	TakenFrom string
}

// Deployed says whether the last operation succeeded.
func (r *Release) Deployed() bool { return r.Status == string(release.StatusDeployed) }

func describe(rel *release.Release) *Release {
	r := &Release{
		Name: rel.Name, Namespace: rel.Namespace, Revision: rel.Version,
		ValuesHash: HashValues(rel.Config), Owner: rel.Labels[ownerLabel],
	}
	if rel.Info != nil {
		r.Status, r.Description = string(rel.Info.Status), rel.Info.Description
	}
	if rel.Chart != nil && rel.Chart.Metadata != nil {
		r.Chart, r.Version, r.AppVersion = rel.Chart.Metadata.Name, rel.Chart.Metadata.Version, rel.Chart.Metadata.AppVersion
		r.Digest = rel.Chart.Metadata.Annotations[digestAnnotation]
	}
	return r
}

// Read answers the newest record of a release. [kube.IsAbsent] holds for the
// error when the API server answered that there is none; any other error leaves
// it open.
func Read(ctx context.Context, c *kube.Client, namespace, name string) (*Release, error) {
	cfg, err := configure(ctx, c, namespace, name, nil)
	if err != nil {
		return nil, fmt.Errorf("reading Helm release %s/%s: %w", namespace, name, err)
	}
	last, err := newest(cfg, name)
	if err != nil {
		return nil, fmt.Errorf("reading Helm release %s/%s: %w", namespace, name, err)
	}
	return describe(last), nil
}

// history answers all records of a release, oldest first.
func history(cfg *action.Configuration, name string) ([]*release.Release, error) {
	records, err := cfg.Releases.History(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, fmt.Errorf("%w: %w", kube.ErrAbsent, err)
	}
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		// The storage skips what it cannot decode, so that this is no proof of absence.
		return nil, errors.New("the release's record is there and cannot be read")
	}
	releaseutil.SortByRevision(records)
	return records, nil
}

func newest(cfg *action.Configuration, name string) (*release.Release, error) {
	records, err := history(cfg, name)
	if err != nil {
		return nil, err
	}
	return records[len(records)-1], nil
}

// withCause adds why the context ended, where it did: the library's own error
// then only tells that some request was not made.
func withCause(ctx context.Context, err error) error {
	if ctx.Err() == nil || errors.Is(err, context.Cause(ctx)) {
		return err
	}
	return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
}
