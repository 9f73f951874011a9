// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// release is the one patch before a Delete: it tells providers that the object
// was moved, and takes the finalizers away, so that the Delete removes it at
// once. No controller ever sees it with a deletion timestamp, at which CAPMOX
// destroys the VM. clusterctl patches, deletes and then strips; since 1.10
// controllers put a missing finalizer back even while they are paused, which is
// why it strips last (kubernetes-sigs/cluster-api#11814). The UID keeps a patch
// that comes late from an object of the same name that was made since.
const release = `{"metadata":{"uid":%q,"annotations":{"` + clusterctlv1.DeleteForMoveAnnotation + `":""},"finalizers":null}}`

// removeOne deletes the object with that UID if it is there. The Delete holds only
// for what the patch has answered: a finalizer that was put back in between makes
// it fail, and both are sent again.
func removeOne(ctx context.Context, side *Side, e entry, uid types.UID) error {
	err := side.write(ctx, func() error {
		o := metadataOf(e)
		err := side.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, release, uid)), client.FieldOwner(fieldManager))
		if apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
			return nil // another object of that name: the next round looks at it
		}
		if err == nil {
			err = side.checkLease()
		}
		if err == nil {
			err = side.Client.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID()), ResourceVersion: ptr.To(o.GetResourceVersion())})
		}
		switch {
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
			return nil
		case apierrors.IsConflict(err):
			return retryable{err}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("removing %s from %s: %w", e.id(), side.Name, err)
	}
	return nil
}

// removeRounds is how often what was made again after its removal is removed
// once more.
const removeRounds = 3

// removeAll deletes the journal's objects that are to go from a side, those that
// own others last. Before each level it looks that the side is still paused.
func (r *run) removeAll(ctx context.Context, side *Side, goes func(entry) bool) error {
	for range removeRounds {
		left, err := r.left(ctx, side, goes)
		if err != nil || len(left) == 0 {
			return err
		}
		if err := r.removeLevels(ctx, side, left); err != nil {
			return err
		}
	}
	left, err := r.left(ctx, side, goes)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("removing %s and %d other objects from %s: %w", left[0].id(), len(left)-1, side.Name, errMadeAgain)
	}
	return err
}

func (r *run) removeLevels(ctx context.Context, side *Side, left []entry) error {
	var byLevel [][]entry
	for _, e := range left {
		for len(byLevel) <= e.Level {
			byLevel = append(byLevel, nil)
		}
		byLevel[e.Level] = append(byLevel[e.Level], e)
	}
	for _, level := range slices.Backward(byLevel) {
		if err := r.raiseFence(ctx, side); err != nil {
			return err
		}
		if err := each(ctx, r.parallel(), level, func(ctx context.Context, e entry) error { return removeOne(ctx, side, e, e.UID) }); err != nil {
			return err
		}
	}
	return nil
}

// errMadeAgain says that something fights the removal.
var errMadeAgain = errors.New("somebody makes them again each time: suspend what applies them from elsewhere (Argo CD, Flux) and apply again")

// left answers the objects that are to go and are there, with the UIDs that they
// have there.
func (r *run) left(ctx context.Context, side *Side, goes func(entry) bool) ([]entry, error) {
	there, err := heldUIDs(ctx, side, r.journal.gvks())
	if err != nil {
		return nil, err
	}
	var left []entry
	for _, e := range r.journal.entries {
		if uid, ok := there[e.id()]; ok && goes(e) {
			e.UID = uid
			left = append(left, e)
		}
	}
	return left, nil
}

// heldUIDs lists the metadata of every object of some kinds.
func heldUIDs(ctx context.Context, side *Side, gvks []schema.GroupVersionKind) (map[ID]types.UID, error) {
	there := map[ID]types.UID{}
	var mu sync.Mutex
	err := each(ctx, listsAtOnce, gvks, func(ctx context.Context, gvk schema.GroupVersionKind) error {
		all := &metav1.PartialObjectMetadataList{}
		all.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		err := side.read(ctx, func() error { return side.Client.List(ctx, all) })
		if err = kube.Classify(err); err != nil && !kube.IsAbsent(err) {
			return fmt.Errorf("listing every %s of %s: %w", gvk.Kind, side.Name, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range all.Items {
			o := &all.Items[i]
			there[ID{gvk.Group, gvk.Kind, o.Namespace, o.Name}] = o.UID
		}
		return nil
	})
	return there, err
}

// gvks answers the kinds and versions of the journal's objects.
func (j *journal) gvks() []schema.GroupVersionKind { return gvksOf(j.entries) }

func gvksOf(entries []entry) []schema.GroupVersionKind {
	seen := sets.New[schema.GroupVersionKind]()
	for _, e := range entries {
		seen.Insert(e.gvk())
	}
	return seen.UnsortedList()
}
