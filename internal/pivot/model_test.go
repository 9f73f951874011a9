// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// The model plays random histories of runs that are lost, frozen and overtaken,
// and of people and tools that write between two writes of a run, on two
// in-memory clusters. After every write of a run it checks the promises.

var modelKinds = []schema.GroupVersionKind{
	clusterv1.GroupVersion.WithKind("Cluster"), clusterv1.GroupVersion.WithKind("Machine"),
	{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha2", Kind: "ProxmoxCluster"},
	{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha2", Kind: "ProxmoxMachine"},
	{Version: "v1", Kind: "Secret"},
}

// model is two clusters, the first of which holds a Cluster of two machines.
type model struct {
	t      *testing.T
	random *rand.Rand
	// stored are the clusters as they are, without anything in between.
	stored [2]client.WithWatch
	digest string
	// log is the history, told when a promise is broken.
	mu  sync.Mutex
	log []string
	// quiet ends the disturbances.
	quiet bool
	depth int
	// tooled says that a tool has made the Cluster again right before this write:
	// nobody can tell that from right after it.
	tooled bool
}

func newModel(t *testing.T, seed uint64) *model {
	t.Helper()
	m := &model{t: t, random: rand.New(rand.NewPCG(seed, 1))}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, admissionv1.AddToScheme, coordinationv1.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for i := range m.stored {
		// An API server gives each object a UID; the fake one does not.
		m.stored[i] = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&clusterv1.Cluster{}, &clusterv1.Machine{}).WithReturnManagedFields().
			WithInterceptorFuncs(interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
				if o.GetUID() == "" {
					o.SetUID(types.UID(uuid.NewString()))
				}
				return c.Create(ctx, o, options...)
			}}).Build()
		for _, gvk := range modelKinds[:4] {
			m.must(m.stored[i].Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
				ObjectMeta: metav1.ObjectMeta{Name: gvk.Kind + "." + gvk.Group, Labels: map[string]string{clusterctlv1.ClusterctlLabel: ""}},
				Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: gvk.Group, Scope: apiextensionsv1.NamespaceScoped,
					Names:    apiextensionsv1.CustomResourceDefinitionNames{Kind: gvk.Kind},
					Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: gvk.Version, Storage: true, Served: true}}},
			}))
		}
	}
	m.populate()
	return m
}

func (m *model) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("%v\n%v", err, m.log)
	}
}

func (m *model) populate() {
	made := func(gvk schema.GroupVersionKind, name string, spec map[string]any, owner *unstructured.Unstructured, labels map[string]string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetGroupVersionKind(gvk)
		o.SetNamespace("n")
		o.SetName(name)
		o.SetLabels(labels)
		if gvk.Group != "" {
			o.SetFinalizers([]string{"test/finalizer"})
			o.Object["spec"] = spec
		}
		if owner != nil {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID()}})
		}
		m.must(m.stored[0].Create(m.t.Context(), o))
		return o
	}
	cluster := made(modelKinds[0], "c", map[string]any{"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "ProxmoxCluster", "name": "c"}}, nil, nil)
	made(modelKinds[2], "c", map[string]any{}, cluster, nil)
	made(modelKinds[4], "c-ca", nil, cluster, nil)
	for _, name := range []string{"c-0", "c-1"} {
		machine := made(modelKinds[1], name, map[string]any{"clusterName": "c", "providerID": "proxmox://" + name}, cluster,
			map[string]string{clusterv1.MachineControlPlaneLabel: "", clusterv1.ClusterNameLabel: "c"})
		made(modelKinds[3], name, map[string]any{}, machine, nil)
	}
	m.controllers(0)
	g, err := discover(m.t.Context(), m.side(0, m.stored[0]), Scope{}, false)
	m.must(err)
	m.digest = g.digest()
	if len(g.placed()) != 7 {
		m.t.Fatalf("the model has %d objects, want 7", len(g.placed()))
	}
}

// controllers writes the status that lets a Cluster count as available.
func (m *model) controllers(side int) {
	ctx := context.Background()
	cluster := &clusterv1.Cluster{}
	if m.stored[side].Get(ctx, client.ObjectKey{Namespace: "n", Name: "c"}, cluster) != nil || isPaused(cluster) {
		return
	}
	cluster.Status.Conditions = []metav1.Condition{{Type: clusterv1.ClusterAvailableCondition, Status: metav1.ConditionTrue}}
	m.must(m.stored[side].Status().Update(ctx, cluster))
	machines := &clusterv1.MachineList{}
	m.must(m.stored[side].List(ctx, machines))
	for i := range machines.Items {
		machine := &machines.Items[i]
		machine.Status.NodeRef = clusterv1.MachineNodeReference{Name: machine.Name}
		machine.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}}
		m.must(m.stored[side].Status().Update(ctx, machine))
	}
}

func (m *model) side(i int, c client.Client) *Side {
	return &Side{Client: c, Name: [2]string{"source", "target"}[i], UID: [2]string{"0", "1"}[i],
		inventory: func(context.Context) ([]capi.Installed, error) { return nil, nil }}
}

// runner is one run with its own clients.
type runner struct {
	model *model
	name  string
	// lost makes every request fail, as for a run that was killed; gate holds them
	// back, as for one that is frozen.
	mu   sync.Mutex
	lost bool
	gate chan struct{}
}

var errLost = errors.New("this run was killed")

// pass lets a request through, or not.
func (r *runner) pass(ctx context.Context) error {
	r.mu.Lock()
	lost, gate := r.lost, r.gate
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if lost {
		return errLost
	}
	return nil
}

// write carries a write out, with a disturbance before it and the check after it.
func (r *runner) write(ctx context.Context, side int, what string, o client.Object, do func() error) error {
	if err := r.pass(ctx); err != nil {
		return err
	}
	if _, lease := o.(*coordinationv1.Lease); lease {
		return do()
	}
	r.model.tooled = false
	r.model.disturb(r)
	if err := r.pass(ctx); err != nil {
		return err
	}
	m := r.model
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.managed()
	err := do()
	m.note("%s: %s %s %s on %d: %v", r.name, what, o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), side, err)
	m.check(before)
	for i := range m.stored {
		m.controllers(i)
	}
	return err
}

func (r *runner) client(side int) client.Client {
	dry := func(options []string) bool { return len(options) > 0 }
	return interceptor.NewClient(r.model.stored[side], interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if err := r.pass(ctx); err != nil {
				return err
			}
			return c.Get(ctx, key, o, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := r.pass(ctx); err != nil {
				return err
			}
			return c.List(ctx, list, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			all := &client.CreateOptions{}
			all.ApplyOptions(options)
			if dry(all.DryRun) {
				return r.pass(ctx)
			}
			return r.write(ctx, side, "create", o, func() error { return c.Create(ctx, o, options...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return r.write(ctx, side, "update", o, func() error { return c.Update(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			return r.write(ctx, side, "patch", o, func() error {
				if err := checkUID(ctx, c, o, patch); err != nil {
					return err
				}
				return c.Patch(ctx, o, patch, options...)
			})
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			all := &client.DeleteOptions{}
			all.ApplyOptions(options)
			return r.write(ctx, side, "delete", o, func() error {
				if all.Preconditions != nil && all.Preconditions.UID != nil {
					if err := checkIs(ctx, c, o, *all.Preconditions.UID); err != nil {
						return err
					}
				}
				return c.Delete(ctx, o, options...)
			})
		},
	})
}

// checkUID refuses a patch for another object of that name, as an API server does
// and the fake one does not; its resource versions are the same for each new object.
func checkUID(ctx context.Context, c client.Client, o client.Object, patch client.Patch) error {
	raw, err := patch.Data(o)
	if err != nil {
		return err
	}
	var meant struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(raw, &meant); err != nil || meant.Metadata.UID == "" {
		return err
	}
	return checkIs(ctx, c, o, meant.Metadata.UID)
}

func checkIs(ctx context.Context, c client.Client, o client.Object, uid types.UID) error {
	gvk := o.GetObjectKind().GroupVersionKind()
	found := partial(gvk, ID{Namespace: o.GetNamespace(), Name: o.GetName()})
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), found); err != nil {
		return err
	}
	if found.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, o.GetName(), errors.New("another UID"))
	}
	return nil
}

// move makes one run that may be disturbed.
func (m *model) move(name string, leases kube.Leases, timeout time.Duration) error {
	r := &runner{model: m, name: name}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_, err := Move(ctx, m.side(0, r.client(0)), m.side(1, r.client(1)), Options{
		Parallel: 1, RetryFor: 100 * time.Millisecond, Settle: 5 * time.Millisecond, Leases: leases,
	})
	return err
}

func (m *model) note(format string, arguments ...any) {
	m.log = append(m.log, fmt.Sprintf(format, arguments...))
}

func (m *model) roll(one int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.quiet && m.random.IntN(one) == 0
}

// brief is a lease that a frozen run loses at once, and lasting one that no slow
// machine loses.
var (
	brief   = kube.Leases{Duration: 120 * time.Millisecond, Renewal: 20 * time.Millisecond}
	lasting = kube.Leases{Duration: time.Minute, Renewal: 10 * time.Second}
)

// disturb does something between two writes of a run, sometimes.
func (m *model) disturb(r *runner) {
	switch {
	case m.roll(60):
		m.say(r, "is killed")
		r.mu.Lock()
		r.lost = true
		r.mu.Unlock()
	case m.depth == 0 && m.roll(60):
		m.say(r, "is frozen")
		gate := make(chan struct{})
		r.mu.Lock()
		r.gate = gate
		r.mu.Unlock()
		m.depth++
		err := m.move("the second run", brief, 10*time.Second)
		m.depth--
		m.say(r, fmt.Sprintf("wakes up after the second run, which answered: %v", err))
		r.mu.Lock()
		r.gate = nil
		r.mu.Unlock()
		close(gate)
	case m.roll(80):
		m.unpause(m.random.IntN(2))
	case m.roll(80):
		m.reapply()
	}
}

func (m *model) say(r *runner, what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("%s %s", r.name, what)
}

// unpause is a person with kubectl. One who un-pauses the second of two copies
// breaks the promise himself, and so does not do it here.
func (m *model) unpause(side int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.managed()[1-side] {
		return
	}
	cluster := &clusterv1.Cluster{}
	if m.stored[side].Get(context.Background(), client.ObjectKey{Namespace: "n", Name: "c"}, cluster) != nil || !isPaused(cluster) {
		return
	}
	m.note("somebody un-pauses the Cluster on %d", side)
	cluster.Spec.Paused = nil
	m.must(m.stored[side].Update(context.Background(), cluster, client.FieldOwner("kubectl")))
}

// reapply is a GitOps tool that puts the Cluster back where it was defined.
func (m *model) reapply() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.managed()[0] || m.managed()[1] {
		return
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "c", Finalizers: []string{"test/finalizer"}},
		Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "ProxmoxCluster", Name: "c"}}}
	if err := m.stored[0].Create(context.Background(), cluster, client.FieldOwner("argocd")); err == nil {
		m.tooled = true
		m.note("a tool makes the Cluster again on 0")
	}
}

// managed says of each side whether it manages the Cluster.
func (m *model) managed() [2]bool {
	var managed [2]bool
	for i := range m.stored {
		cluster := &clusterv1.Cluster{}
		managed[i] = m.stored[i].Get(context.Background(), client.ObjectKey{Namespace: "n", Name: "c"}, cluster) == nil && !isPaused(cluster)
	}
	return managed
}

// check holds after each write of a run.
func (m *model) check(before [2]bool) {
	m.t.Helper()
	after := m.managed()
	if after[0] && after[1] && (!before[0] || !before[1]) && !m.tooled {
		m.t.Fatalf("P3: the write made a second manager\n%s", m.history())
	}
	held := map[ID][2]bool{}
	machines := [2]int{}
	for i := range m.stored {
		for _, gvk := range modelKinds {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
			m.must(m.stored[i].List(context.Background(), list))
			for j := range list.Items {
				o := &list.Items[j]
				if o.GetDeletionTimestamp() != nil {
					m.t.Fatalf("P6: %s is seen being deleted on %d\n%s", idOf(o), i, m.history())
				}
				on := held[idOf(o)]
				on[i] = true
				held[idOf(o)] = on
				if gvk.Kind == "Machine" {
					machines[i]++
				}
			}
		}
	}
	if len(held) != 7 {
		m.t.Fatalf("P4: %d of 7 objects are left\n%s", len(held), m.history())
	}
	for i := range after {
		if after[i] && !before[i] && machines[i] < 2 {
			m.t.Fatalf("P6: the write made %d manage the Cluster with %d of 2 machines\n%s", i, machines[i], m.history())
		}
	}
}

func (m *model) history() string {
	text := ""
	for _, line := range m.log {
		text += "  " + line + "\n"
	}
	return text
}

// TestNoHistoryBreaksAPromise plays random histories; MODEL_SEED plays one again.
func TestNoHistoryBreaksAPromise(t *testing.T) {
	first, count := uint64(time.Now().UnixNano()), 12
	if os.Getenv("PIVOT_EXHAUSTIVE") != "" {
		count = 1000
	}
	if seed, err := strconv.ParseUint(os.Getenv("MODEL_SEED"), 10, 64); err == nil {
		first, count = seed, 1
	}
	for seed := first; seed < first+uint64(count); seed++ {
		if !t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { newModel(t, seed).play() }) {
			return
		}
	}
}

// play moves until it succeeds, first disturbed and then not.
func (m *model) play() {
	for range 6 {
		if err := m.move("a run", brief, 20*time.Second); err == nil {
			break
		}
	}
	m.quiet = true
	m.expireLeases()
	err := m.move("the last run", lasting, 5*time.Minute)
	if errors.Is(err, ErrHalfDone) && m.managed()[1] {
		// The tool put a Cluster on the source after the move was done: it is refused,
		// and whose it is must be said by a person.
		return
	}
	m.must(err)
	if after := m.managed(); after[0] || !after[1] {
		m.t.Fatalf("managed: %v, want by the target alone\n%s", after, m.history())
	}
	g, err := discover(context.Background(), m.side(1, m.stored[1]), Scope{}, false)
	m.must(err)
	if g.digest() != m.digest {
		m.t.Fatalf("the digest differs after\n%s", m.history())
	}
}

func (m *model) expireLeases() {
	for i := range m.stored {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseKey.Namespace, Name: leaseKey.Name}}
		m.must(client.IgnoreNotFound(m.stored[i].Delete(context.Background(), lease)))
	}
}
