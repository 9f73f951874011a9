// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// prove looks at the target after its controllers have taken over: the Clusters
// are available, the Machines are those that were moved, and nothing of the move
// is left on the objects. Then the journal is closed.
func (r *run) prove(ctx context.Context) (*Result, error) {
	if !r.journal.Unattended {
		if err := r.waitAvailable(ctx, r.target); err != nil {
			return nil, err
		}
	}
	r.opts.Report.Report(ctx, "proving", "comparing the Machines after the move with those before")
	if err := r.proveMachines(ctx); err != nil {
		return nil, err
	}
	if err := r.proveEtcd(ctx); err != nil {
		return nil, err
	}
	if err := r.proveManagers(ctx); err != nil {
		return nil, err
	}
	for _, phase := range []Phase{PhaseProven, PhaseDone} {
		if err := r.journal.save(ctx, phase, r.sides()...); err != nil {
			return nil, err
		}
	}
	if err := r.forgetOlder(ctx); err != nil {
		return nil, err
	}
	return r.journal.result(), nil
}

func (j *journal) result() *Result {
	return &Result{
		Clusters: j.clusterKeys(), Counts: j.Counts, ProviderIDs: j.ProviderIDs, Digest: j.Digest,
		Stayed: j.Stayed, PausedFor: j.pausedFor(), ID: j.ID, Backup: j.Backup, Scope: j.Scope, Skipped: j.Skipped,
	}
}

// proveMachines compares the provider IDs of the Machines, until it has done so
// for as long as the options say: a rollout that a difference between the two
// clusters sets off makes a new Machine first.
func (r *run) proveMachines(ctx context.Context) error {
	same := func(ctx context.Context) (bool, string, error) {
		machines, ids, err := r.machinesNow(ctx)
		if err != nil {
			return false, "", err
		}
		if !slices.Equal(ids, r.journal.ProviderIDs) {
			return false, "", kube.Fatal(fmt.Errorf("the target has machines with the provider ids %v instead of %v", ids, r.journal.ProviderIDs))
		}
		if want := int(r.journal.Counts["Machine"]); machines != want {
			return false, "", kube.Fatal(fmt.Errorf("the target has %d machines and the source had %d: a controller is replacing or scaling them", machines, want))
		}
		return true, "", nil
	}
	if r.opts.ProveFor <= 0 {
		_, _, err := same(ctx)
		return err
	}
	return kube.WaitUnbroken(ctx, "the machines to stay as they were", r.opts.ProveFor, same)
}

// machinesNow counts the Machines of the moved Clusters on the target, and
// answers their provider IDs, sorted.
func (r *run) machinesNow(ctx context.Context) (int, []string, error) {
	all := &clusterv1.MachineList{}
	err := r.target.read(ctx, func() error { return r.target.Client.List(ctx, all) })
	if err != nil {
		return 0, nil, fmt.Errorf("listing the machines of %s: %w", r.target.Name, err)
	}
	moved := sets.New(r.journal.clusterKeys()...)
	count, ids := 0, []string(nil)
	for i := range all.Items {
		m := &all.Items[i]
		if !moved.Has(client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.ClusterName}) {
			continue
		}
		count++
		if m.Spec.ProviderID != "" {
			ids = append(ids, m.Spec.ProviderID)
		}
	}
	slices.Sort(ids)
	return count, ids, nil
}

// etcdCondition is how the control planes of kubeadm and Talos tell that each member
// of etcd is well and has a Machine.
const etcdCondition = "EtcdClusterHealthy"

// etcdHealth answers what a control plane says against its etcd, and nothing when
// it says that it is well.
func etcdHealth(plane *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(plane.Object, "status", "conditions")
	for _, item := range conditions {
		c, _ := item.(map[string]any)
		if c["type"] == etcdCondition && c["status"] == "True" {
			return ""
		}
		if c["type"] == etcdCondition {
			return fmt.Sprintf("%v is %v: %v %v", c["type"], c["status"], c["reason"], c["message"])
		}
	}
	return "it has no condition " + etcdCondition
}

// proveEtcd waits until each control plane which said that its etcd was well says
// so again.
func (r *run) proveEtcd(ctx context.Context) error {
	for _, c := range r.journal.Clusters {
		if c.Etcd == nil {
			continue
		}
		at := slices.IndexFunc(r.journal.entries, func(e entry) bool { return e.id() == *c.Etcd })
		if at < 0 {
			continue
		}
		r.opts.Report.Report(ctx, "proving", "asking "+c.Etcd.String()+" for the members of etcd")
		err := kube.Wait(ctx, c.Etcd.String()+" to find the members of etcd as they were", func(ctx context.Context) (bool, string, error) {
			plane := &unstructured.Unstructured{}
			plane.SetGroupVersionKind(r.journal.entries[at].gvk())
			if err := r.target.Client.Get(ctx, c.Etcd.key(), plane); err != nil {
				return false, "", err
			}
			now := etcdHealth(plane)
			return now == "", now, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// proveManagers looks that the move owns no field: whoever applies the objects
// could not remove it any more.
func (r *run) proveManagers(ctx context.Context) error {
	there, err := held(ctx, r.target, r.journal.gvks())
	if err != nil {
		return err
	}
	var foreign []error
	for _, e := range r.journal.entries {
		o := there[e.id()]
		if o != nil && slices.ContainsFunc(o.GetManagedFields(), isOfMove) {
			foreign = append(foreign, fmt.Errorf("%s is left with fields that the move owns", e.id()))
		}
	}
	return errors.Join(foreign...)
}

// forgetOlder removes the journals of earlier moves between the same clusters
// with the same scope: the last one tells what there is to tell.
func (r *run) forgetOlder(ctx context.Context) error {
	for _, side := range r.sides() {
		found, err := journals(ctx, side)
		if err != nil {
			return err
		}
		for _, j := range found {
			if j.ID == r.journal.ID || j.Phase != PhaseDone || j.Source != r.journal.Source || j.Target != r.journal.Target || !j.Scope.equal(r.journal.Scope) {
				continue
			}
			if err := j.remove(ctx, side); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s Scope) equal(other Scope) bool {
	return slices.Equal(s.Namespaces, other.Namespaces) && slices.Equal(s.Clusters, other.Clusters)
}

// alreadyDone answers what an earlier move came to: its journal's word, or what
// the target holds when there is none.
func (r *run) alreadyDone(ctx context.Context) (*Result, error) {
	found, err := journals(ctx, r.target)
	if err != nil {
		return nil, err
	}
	var last *journal
	for _, j := range found {
		if j.Phase == PhaseDone && j.Target == r.target.UID && j.Scope.equal(r.opts.Scope) && (r.source == nil || j.Source == r.source.UID) {
			last = j
		}
	}
	if last == nil || !last.Unattended {
		if err := r.waitAvailable(ctx, r.target); err != nil {
			return nil, err
		}
	}
	if last != nil {
		return last.result(), nil
	}
	g, err := r.discover(ctx, r.target)
	if err != nil {
		return nil, err
	}
	result := &Result{Counts: g.counts(), ProviderIDs: g.providerIDs(), Digest: g.digest()}
	for _, c := range g.ofKind(clusterKind) {
		if c.level >= 0 {
			result.Clusters = append(result.Clusters, c.key())
		}
	}
	return result, nil
}
