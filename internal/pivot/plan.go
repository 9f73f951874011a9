// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// errSourceChanged says that the copies are not of what the source holds now.
var errSourceChanged = errors.New("the source's objects changed while they were copied")

// digest is over the objects that move: their identities, contents and owners.
func (g *graph) digest() string {
	sum := sha256.New()
	for _, n := range g.sorted() {
		if n.level >= 0 {
			_, _ = fmt.Fprintln(sum, n.Group, n.ID, contentHash(n.object), ownerIDs(n))
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// counts answers the number of objects by kind.
func (g *graph) counts() map[string]int64 {
	counts := map[string]int64{}
	for _, n := range g.placed() {
		counts[n.Kind]++
	}
	return counts
}

func (g *graph) providerIDs() []string {
	var ids []string
	for _, machine := range g.ofKind(machineKind) {
		if machine.level < 0 {
			continue // of a Cluster that stays
		}
		if id := providerID(machine.object); id != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// settle reads the source until two readings are the same and nothing is being
// deleted: an object that changes right now could not be compared afterwards.
func (r *run) settle(ctx context.Context) error {
	last, now := "", "nothing was read"
	err := wait.PollUntilContextCancel(ctx, r.opts.Settle, true, func(ctx context.Context) (bool, error) {
		g, err := r.discover(ctx, r.source)
		if err != nil {
			return false, err
		}
		if gone := g.deleted(); len(gone) > 0 && !r.unattended {
			last, now = "", gone[0].ID.String()+" is being deleted"
			return false, nil
		}
		digest := g.digest()
		done := digest == last
		last, now, r.graph = digest, "they still change", g
		return done, nil
	})
	if ctx.Err() != nil {
		return fmt.Errorf("waiting for the source's objects to stop changing (%s): %w", now, context.Cause(ctx))
	}
	return err
}

// deleted answers the objects that move and that somebody has deleted: their
// copies would live on.
func (g *graph) deleted() []*node {
	return slices.DeleteFunc(g.placed(), func(n *node) bool { return n.object.GetDeletionTimestamp().IsZero() })
}

// plan writes down what the graph says. The phase is the first.
func (r *run) plan(ctx context.Context) (*journal, error) {
	found, err := r.source.clusters(ctx, r.opts.Scope)
	if err != nil {
		return nil, err
	}
	paused := map[client.ObjectKey]bool{}
	for i := range found {
		paused[client.ObjectKeyFromObject(&found[i])] = isPaused(&found[i])
	}
	j := &journal{ID: uuid.NewString(), Run: r.id, Phase: PhasePlanned, Source: r.source.UID, Target: r.target.UID, Scope: r.opts.Scope, Planned: now(), Unattended: r.unattended}
	for _, c := range r.graph.ofKind(clusterKind) {
		if c.level >= 0 {
			j.Clusters = append(j.Clusters, journalCluster{Namespace: c.Namespace, Name: c.Name, Paused: paused[c.key()]})
		}
	}
	for _, c := range r.graph.ofKind(classKind) {
		if c.level >= 0 {
			j.Classes = append(j.Classes, journalClass{Namespace: c.Namespace, Name: c.Name, Paused: annotatedPaused(c.object), Keep: c.keep, Existing: r.existing[c.ID]})
		}
	}
	r.describe(j)
	for _, n := range r.graph.deleted() {
		r.skip(ctx, n.ID.String()+" was being deleted, which nobody carried out: it lives on after the move. Delete it again on the target if that is still meant")
	}
	j.Skipped = r.skipped
	return j, nil
}

// describe brings the journal's account of the objects up to date.
func (r *run) describe(j *journal) {
	j.Digest, j.Counts, j.ProviderIDs, j.Stayed = r.graph.digest(), r.graph.counts(), r.graph.providerIDs(), r.stayed()
	for i := range j.Clusters {
		j.Clusters[i].Machines, j.Clusters[i].ControlPlane = r.graph.machines(j.Clusters[i].key())
		if plane := r.graph.controlPlane(j.Clusters[i].key()); plane != nil && !j.Clusters[i].Paused && !j.Unattended && etcdHealth(plane.object) == "" {
			j.Clusters[i].Etcd = &plane.ID
		}
	}
	j.entries = nil
	for _, n := range r.graph.placed() {
		j.entries = append(j.entries, n.entry(r.existing[n.ID]))
	}
}

func (n *node) entry(existing bool) entry {
	return entry{
		Group: n.Group, Version: n.object.GroupVersionKind().Version, Kind: n.Kind, Namespace: n.Namespace, Name: n.Name,
		UID: n.uid, Level: n.level, Content: contentHash(n.object), Keep: n.keep, Existing: existing,
	}
}

// machines counts a Cluster's Machines, and those of its control plane.
func (g *graph) machines(cluster client.ObjectKey) (all, controlPlane int) {
	for _, m := range g.ofKind(machineKind) {
		if m.level < 0 || m.Namespace != cluster.Namespace {
			continue
		}
		if name, _, _ := unstructured.NestedString(m.object.Object, "spec", "clusterName"); name != cluster.Name {
			continue
		}
		all++
		if _, ok := m.object.GetLabels()[clusterv1.MachineControlPlaneLabel]; ok {
			controlPlane++
		}
	}
	return all, controlPlane
}

// refresh reads the source once more, now that it is paused, and brings the
// journal up to date where something has changed since it was planned.
func (r *run) refresh(ctx context.Context) error {
	g, err := r.discover(ctx, r.source)
	if err != nil {
		return err
	}
	r.graph = g
	if gone := g.deleted(); len(gone) > 0 && !r.unattended {
		return fmt.Errorf("%s was deleted right before the pause: apply again when it is gone", gone[0].ID)
	}
	if err := r.checkHeldBack(); err != nil {
		return err
	}
	r.journal.Copied = true
	if g.digest() == r.journal.Digest {
		return nil
	}
	known := sets.New(r.journal.clusterKeys()...)
	for _, c := range g.ofKind(clusterKind) {
		if c.level >= 0 && !known.Has(c.key()) {
			return fmt.Errorf("%w: %s is new", errSourceChanged, c.ID)
		}
	}
	if r.existing, err = r.collisions(ctx); err != nil {
		return err
	}
	if err := r.checkLostMachines(); err != nil {
		return err
	}
	r.describe(r.journal)
	return r.journal.rewriteChunks(ctx, r.sides()...)
}

// checkLostMachines refuses to go on with fewer machines of a control plane than
// there were when the move was planned. Whatever took them, nothing may manage
// the Cluster with the rest unseen.
func (r *run) checkLostMachines() error {
	for _, c := range r.journal.Clusters {
		if _, left := r.graph.machines(c.key()); left < c.ControlPlane {
			return fmt.Errorf("cluster %s has lost machines of its control plane since the move began: %d of %d are left", c.key(), left, c.ControlPlane)
		}
	}
	return nil
}

// verify compares both sides: the source must be as it was copied, and the target
// must hold all of it.
func (r *run) verify(ctx context.Context) error {
	var source *graph
	var target map[ID]*unstructured.Unstructured
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) { source, err = r.discover(groupCtx, r.source); return err })
	group.Go(func() (err error) { target, err = held(groupCtx, r.target, r.journal.gvks()); return err })
	if err := group.Wait(); err != nil {
		return err
	}
	if gone := source.deleted(); len(gone) > 0 && !r.unattended {
		return fmt.Errorf("somebody deleted %s while it was moved: apply again when it is gone", gone[0].ID)
	}
	if source.digest() != r.journal.Digest {
		return fmt.Errorf("%w: %s", errSourceChanged, r.firstChange(source))
	}
	if differences := compare(r.graph.placed(), target, r.existing); len(differences) > 0 {
		return fmt.Errorf("the target does not hold all that the source holds: %w", differencesError(differences))
	}
	return nil
}

func (r *run) firstChange(now *graph) string {
	after := map[ID]*unstructured.Unstructured{}
	for _, n := range now.placed() {
		after[n.ID] = n.object
	}
	if differences := compare(r.graph.placed(), after, nil); len(differences) > 0 {
		return differences[0].Error()
	}
	before := sets.New[ID]()
	for _, n := range r.graph.placed() {
		before.Insert(n.ID)
	}
	for _, n := range now.placed() {
		if !before.Has(n.ID) {
			return n.ID.String() + " is new"
		}
	}
	return "a field was added"
}

// held reads every object of some kinds on a side.
func held(ctx context.Context, side *Side, gvks []schema.GroupVersionKind) (map[ID]*unstructured.Unstructured, error) {
	lists := make([][]*unstructured.Unstructured, len(gvks))
	indexes := make([]int, len(gvks))
	for i := range indexes {
		indexes[i] = i
	}
	err := each(ctx, listsAtOnce, indexes, func(ctx context.Context, i int) (err error) {
		lists[i], err = list(ctx, side, gvks[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	there := map[ID]*unstructured.Unstructured{}
	for _, o := range slices.Concat(lists...) {
		there[idOf(o)] = o
	}
	return there, nil
}

// waitUnblocked waits until no provider blocks the move of an object any more.
// The pause has told the providers that it is about to come.
func (r *run) waitUnblocked(ctx context.Context) error {
	var blocked []*node
	for _, n := range r.graph.placed() {
		if _, ok := n.object.GetAnnotations()[clusterctlv1.BlockMoveAnnotation]; ok {
			blocked = append(blocked, n)
		}
	}
	if len(blocked) == 0 {
		return nil
	}
	patience := r.opts.BlockedFor
	if r.unattended {
		patience = min(patience, r.opts.RetryFor)
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	said := ""
	err := kube.Wait(waiting, "the providers to let their objects be moved", func(ctx context.Context) (bool, string, error) {
		var holding []string
		for _, n := range blocked {
			o := partial(n.object.GroupVersionKind(), n.ID)
			if err := r.source.Client.Get(ctx, n.key(), o); client.IgnoreNotFound(err) != nil {
				return false, "", err
			}
			if _, ok := o.Annotations[clusterctlv1.BlockMoveAnnotation]; ok {
				holding = append(holding, n.ID.String()+" (set by "+annotator(o, clusterctlv1.BlockMoveAnnotation)+")")
			}
		}
		now := "blocked by " + strings.Join(holding, ", ")
		if len(holding) > 0 && now != said {
			r.opts.Report.Report(ctx, "blocked", now)
			said = now
		}
		return len(holding) == 0, now, nil
	})
	if err != nil && r.unattended && ctx.Err() == nil {
		r.skip(ctx, "the move did not wait for providers that would prepare it: "+said)
		return nil
	}
	return err
}

// annotator names the field manager of an annotation.
func annotator(o *metav1.PartialObjectMetadata, annotation string) string {
	for _, entry := range o.ManagedFields {
		if entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:`+annotation+`"`) {
			return entry.Manager
		}
	}
	return "somebody"
}

func newCopier(target *Side, existing map[ID]bool) *copier {
	return &copier{target: target, existing: existing, made: map[ID]types.UID{}}
}

// commonVersions chooses, for each kind of which both sides serve no stored
// version of the source, another that both do.
func commonVersions(source, target map[schema.GroupKind]*kind, used sets.Set[schema.GroupKind]) (map[schema.GroupKind]string, []error) {
	common := map[schema.GroupKind]string{}
	var lacking []error
	for _, gk := range used.UnsortedList() {
		here, there := source[gk], target[gk]
		switch {
		case there == nil:
			lacking = append(lacking, fmt.Errorf("the target does not know the kind %s", gk))
		case here.contract != "" && version.CompareKubeAwareVersionStrings(there.contract, here.contract) < 0:
			lacking = append(lacking, fmt.Errorf("the target's %s keeps the contract %q of Cluster API and the source's %s: install a newer version of its provider", gk, there.contract, here.contract))
		case slices.Contains(there.versions, here.versions[0]):
		default:
			at := slices.IndexFunc(here.versions, func(version string) bool { return slices.Contains(there.versions, version) })
			if at < 0 {
				lacking = append(lacking, fmt.Errorf("the source serves %s in %v and the target in %v: they have no version in common", gk, here.versions, there.versions))
				continue
			}
			common[gk] = here.versions[at]
		}
	}
	return common, lacking
}

// pausedFor is how long nobody managed the Clusters.
func (j *journal) pausedFor() time.Duration {
	if j.Fenced == nil || j.Resumed == nil {
		return 0
	}
	return j.Resumed.Sub(j.Fenced.Time)
}
