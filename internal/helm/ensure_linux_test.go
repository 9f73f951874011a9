// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"helm.sh/helm/v3/pkg/release"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/ownership"
)

// engine is one with leases short enough for tests.
var engine = Engine{Leases: kube.Leases{Duration: 2 * time.Second, Renewal: 500 * time.Millisecond}}

// fixture is a cluster with a namespace of its own for each test.
type fixture struct {
	*kube.Client
	running   *plane.Plane
	namespace string
}

// proxy answers a proxy that can fail and a client that goes through it.
func (f *fixture) proxy(t *testing.T) (*plane.Proxy, *kube.Client) {
	t.Helper()
	proxy := f.running.Proxy(t)
	through, err := kube.NewClient(proxy.Config())
	if err != nil {
		t.Fatal(err)
	}
	return proxy, through
}

func (f *fixture) spec(t *testing.T, chart testChart, documents ...string) Spec {
	t.Helper()
	values, err := MergeValues(documents)
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Name: "probe", Namespace: f.namespace, CreateNamespace: true, Chart: Chart{Ref: chart.file(t)}, Values: values, Owner: uuid.NewString()}
}

func (f *fixture) word(t *testing.T) (word, install string) {
	t.Helper()
	words := &corev1.ConfigMap{}
	if err := f.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "probe-words"}, words); err != nil {
		t.Fatal(err)
	}
	return words.Data["word"], words.Data["install"]
}

func (f *fixture) ensure(t *testing.T, spec Spec) *Release {
	t.Helper()
	released, err := engine.Ensure(t.Context(), f.Client, spec)
	if err != nil {
		t.Fatal(err)
	}
	return released
}

// ensureUntil is an Ensure whose time is over once its progress says something.
func (f *fixture) ensureUntil(t *testing.T, spec Spec, said string) (*Release, error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	late := engine
	late.Report = func(_ context.Context, _, message string) {
		if strings.Contains(message, said) {
			cancel(context.DeadlineExceeded)
		}
	}
	return late.Ensure(ctx, f.Client, spec)
}

// interrupt leaves the release behind as a killed run does: the record says
// status, and the lease is held by owner.
func (f *fixture) interrupt(t *testing.T, owner string, status release.Status) {
	t.Helper()
	cfg, err := configure(t.Context(), f.Client, f.namespace, "probe", nil)
	if err != nil {
		t.Fatal(err)
	}
	last, err := newest(cfg, "probe")
	if err != nil {
		t.Fatal(err)
	}
	last.SetStatus(status, "under way")
	if err := cfg.Releases.Update(last); err != nil {
		t.Fatal(err)
	}
	_, lease, err := engine.Leases.Acquire(t.Context(), f.Client, leaseKey(Spec{Name: "probe", Namespace: f.namespace}), owner, nil)
	if err != nil {
		t.Fatal(err)
	}
	lease.Abandon()
}

// TestReleases runs all cases on one control plane, each in a namespace.
func TestReleases(t *testing.T) {
	running := plane.Start(t)
	connected, err := kube.NewClient(running.Config)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*testing.T, *fixture){
		"install upgrade and remove":                                         testLifeCycle,
		"an equal configuration makes no new revision":                       testNoNewRevision,
		"a release without our mark is not touched":                          testForeign,
		"a finished release of another resource is not touched":              testFinishedOfAnother,
		"a finished release of the same configuration is taken over":         testTakeOver,
		"an imported release is adopted whatever its mark":                   testAdopt,
		"an interrupted install is installed again":                          testInterruptedInstall,
		"an interrupted upgrade is upgraded again":                           testInterruptedUpgrade,
		"an interrupted uninstall is finished before an install":             testInterruptedUninstall,
		"a renewed lease means that another run is at work":                  testHeld,
		"a wait that does not end leaves a failed release that can go on":    testFailedWait,
		"a cancelled install leaves a failed release within seconds":         testCancelled,
		"bad templates leave nothing":                                        testBadTemplate,
		"definitions outlive an upgrade without them and an uninstall":       testDefinitions,
		"an API server that is away is neither present nor absent":           testUnreachable,
		"a failing hook fails the release and the next run repairs it":       testFailedHook,
		"a release removed by somebody else is absent":                       testAbsent,
		"a success that did not get on record is a failure with a way ahead": testLostRecord,
		"a namespace that is not wanted is not made":                         testNoNamespace,
		"each unfinished state is taken up as it was asked for":              testRecoveries,
		"a roll-back to what is wanted needs no upgrade":                     testRecoverRollbackToWanted,
		"an unfinished release is left to people where that was asked for":   testRecoverFail,
		"a roll-back to before our time keeps the release ours":              testRollbackBeforeOurTime,
		"another Helm client at work is waited for":                          testOtherClient,
		"an atomic install that fails leaves nothing":                        testAtomicInstall,
		"an atomic upgrade that is cancelled is rolled back":                 testAtomicCancelled,
		"an atomic upgrade that never began has nothing to undo":             testAtomicRefused,
		"objects of kinds that are no longer served are in nobody's way":     testRemovedKind,
		"errors and progress show no secret":                                 testNoSecretIsShown,
		"a release of nothing but definitions":                               testOnlyDefinitions,
		"definitions go on request, but for those with objects":              testDefinitionsOnRequest,
		"edited objects are told, masked, and brought back":                  testDrift,
		"a custom resource goes back after a failed upgrade":                 testFailedCustomResource,
		"an edited custom resource is brought back as well":                  testDriftOfCustomResources,
		"a quota that refuses an object":                                     testQuota,
		"an API server that is restarted in the middle":                      testAPIServerRestarts,
		"two releases at once":                                               testTwoReleases,
		"300 objects and a record of nearly 1 MiB":                           testLarge,
		"charts that are not to be had":                                      testUnreachableSources,
		"a record that cannot be read back is neither there nor absent":      testUnknownRecord,
		"kill -9 at every write":                                             testKills,
		"what unfinished revisions have brought goes":                        testLeftovers,
		"what could not be deleted is found again":                           testUndeleted,
		"a namespace that is being deleted":                                  testEndingNamespace,
		"a finished release stays somebody's when its upgrade is killed":     testInterruptedOfAnother,
		"a release that helm uninstall has kept on record":                   testUninstalledOnRecord,
		"a run that fails late leaves what another may take up":              testFailedLate,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, &fixture{connected, running, "n-" + uuid.NewString()[:8]})
		})
	}
	// In this order: the operator's chart has objects of cert-manager's kinds, which
	// outlive the removal of cert-manager's release.
	for _, chart := range []struct {
		name      string
		documents []string
	}{
		{"cilium", []string{"kubeProxyReplacement: true\noperator: {replicas: 1}"}},
		{"cert-manager", []string{"crds: {enabled: true}", "startupapicheck: {enabled: false}"}},
		{"cluster-api-operator", nil},
	} {
		t.Run("the chart "+chart.name+" is installed and removed", func(t *testing.T) {
			testRealChart(t, &fixture{connected, running, "n-" + uuid.NewString()[:8]}, running.Artifacts.Charts[chart.name], chart.documents)
		})
	}
}

// testRealChart does not wait: the control plane has no nodes.
func testRealChart(t *testing.T, f *fixture, archive string, documents []string) {
	spec := f.spec(t, newTestChart("1.0.0"), documents...)
	spec.Chart.Ref = archive
	got := f.ensure(t, spec)
	if !got.Deployed() || !strings.Contains(archive, got.Chart+"-"+got.Version) {
		t.Errorf("installed %+v from %s", got, archive)
	}
	if again := f.ensure(t, spec); again.Revision != 1 {
		t.Errorf("the same again made revision %d", again.Revision)
	}
	if got := f.drift(t, true); got != "" {
		t.Errorf("right after the install there is a drift:\n%s", got)
	}
	if err := Remove(t.Context(), f.Client, f.namespace, "probe", spec.Owner, nil); err != nil {
		t.Fatal(err)
	}
}

func testLifeCycle(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	if got := f.ensure(t, spec); got.Revision != 1 || !got.Deployed() || got.Version != "1.0.0" || got.AppVersion != "app-1.0.0" || got.Owner != spec.Owner {
		t.Errorf("installed %+v", got)
	}
	if word, install := f.word(t); word != "one" || install != "true" {
		t.Errorf("the chart was rendered with %q, install %s", word, install)
	}
	spec.Chart.Ref = newTestChart("1.1.0").file(t)
	spec.Values = map[string]any{"word": "two"}
	if got := f.ensure(t, spec); got.Revision != 2 || !got.Deployed() || got.Version != "1.1.0" || got.ValuesHash != HashValues(spec.Values) {
		t.Errorf("upgraded to %+v", got)
	}
	if word, install := f.word(t); word != "two" || install != "false" {
		t.Errorf("the chart was rendered with %q, install %s", word, install)
	}
	spec.Values = nil
	f.ensure(t, spec)
	if word, _ := f.word(t); word != "default" {
		t.Errorf("a value that was left out is still %q", word)
	}
	if err := Remove(t.Context(), f.Client, f.namespace, "probe", uuid.NewString(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(t.Context(), f.Client, f.namespace, "probe"); err != nil {
		t.Errorf("somebody else's removal touched the release: %v", err)
	}
	for range 2 {
		if err := Remove(t.Context(), f.Client, f.namespace, "probe", spec.Owner, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Read(t.Context(), f.Client, f.namespace, "probe"); !kube.IsAbsent(err) {
		t.Errorf("after its removal the release answers %v", err)
	}
	if _, err := f.Object(t.Context(), "v1", "ConfigMap", f.namespace, "probe-words"); !kube.IsAbsent(err) {
		t.Errorf("after its removal the release's object answers %v", err)
	}
}

func testNoNewRevision(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	if got := f.ensure(t, spec); got.Revision != 1 {
		t.Errorf("got revision %d", got.Revision)
	}
}

func testForeign(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"))
	unmarked := spec
	unmarked.Owner = ""
	if err := f.EnsureNamespace(t.Context(), f.namespace); err != nil {
		t.Fatal(err)
	}
	chart, err := unmarked.Chart.load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := configure(t.Context(), f.Client, f.namespace, "probe", nil)
	if err != nil {
		t.Fatal(err)
	}
	op := &operation{Spec: unmarked, cfg: cfg, chart: chart}
	if err := op.install(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	released, err := engine.Ensure(t.Context(), f.Client, spec)
	if !errors.Is(err, ErrForeign) || released != nil {
		t.Errorf("got %+v, %v", released, err)
	}
	if got, err := Read(t.Context(), f.Client, f.namespace, "probe"); err != nil || got.Revision != 1 || got.Owner != "" {
		t.Errorf("afterwards the release is %+v, %v", got, err)
	}
}

func testFinishedOfAnother(t *testing.T, f *fixture) {
	f.ensure(t, f.spec(t, newTestChart("1.0.0"), "word: one"))
	released, err := engine.Ensure(t.Context(), f.Client, f.spec(t, newTestChart("1.0.0"), "word: two"))
	if !errors.Is(err, ErrForeign) || released != nil {
		t.Errorf("got %+v, %v", released, err)
	}
}

func testTakeOver(t *testing.T, f *fixture) {
	first := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, first)
	second := first
	second.Owner = uuid.NewString()
	if got := f.ensure(t, second); got.Owner != second.Owner || got.Revision != 1 || got.TakenFrom != first.Owner {
		t.Errorf("took over %+v", got)
	}
	if err := Remove(t.Context(), f.Client, f.namespace, "probe", first.Owner, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(t.Context(), f.Client, f.namespace, "probe"); err != nil {
		t.Errorf("the first owner's removal touched the release: %v", err)
	}
}

func testAdopt(t *testing.T, f *fixture) {
	f.ensure(t, f.spec(t, newTestChart("1.0.0"), "word: one"))
	spec := f.spec(t, newTestChart("1.0.0"), "word: two")
	spec.Adopt = true
	if got := f.ensure(t, spec); got.Owner != spec.Owner || got.Revision != 2 {
		t.Errorf("adopted %+v", got)
	}
}

func testInterruptedInstall(t *testing.T, f *fixture) {
	first := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, first)
	f.interrupt(t, first.Owner, release.StatusPendingInstall)
	start := time.Now()
	second := f.spec(t, newTestChart("1.0.0"), "word: two")
	if got := f.ensure(t, second); !got.Deployed() || got.Revision != 2 || got.Owner != second.Owner {
		t.Errorf("recovered to %+v", got)
	}
	if word, install := f.word(t); word != "two" || install != "true" {
		t.Errorf("the chart was rendered with %q, install %s; want an install", word, install)
	}
	if waited := time.Since(start); waited < time.Second {
		t.Errorf("it was taken over after %s, before its lease ran out", waited)
	}
}

func testInterruptedUpgrade(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	spec.Values = map[string]any{"word": "two"}
	f.ensure(t, spec)
	f.interrupt(t, spec.Owner, release.StatusPendingUpgrade)
	if got := f.ensure(t, spec); !got.Deployed() || got.Revision != 3 {
		t.Errorf("recovered to %+v", got)
	}
	if word, install := f.word(t); word != "two" || install != "false" {
		t.Errorf("the chart was rendered with %q, install %s; want an upgrade", word, install)
	}
}

func testInterruptedUninstall(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	f.interrupt(t, spec.Owner, release.StatusUninstalling)
	if got := f.ensure(t, spec); !got.Deployed() || got.Revision != 1 {
		t.Errorf("recovered to %+v", got)
	}
}

func testHeld(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"))
	if err := f.EnsureNamespace(t.Context(), f.namespace); err != nil {
		t.Fatal(err)
	}
	_, lease, err := engine.Leases.Acquire(t.Context(), f.Client, leaseKey(spec), uuid.NewString(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release(context.Background()) })
	if _, err := engine.Ensure(t.Context(), f.Client, spec); !errors.Is(err, ownership.ErrHeld) {
		t.Errorf("got %v", err)
	}
	if _, err := Read(t.Context(), f.Client, f.namespace, "probe"); !kube.IsAbsent(err) {
		t.Errorf("a release was made: %v", err)
	}
}

func testFailedWait(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0").unready())
	spec.Wait = true
	released, err := f.ensureUntil(t, spec, "0 out of 1")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "Deployment") || !strings.Contains(err.Error(), "0 out of 1") {
		t.Errorf("got %v, want what was not ready", err)
	}
	if released == nil || released.Status != "failed" || released.Owner != spec.Owner {
		t.Fatalf("the release is %+v", released)
	}
	spec.Chart.Ref = newTestChart("1.0.0").file(t)
	if got := f.ensure(t, spec); !got.Deployed() {
		t.Errorf("repaired to %+v", got)
	}
}

func testCancelled(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0").unready())
	spec.Wait = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var cancelled time.Time
	interrupted := engine
	interrupted.Report = func(_ context.Context, phase, _ string) {
		if phase == "waiting" && cancelled.IsZero() {
			cancelled = time.Now()
			cancel()
		}
	}
	released, err := interrupted.Ensure(ctx, f.Client, spec)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(cancelled); took > 5*time.Second {
		t.Errorf("it took %s to end", took)
	}
	if released == nil || released.Status != "failed" {
		t.Errorf("the release is %+v", released)
	}
	if _, err := f.Object(t.Context(), "coordination.k8s.io/v1", "Lease", f.namespace, leaseKey(spec).Name); !kube.IsAbsent(err) {
		t.Errorf("its lease answers %v", err)
	}
}

func testBadTemplate(t *testing.T, f *fixture) {
	for name, chart := range map[string]testChart{
		"a template that does not render":  newTestChart("1.0.0").with("templates/bad.yaml", `{{ fail "no" }}`),
		"an object that is none":           newTestChart("1.0.0").with("templates/bad.yaml", "kind: Nothing\napiVersion: none.example/v1\nmetadata: {name: a}"),
		"values against the chart's rules": newTestChart("1.0.0").with("values.schema.json", `{"properties":{"word":{"type":"integer"}}}`),
	} {
		released, err := engine.Ensure(t.Context(), f.Client, f.spec(t, chart))
		if err == nil || released != nil {
			t.Errorf("%s: got %+v, %v", name, released, err)
		}
		if _, err := Read(t.Context(), f.Client, f.namespace, "probe"); !kube.IsAbsent(err) {
			t.Errorf("%s: a release was left: %v", name, err)
		}
	}
}

func testDefinitions(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0").definition())
	spec.Wait = true
	f.ensure(t, spec)
	precious := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "test.example/v1", "kind": "Probe", "metadata": map[string]any{"namespace": f.namespace, "name": "precious"},
	}}
	if err := f.Create(t.Context(), precious); err != nil {
		t.Fatal(err)
	}
	kept := func(after string) {
		t.Helper()
		if _, err := f.Object(t.Context(), "test.example/v1", "Probe", f.namespace, "precious"); err != nil {
			t.Errorf("after %s the custom resource answers %v", after, err)
		}
	}
	spec.Chart.Ref = newTestChart("2.0.0").file(t)
	f.ensure(t, spec)
	kept("an upgrade to a chart without the definition")
	spec.Chart.Ref = newTestChart("3.0.0").definition().file(t)
	f.ensure(t, spec)
	if err := Remove(t.Context(), f.Client, f.namespace, "probe", spec.Owner, nil); err != nil {
		t.Fatal(err)
	}
	kept("an uninstall")
	f.ensure(t, spec)
	kept("an install over the definition that stayed")
}

func testUnreachable(t *testing.T, f *fixture) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(server.Close)
	away, err := kube.NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read(t.Context(), away, f.namespace, "probe"); err == nil || kube.IsAbsent(err) {
		t.Errorf("reading answers %v", err)
	}
	if released, err := engine.Ensure(t.Context(), away, f.spec(t, newTestChart("1.0.0"))); err == nil || released != nil {
		t.Errorf("installing answers %+v, %v", released, err)
	}
	if err := Remove(t.Context(), away, f.namespace, "probe", "", nil); err == nil {
		t.Error("removing answers no error")
	}
}

func testFailedHook(t *testing.T, f *fixture) {
	broken := newTestChart("1.0.0").with("templates/hook.yaml", strings.TrimLeft(`
apiVersion: batch/v1
kind: Job
metadata: {name: hook, annotations: {helm.sh/hook: post-install, helm.sh/hook-delete-policy: before-hook-creation}}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: registry.example/none}]}}}
`, "\n"))
	spec := f.spec(t, broken)
	released, err := f.ensureUntil(t, spec, "waiting for the hook")
	if !errors.Is(err, context.DeadlineExceeded) || released == nil || released.Status != "failed" {
		t.Fatalf("got %+v, %v", released, err)
	}
	spec.Chart.Ref = newTestChart("1.0.1").file(t)
	if got := f.ensure(t, spec); !got.Deployed() {
		t.Errorf("repaired to %+v", got)
	}
}

func testAbsent(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"))
	f.ensure(t, spec)
	namespace := &corev1.Namespace{}
	namespace.Name = f.namespace
	if err := f.Client.Client.Delete(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	err := kube.Wait(t.Context(), "the release to be gone", func(ctx context.Context) (bool, string, error) {
		_, err := Read(ctx, f.Client, f.namespace, "probe")
		return kube.IsAbsent(err), "it is there", nil
	})
	if err != nil {
		t.Error(err)
	}
}

// testLostRecord has the API server refuse the one write that records the
// release as deployed, which the library only logs.
func testLostRecord(t *testing.T, f *fixture) {
	proxy, through := f.proxy(t)
	var refused atomic.Int32
	proxy.Refuse(func(r *http.Request) bool {
		return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/secrets/sh.helm.release") && refused.CompareAndSwap(0, 1)
	})
	spec := f.spec(t, newTestChart("1.0.0"))
	released, err := engine.Ensure(t.Context(), through, spec)
	if err == nil || released == nil || released.Status != "failed" || refused.Load() != 1 {
		t.Fatalf("got %+v, %v", released, err)
	}
	if got := f.ensure(t, spec); !got.Deployed() {
		t.Errorf("repaired to %+v", got)
	}
}

func testNoNamespace(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"))
	spec.CreateNamespace = false
	if _, err := engine.Ensure(t.Context(), f.Client, spec); err == nil || !strings.Contains(err.Error(), f.namespace) {
		t.Errorf("got %v", err)
	}
	namespace := &corev1.Namespace{}
	if err := f.Get(t.Context(), client.ObjectKey{Name: f.namespace}, namespace); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace answers %v", err)
	}
}
