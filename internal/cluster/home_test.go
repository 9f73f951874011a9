// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/contract"
)

func replaceAll(text, old, changed string) string { return strings.ReplaceAll(text, old, changed) }

func changed(t *testing.T, old, to string) change {
	t.Helper()
	return func(text string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("the text has no %q", old)
		}
		return replaceAll(text, old, to)
	}
}

// TestHome runs the engine against a real API server.
func TestHome(t *testing.T) {
	r := newRig(t)
	for name, test := range map[string]func(*testing.T, *rig){
		"a creation":                          testCreate,
		"an update rolls and prunes":          testUpdate,
		"a rollout that hangs":                testHangingRollout,
		"a cluster that somebody else made":   testAdoption,
		"a change cut short at its writes":    testInterruptedUpdates,
		"drift":                               testDrift,
		"autoscaled and ignored fields":       testIgnored,
		"a self-managed cluster's pre-checks": testCheckRollout,
		"a deletion":                          testDelete,
		"finding the home":                    testFindHome,
		"writes that fail":                    testFailingWrites,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, r)
		})
	}
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// made creates the example in a namespace and marks it as finished.
func made(ctx context.Context, t *testing.T, r *rig, namespace string, changes ...change) (Home, *contract.Providers) {
	t.Helper()
	p := r.run(t, namespace)
	h := r.home(t, namespace)
	if _, err := h.Create(ctx, h.options(t, "me", changes...), func() {}); err != nil {
		t.Fatal(err)
	}
	if err := h.Finish(ctx, "me"); err != nil {
		t.Fatal(err)
	}
	return h, p
}

func (h Home) names(ctx context.Context, t *testing.T, apiVersion, kind string) []string {
	t.Helper()
	objects, err := h.Client.Objects(ctx, apiVersion, kind, h.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range objects {
		names = append(names, o.GetName())
	}
	slices.Sort(names)
	return names
}

func (h Home) templates(ctx context.Context, t *testing.T) []string {
	t.Helper()
	return h.names(ctx, t, "infrastructure.cluster.x-k8s.io/v1alpha2", "ProxmoxMachineTemplate")
}

func (h Home) plane(ctx context.Context, t *testing.T) *unstructured.Unstructured {
	t.Helper()
	found, err := h.Client.Object(ctx, "controlplane.cluster.x-k8s.io/v1alpha3", "TalosControlPlane", h.Namespace, "kmgtcp")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func testCreate(t *testing.T, r *rig) {
	ctx := deadline(t)
	h := r.home(t, "create")
	options := h.options(t, "one")
	r.run(t, "create")
	begun := false
	created, err := h.Create(ctx, options, func() {
		begun = true
		if _, err := h.Cluster(ctx); !kube.IsAbsent(err) {
			t.Errorf("the Cluster when the creation starts: %v", err)
		}
	})
	if err != nil || !begun {
		t.Fatalf("begun %v, %v", begun, err)
	}
	if len(created.Credentials.Kubeconfig) == 0 || len(created.Machines) != 1 {
		t.Errorf("created %d bytes of kubeconfig and %d machines", len(created.Credentials.Kubeconfig), len(created.Machines))
	}
	cluster, err := h.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	inventory, err := readInventory(cluster)
	if err != nil || len(inventory) != 3 {
		t.Errorf("inventory %v, %v", inventory, err)
	}
	// The first instance never came to its end, so another takes its work over.
	if _, err := h.Create(ctx, h.options(t, "two"), func() {}); err != nil {
		t.Fatalf("taking over what is unfinished: %v", err)
	}
	if err := h.Finish(ctx, "two"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Create(ctx, h.options(t, "three"), func() {}); !errors.Is(err, ErrExists) {
		t.Errorf("a creation over a finished Cluster answers %v", err)
	}
	// Its provider tells the Cluster its endpoint, which nobody else may have.
	live, err := h.Client.Object(ctx, coreVersion, "Cluster", "create", "kmgt")
	if err != nil {
		t.Fatal(err)
	}
	contract.Edit(ctx, t, h.Client, live, `{"spec": {"controlPlaneEndpoint": {"host": "10.0.0.77", "port": 6443}}}`)
	other := r.home(t, "create-other")
	clash := other.options(t, "four", changed(t, `{host: "${VIP}", port: 6443}`, "{host: 10.0.0.77, port: 6443}"))
	if _, err := other.Create(ctx, clash, func() {}); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "same control plane endpoint 10.0.0.77") {
		t.Errorf("the same endpoint answers %v", err)
	}
}

func testUpdate(t *testing.T, r *rig) {
	ctx := deadline(t)
	h, _ := made(ctx, t, r, "update", withWorkers("update"))
	before := h.plane(ctx, t)
	if _, err := h.Update(ctx, h.options(t, "me", withWorkers("update")), false, false); err != nil {
		t.Fatal(err)
	}
	if after := h.plane(ctx, t); after.GetGeneration() != before.GetGeneration() {
		t.Errorf("an update without a change makes generation %d of %d", after.GetGeneration(), before.GetGeneration())
	}
	machines, err := h.Machines(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// Another memory for all machines, and the version of the control plane.
	if _, err := h.Update(ctx, h.options(t, "me", withWorkers("update"), changed(t, "memoryMiB: 8192", "memoryMiB: 4096"), changed(t, "v1.36.2", "v1.36.3")), false, false); err != nil {
		t.Fatal(err)
	}
	templates := h.templates(ctx, t)
	if len(templates) != 1 || templates[0] == "kmgtcp" {
		t.Fatalf("templates %v, want one with a hash", templates)
	}
	rolled, err := h.Machines(ctx)
	if err != nil || len(rolled) != 3 {
		t.Fatalf("%d machines, %v", len(rolled), err)
	}
	for _, m := range rolled {
		if slices.ContainsFunc(machines, func(old Machine) bool { return old.Name == m.Name }) {
			t.Errorf("machine %s was not replaced", m.Name)
		}
	}
	// The workers leave the manifest.
	if _, err := h.Update(ctx, h.options(t, "me", changed(t, "memoryMiB: 8192", "memoryMiB: 4096"), changed(t, "v1.36.2", "v1.36.3")), false, false); err != nil {
		t.Fatal(err)
	}
	if left := h.names(ctx, t, "cluster.x-k8s.io/v1beta2", "MachineDeployment"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	if left := h.names(ctx, t, "bootstrap.cluster.x-k8s.io/v1alpha3", "TalosConfigTemplate"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

func testHangingRollout(t *testing.T, r *rig) {
	ctx := deadline(t)
	h, p := made(ctx, t, r, "hang")
	old, err := h.Machines(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.Stuck.Store(true)
	short, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	_, err = h.Update(short, h.options(t, "me", changed(t, "memoryMiB: 8192", "memoryMiB: 4096")), false, false)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the answer is %v", err)
	}
	for _, text := range []string{"to be rolled out", "0 of 1 machines are as they should be", "is of the old template", "Cluster/kmgt", "workers are missing", "kubectl --namespace hang describe cluster.cluster.x-k8s.io kmgt"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q:\n%v", text, err)
		}
	}
	now, err := h.Machines(ctx)
	if err != nil || !slices.ContainsFunc(now, func(m Machine) bool { return m.Name == old[0].Name }) {
		t.Errorf("the old machine is gone: %v %v", now, err)
	}
	if templates := h.templates(ctx, t); len(templates) != 2 {
		t.Errorf("templates %v, want the old and the new one", templates)
	}
	// Whatever was in the way is gone, and the next apply goes on.
	p.Stuck.Store(false)
	if _, err := h.Update(ctx, h.options(t, "me", changed(t, "memoryMiB: 8192", "memoryMiB: 4096")), false, false); err != nil {
		t.Fatal(err)
	}
	if templates := h.templates(ctx, t); len(templates) != 1 || templates[0] == "kmgtcp" {
		t.Errorf("templates %v, want the new one", templates)
	}
}

// testAdoption makes the objects as kubectl would, and gives them to this engine.
func testAdoption(t *testing.T, r *rig) {
	ctx := deadline(t)
	h := r.home(t, "adopt")
	if err := h.Client.EnsureNamespace(ctx, "adopt"); err != nil {
		t.Fatal(err)
	}
	options := h.options(t, "me")
	for _, o := range options.Manifest.Objects {
		if err := h.Client.Create(ctx, o.DeepCopy(), client.FieldOwner("kubectl-create")); err != nil {
			t.Fatal(err)
		}
	}
	r.run(t, "adopt")
	if _, err := h.WaitInitialized(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitRolledOut(ctx, options); err != nil {
		t.Fatal(err)
	}
	before, plane := h.machineNames(ctx, t), h.plane(ctx, t)
	if drift, err := h.Drift(ctx, options.Manifest, nil); err != nil || len(drift) > 0 {
		t.Errorf("drift %v, %v; want none", drift, err)
	}
	if _, err := h.Update(ctx, options, true, false); err != nil {
		t.Fatal(err)
	}
	if after := h.machineNames(ctx, t); !slices.Equal(after, before) {
		t.Errorf("machines %v became %v", before, after)
	}
	if templates := h.templates(ctx, t); !slices.Equal(templates, []string{"kmgtcp"}) {
		t.Errorf("templates %v, want kmgtcp", templates)
	}
	if after := h.plane(ctx, t); after.GetGeneration() != plane.GetGeneration() {
		t.Errorf("the control plane's generation %d became %d", plane.GetGeneration(), after.GetGeneration())
	}
	if _, err := h.Update(ctx, h.options(t, "me", changed(t, "memoryMiB: 8192", "memoryMiB: 4096")), false, false); err != nil {
		t.Fatal(err)
	}
	if templates := h.templates(ctx, t); len(templates) != 1 || templates[0] == "kmgtcp" {
		t.Errorf("after a change the templates are %v, want a new one alone", templates)
	}
}

func (h Home) machineNames(ctx context.Context, t *testing.T) []string {
	t.Helper()
	machines, err := h.Machines(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range machines {
		names = append(names, m.Name)
	}
	return names
}

// cut is a client that fails for good from its nth write on, as that of a killed
// run does.
func cut(t *testing.T, c *kube.Client, after int) *kube.Client {
	t.Helper()
	left := after
	spend := func() error {
		left--
		if left < 0 {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "all"}, "", errors.New("cut"))
		}
		return nil
	}
	watched, err := client.NewWithWatch(c.Config, client.Options{Scheme: c.Scheme(), Mapper: c.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	made := interceptor.NewClient(watched, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if err := spend(); err != nil {
				return err
			}
			return c.Apply(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := spend(); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := spend(); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
	})
	return &kube.Client{Client: made, Config: c.Config}
}

// testInterruptedUpdates stops a change after each second of its writes in turn;
// the next run must bring the same end, with nothing left over.
func testInterruptedUpdates(t *testing.T, r *rig) {
	ctx := deadline(t)
	h, _ := made(ctx, t, r, "interrupt", withWorkers("interrupt"))
	memory := 4096
	// Every other write, and workers in every other round, keep it short.
	for writes, round := 0, 0; ; writes, round = writes+2, round+1 {
		more := changed(t, "memoryMiB: 8192", fmt.Sprintf("memoryMiB: %d", memory))
		options := h.options(t, "me", more)
		if round%2 == 1 {
			options = h.options(t, "me", more, withWorkers("interrupt"))
		}
		memory += 8
		broken := h
		broken.Client = cut(t, r.client, writes)
		_, cutErr := broken.Update(ctx, options, false, false)
		if _, err := h.Update(ctx, options, false, false); err != nil {
			t.Fatalf("after %d writes: %v", writes, err)
		}
		if templates := h.templates(ctx, t); len(templates) != 1 {
			t.Errorf("after %d writes the templates are %v, want one", writes, templates)
		}
		if found := len(h.names(ctx, t, "cluster.x-k8s.io/v1beta2", "MachineDeployment")); found != round%2 {
			t.Errorf("after %d writes there are %d MachineDeployments", writes, found)
		}
		if cutErr == nil {
			if writes < 6 {
				t.Errorf("the change took %d writes only", writes)
			}
			return
		}
	}
}

func testDelete(t *testing.T, r *rig) {
	ctx := deadline(t)
	h := r.home(t, "delete")
	if err := h.Delete(ctx, "me"); err != nil {
		t.Errorf("deleting what is not there: %v", err)
	}
	h, _ = made(ctx, t, r, "delete")
	if err := h.Delete(ctx, "other"); err == nil || !strings.Contains(err.Error(), "another resource instance") {
		t.Errorf("deleting another's cluster answers %v", err)
	}
	if _, err := h.Cluster(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.Delete(ctx, "me"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Cluster(ctx); !kube.IsAbsent(err) {
		t.Errorf("after the deletion: %v", err)
	}
}

func testFindHome(t *testing.T, r *rig) {
	ctx := deadline(t)
	config := *r.client.Config
	config.Host = "https://127.0.0.1:1"
	dead, err := kube.NewClient(&config)
	if err != nil {
		t.Fatal(err)
	}
	away := Home{Client: dead, Namespace: "find", Name: "kmgt"}
	none := r.home(t, "nowhere")
	if _, _, err := FindHome(ctx, none, none); !kube.IsAbsent(err) {
		t.Errorf("proven absent everywhere answers %v", err)
	}
	if _, _, err := FindHome(ctx, none, away); err == nil || kube.IsAbsent(err) {
		t.Errorf("one that cannot be asked answers %v, want neither found nor absent", err)
	}
	h, _ := made(ctx, t, r, "find")
	if found, _, err := FindHome(ctx, away, none, h); err != nil || found.Namespace != "find" {
		t.Errorf("the living one answers %v, %v", found, err)
	}
	paused, _ := made(ctx, t, r, "findpaused")
	object, err := paused.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	object.Spec.Paused = ptr.To(true)
	if err := r.client.Update(ctx, object); err != nil {
		t.Fatal(err)
	}
	if found, _, err := FindHome(ctx, paused, h); err != nil || found.Namespace != "find" {
		t.Errorf("paused and un-paused answers %v, %v", found, err)
	}
	if found, _, err := FindHome(ctx, none, paused); err != nil || found.Namespace != "findpaused" {
		t.Errorf("paused alone answers %v, %v", found, err)
	}
}

func testFailingWrites(t *testing.T, r *rig) {
	ctx := deadline(t)
	h := r.home(t, "writes")
	failures := map[string]struct {
		err   error
		final bool
	}{
		"a webhook that does not answer yet": {err: apierrors.NewInternalError(errors.New("failed calling webhook"))},
		"a server that is busy":              {err: apierrors.NewTooManyRequests("slow down", 1)},
		"a server that is not there":         {err: errors.New("connection refused")},
		"a webhook that says no":             {err: apierrors.NewInvalid(clusterKind, "kmgt", nil), final: true},
		"a right that is missing":            {err: apierrors.NewForbidden(schema.GroupResource{}, "kmgt", nil), final: true},
		"a namespace that is not there":      {err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "kmgt"), final: true},
	}
	for name, test := range failures {
		t.Run(name, func(t *testing.T) {
			calls := 0
			err := h.retry(ctx, "writing", func(context.Context) error {
				calls++
				if calls == 1 {
					return fmt.Errorf("applying: %w", test.err)
				}
				return nil
			})
			if (err != nil) != test.final || (calls == 1) != test.final {
				t.Errorf("%d calls, %v", calls, err)
			}
		})
	}
}

func testCheckRollout(t *testing.T, r *rig) {
	ctx := deadline(t)
	h, _ := made(ctx, t, r, "precheck")
	next := h.options(t, "me", changed(t, "memoryMiB: 8192", "memoryMiB: 4096"))
	if err := h.CheckRollout(ctx, h.options(t, "me"), false); err != nil {
		t.Errorf("without a change: %v", err)
	}
	if err := h.CheckRollout(ctx, h.options(t, "me", changed(t, "replicas: 1", "replicas: 3")), false); err != nil {
		t.Errorf("more machines: %v", err)
	}
	if err := h.CheckRollout(ctx, next, false); !errors.Is(err, ErrSinglePlane) {
		t.Errorf("a single machine: %v", err)
	}
	if err := h.CheckRollout(ctx, next, true); err != nil {
		t.Errorf("a single machine that is allowed: %v", err)
	}
	plane := h.plane(ctx, t)
	patch := []byte(`{"status": {"conditions": [{"type": "EtcdClusterHealthyCondition", "status": "False", "severity": "Error", "reason": "EtcdClusterUnhealthy", "message": "one member", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`)
	if err := r.client.Status().Patch(ctx, plane, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
	if err := h.CheckRollout(ctx, next, true); err == nil || !strings.Contains(err.Error(), "EtcdClusterUnhealthy one member") {
		t.Errorf("an etcd that is not healthy: %v", err)
	}
}
