// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
)

// preflight refuses what cannot end well, before anything is paused. All reasons
// are told at once.
func (r *run) preflight(ctx context.Context) error {
	r.opts.Report.Report(ctx, "preflight", fmt.Sprintf("checking whether the target takes %d objects", len(r.graph.placed())))
	if err := r.chooseVersions(ctx); err != nil {
		return err
	}
	if err := r.checkProviders(ctx); err != nil {
		return err
	}
	if err := r.findUnlabelled(ctx); err != nil {
		return err
	}
	if err := errors.Join(r.checkGates(ctx), r.checkHeldBack(), r.checkHosted()); err != nil {
		return err
	}
	existing, err := r.collisions(ctx)
	if err != nil {
		return err
	}
	r.existing = existing
	return r.rehearse(ctx)
}

func refused(reasons []error) error {
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrRefused, errors.Join(reasons...))
}

// chooseVersions finds an API version of each kind that both sides serve, and
// reads the source again if that is not the one in which it was read.
func (r *run) chooseVersions(ctx context.Context) error {
	target, err := kindsOf(ctx, r.target)
	if err != nil {
		return err
	}
	used := sets.New[schema.GroupKind]()
	for _, n := range r.graph.placed() {
		used.Insert(schema.GroupKind{Group: n.Group, Kind: n.Kind})
	}
	common, lacking := commonVersions(r.graph.kinds, target, used)
	if err := refused(lacking); err != nil {
		return err
	}
	r.source.versions = common
	if len(common) == 0 {
		return nil
	}
	r.graph, err = r.discover(ctx, r.source)
	return err
}

// checkProviders refuses a target that lacks a provider of the source or has an
// older one: the objects that it does not know would be stored with fields lost.
func (r *run) checkProviders(ctx context.Context) error {
	here, err := r.source.providers(ctx)
	if err != nil {
		return err
	}
	there, err := r.target.providers(ctx)
	if err != nil {
		return err
	}
	var reasons []error
	for _, wanted := range here {
		if wanted.Version == "" && r.unattended {
			r.skip(ctx, "the version of "+wanted.Label()+" on the source is not known, and was not compared")
			continue
		}
		if err := checkProvider(wanted, there); err != nil {
			reasons = append(reasons, err)
		}
	}
	return refused(reasons)
}

func checkProvider(wanted capi.Installed, there []capi.Installed) error {
	if wanted.Version == "" {
		return fmt.Errorf("the version of %s on the source is not known: its operator has not installed it yet", wanted.Label())
	}
	needed, err := version.ParseSemantic(wanted.Version)
	if err != nil {
		return fmt.Errorf("the version of %s on the source: %w", wanted.Label(), err)
	}
	var newest *version.Version
	for _, candidate := range there {
		if candidate.Label() != wanted.Label() || candidate.Version == "" {
			continue
		}
		found, err := version.ParseSemantic(candidate.Version)
		if err != nil {
			return fmt.Errorf("the version of %s on the target: %w", candidate.Label(), err)
		}
		if newest == nil || newest.LessThan(found) {
			newest = found
		}
	}
	switch {
	case newest == nil:
		return fmt.Errorf("the target lacks the provider %s %s", wanted.Label(), wanted.Version)
	case newest.LessThan(needed):
		return fmt.Errorf("the target has the provider %s in version v%s, older than the source's %s", wanted.Label(), newest, wanted.Version)
	}
	return nil
}

// stayed are the objects that belong to what moves and stay on the source.
func (r *run) stayed() []Stayed { return slices.Concat(r.graph.heldBack(), r.unlabelled) }

func (r *run) checkHeldBack() error {
	if r.opts.ForeignOwners == ForeignLeave {
		return nil
	}
	var reasons []error
	for _, held := range r.stayed() {
		reasons = append(reasons, fmt.Errorf("%s would be left behind: %s", held.ID, held.Why))
	}
	return refused(reasons)
}

// hostedKinds are control planes that run as pods in the management cluster: a
// move would carry the objects and leave API servers and etcd behind.
var hostedKinds = []schema.GroupKind{
	{Group: "controlplane.cluster.x-k8s.io", Kind: "KamajiControlPlane"},
	{Group: "controlplane.cluster.x-k8s.io", Kind: "HostedControlPlane"},
}

func (r *run) checkHosted() error {
	var reasons []error
	for _, n := range r.graph.placed() {
		if slices.ContainsFunc(hostedKinds, n.is) {
			reasons = append(reasons, fmt.Errorf("%s runs in the source itself: its API server and etcd cannot be moved as objects", n.ID))
		}
	}
	return refused(reasons)
}

// collisions answers which of the objects the target has already. Only what stays
// on the source as well may be there, and only in the same form.
func (r *run) collisions(ctx context.Context) (map[ID]bool, error) {
	gvks := sets.New[schema.GroupVersionKind]()
	for _, n := range r.graph.placed() {
		gvks.Insert(n.object.GroupVersionKind())
	}
	there, err := held(ctx, r.target, gvks.UnsortedList())
	if err != nil {
		return nil, err
	}
	existing := map[ID]bool{}
	var reasons []error
	for _, n := range r.graph.placed() {
		copied := there[n.ID]
		switch {
		case copied == nil:
		case isStray(copied):
			if err := removeOne(ctx, r.target, n.entry(false), copied.GetUID()); err != nil {
				return nil, err
			}
		case !n.keep:
			reasons = append(reasons, fmt.Errorf("the target has a %s already", n.ID))
		default:
			existing[n.ID] = true
			if what := existingDifference(n, copied); what != "" {
				reasons = append(reasons, fmt.Errorf("the target has a %s already, which %s", n.ID, strings.TrimPrefix(what, "has ")))
			}
		}
	}
	return existing, refused(reasons)
}

// isStray says whether an object is a copy that a lost run's last request made
// after the next run had removed all of them. It still has the move's own field
// manager, which a finished copy has not, and a Cluster among them is paused.
func isStray(o *unstructured.Unstructured) bool {
	if idOf(o).is(clusterKind) && !clusterPause.paused(o) {
		return false
	}
	return slices.ContainsFunc(o.GetManagedFields(), isOfMove)
}

// rehearse lets the target's API server and its webhooks look at every object
// without storing it.
func (r *run) rehearse(ctx context.Context) error {
	nodes := slices.DeleteFunc(r.graph.placed(), func(n *node) bool { return r.existing[n.ID] })
	if err := ensureNamespaces(ctx, r.target, nodes); err != nil {
		return err
	}
	c := newCopier(r.target, nil)
	var mu sync.Mutex
	var reasons []error
	err := each(ctx, r.parallel(), nodes, func(ctx context.Context, n *node) error {
		o := c.copyOf(n)
		// The owners are not there yet, and a reference to none is not accepted.
		o.SetOwnerReferences(nil)
		if n.is(clusterKind) {
			// As it will come: the source is not paused yet, and the target's webhooks
			// and audit log should see no copy that would be managed.
			o = o.DeepCopy()
			if err := unstructured.SetNestedField(o.Object, true, "spec", "paused"); err != nil {
				return fmt.Errorf("pausing the copy of %s: %w", n.ID, err)
			}
		}
		err := r.target.read(ctx, func() error { return rehearseOne(ctx, r.target, o) })
		if err == nil || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		mu.Lock()
		defer mu.Unlock()
		reasons = append(reasons, fmt.Errorf("%s: %w", n.ID, err))
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(reasons, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(reasons) > 0 {
		return fmt.Errorf("%w: the target does not take %d of the objects: %w", ErrRefused, len(reasons), errors.Join(reasons[:min(len(reasons), 10)]...))
	}
	return nil
}

func rehearseOne(ctx context.Context, target *Side, o *unstructured.Unstructured) error {
	err := target.Client.Create(ctx, o.DeepCopy(), client.DryRunAll, client.FieldOwner(fieldManager))
	if apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "dry run") {
		return nil // a webhook with side effects cannot be asked
	}
	return err
}
