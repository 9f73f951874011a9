// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"helm.sh/helm/v3/pkg/release"
	helmtime "helm.sh/helm/v3/pkg/time"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// rewrite changes the newest record as another Helm client would.
func (f *fixture) rewrite(t *testing.T, change func(*release.Release)) {
	t.Helper()
	cfg, err := configure(t.Context(), f.Client, f.namespace, "probe", nil)
	if err != nil {
		t.Fatal(err)
	}
	last, err := newest(cfg, "probe")
	if err != nil {
		t.Fatal(err)
	}
	change(last)
	if err := cfg.Releases.Update(last); err != nil {
		t.Fatal(err)
	}
}

// redeploy has a revision say that it is the deployed one.
func (f *fixture) redeploy(t *testing.T, revision int) {
	t.Helper()
	cfg, err := configure(t.Context(), f.Client, f.namespace, "probe", nil)
	if err != nil {
		t.Fatal(err)
	}
	record, err := cfg.Releases.Get("probe", revision)
	if err != nil {
		t.Fatal(err)
	}
	record.SetStatus(release.StatusDeployed, "as it was")
	if err := cfg.Releases.Update(record); err != nil {
		t.Fatal(err)
	}
}

// statuses answers the status of each revision on record, oldest first.
func (f *fixture) statuses(t *testing.T) string {
	t.Helper()
	cfg, err := configure(t.Context(), f.Client, f.namespace, "probe", nil)
	if err != nil {
		t.Fatal(err)
	}
	records, err := history(cfg, "probe")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, record := range records {
		all = append(all, record.Info.Status.String())
	}
	return strings.Join(all, " ")
}

// testRecoveries leaves a release behind in each unfinished state, and lets each
// mode of recovery take it up with a new configuration.
func testRecoveries(t *testing.T, f *fixture) {
	upgraded := func(t *testing.T, f *fixture, spec Spec) {
		f.ensure(t, spec)
		spec.Values = map[string]any{"word": "broken"}
		f.ensure(t, spec)
		// The library marks a revision as superseded when the next one is complete.
		f.redeploy(t, 1)
	}
	installed := func(t *testing.T, f *fixture, spec Spec) { f.ensure(t, spec) }
	for name, test := range map[string]struct {
		before  func(*testing.T, *fixture, Spec)
		left    release.Status
		recover Recovery
		want    string
		install string
	}{
		"a failed upgrade, again":                     {upgraded, release.StatusFailed, RecoverRetry, "superseded failed deployed", "false"},
		"an interrupted upgrade, again":               {upgraded, release.StatusPendingUpgrade, "", "superseded failed deployed", "false"},
		"an interrupted roll-back, again":             {upgraded, release.StatusPendingRollback, RecoverRetry, "superseded failed deployed", "false"},
		"a failed upgrade, rolled back first":         {upgraded, release.StatusFailed, RecoverRollback, "superseded failed superseded deployed", "false"},
		"an interrupted upgrade, rolled back first":   {upgraded, release.StatusPendingUpgrade, RecoverRollback, "superseded failed superseded deployed", "false"},
		"an interrupted roll-back, rolled back first": {upgraded, release.StatusPendingRollback, RecoverRollback, "superseded failed superseded deployed", "false"},
		"a failed upgrade, replaced":                  {upgraded, release.StatusFailed, RecoverReplace, "deployed", "true"},
		"an interrupted upgrade, replaced":            {upgraded, release.StatusPendingUpgrade, RecoverReplace, "deployed", "true"},
		"a failed install, again":                     {installed, release.StatusFailed, RecoverRetry, "failed deployed", "true"},
		"a failed install with nothing to go back to": {installed, release.StatusFailed, RecoverRollback, "failed deployed", "true"},
		"an interrupted install, replaced":            {installed, release.StatusPendingInstall, RecoverReplace, "deployed", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fixture{f.Client, f.running, "n-" + uuid.NewString()[:8]}
			spec := f.spec(t, newTestChart("1.0.0"), "word: one")
			test.before(t, f, spec)
			f.interrupt(t, spec.Owner, test.left)
			spec.Recover, spec.Values = test.recover, map[string]any{"word": "better"}
			if got := f.ensure(t, spec); !got.Deployed() || got.Owner != spec.Owner {
				t.Errorf("recovered to %+v", got)
			}
			if got := f.statuses(t); got != test.want {
				t.Errorf("the records say %q, want %q", got, test.want)
			}
			if word, install := f.word(t); word != "better" || install != test.install {
				t.Errorf("the chart was rendered with %q, install %s", word, install)
			}
		})
	}
}

// testRecoverRollbackToWanted goes back to what is wanted, and makes no upgrade
// to the same after it.
func testRecoverRollbackToWanted(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	broken := spec
	broken.Values = map[string]any{"word": "broken"}
	f.ensure(t, broken)
	f.interrupt(t, spec.Owner, release.StatusPendingUpgrade)
	spec.Recover = RecoverRollback
	if got := f.ensure(t, spec); !got.Deployed() || got.Revision != 3 {
		t.Errorf("recovered to %+v", got)
	}
	if word, _ := f.word(t); word != "one" {
		t.Errorf("the release says %q", word)
	}
}

func testRecoverFail(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	f.interrupt(t, spec.Owner, release.StatusPendingUpgrade)
	spec.Recover, spec.Values, spec.Atomic = RecoverFail, map[string]any{"word": "two"}, true
	released, err := engine.Ensure(t.Context(), f.Client, spec)
	if !errors.Is(err, ErrUnfinished) || !strings.Contains(err.Error(), "pending-upgrade") || released == nil || released.Revision != 1 {
		t.Errorf("got %+v, %v", released, err)
	}
	if got := f.statuses(t); got != "pending-upgrade" {
		t.Errorf("the records say %q", got)
	}
	// The one that has no state of it fares no better, and takes no evidence away.
	other := spec
	other.Owner, other.Recover = uuid.NewString(), RecoverFail
	if released, err := engine.Ensure(t.Context(), f.Client, other); !errors.Is(err, ErrUnfinished) || released != nil {
		t.Errorf("another one got %+v, %v", released, err)
	}
	spec.Recover = RecoverRetry
	if got := f.ensure(t, spec); !got.Deployed() {
		t.Errorf("recovered to %+v", got)
	}
}

// testOtherClient has a helm command at work: its record says pending, and no
// lease of ours was left.
func testOtherClient(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	f.rewrite(t, func(last *release.Release) {
		last.Info.Status, last.Info.LastDeployed = release.StatusPendingUpgrade, helmtime.Now()
	})
	spec.Values = map[string]any{"word": "two"}
	patient := engine
	waiting := make(chan struct{})
	patient.Report = func(_ context.Context, phase, _ string) {
		if phase == "waiting-for-client" {
			close(waiting)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := patient.Ensure(t.Context(), f.Client, spec)
		done <- err
	}()
	select {
	case <-waiting:
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	}
	f.rewrite(t, func(last *release.Release) { last.Info.Status = release.StatusDeployed })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := f.statuses(t); got != "superseded deployed" {
		t.Errorf("after the other client's success the records say %q", got)
	}
	// One that never comes back is waited for until it is too old.
	f.rewrite(t, func(last *release.Release) {
		last.Info.Status, last.Info.LastDeployed = release.StatusPendingUpgrade, helmtime.Now()
	})
	spec.Values = map[string]any{"word": "three"}
	if released, err := f.ensureUntil(t, spec, "pending-upgrade since"); !errors.Is(err, context.DeadlineExceeded) || released == nil || released.Status != "pending-upgrade" {
		t.Errorf("while the other client is at work: %+v, %v", released, err)
	}
	f.rewrite(t, func(last *release.Release) {
		last.Info.LastDeployed = helmtime.Time{Time: time.Now().Add(-time.Hour)}
	})
	if got := f.ensure(t, spec); !got.Deployed() || got.Revision != 3 {
		t.Errorf("an hour later it came to %+v", got)
	}
}

// cancelledWhileWaiting is Ctrl-C once the release waits for its Deployment.
func (f *fixture) cancelledWhileWaiting(t *testing.T, spec Spec) (*Release, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	interrupted := engine
	interrupted.Report = func(_ context.Context, _, message string) {
		if strings.Contains(message, "0 out of 1") {
			cancel()
		}
	}
	spec.Wait = true
	released, err := interrupted.Ensure(ctx, f.Client, spec)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled run answers %v", err)
	}
	return released, err
}

func testAtomicInstall(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0").unready())
	spec.Atomic = true
	if released, err := f.cancelledWhileWaiting(t, spec); released != nil || !strings.Contains(err.Error(), "Deployment") || !strings.Contains(err.Error(), "it was uninstalled") {
		t.Errorf("got %+v, %v", released, err)
	}
	if _, err := Read(t.Context(), f.Client, f.namespace, "probe"); !kube.IsAbsent(err) {
		t.Errorf("the release answers %v", err)
	}
	if _, err := f.Object(t.Context(), "v1", "ConfigMap", f.namespace, "probe-words"); !kube.IsAbsent(err) {
		t.Errorf("its object answers %v", err)
	}
}

// testAtomicCancelled is Ctrl-C in the middle of an upgrade: it ends in a
// roll-back that is complete when Ensure returns.
func testAtomicCancelled(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	spec.Chart.Ref = newTestChart("2.0.0").unready().file(t)
	spec.Values, spec.Atomic = map[string]any{"word": "two"}, true
	released, err := f.cancelledWhileWaiting(t, spec)
	if !strings.Contains(err.Error(), "rolled back to revision 1") || !released.Deployed() || released.Version != "1.0.0" {
		t.Errorf("got %+v, %v", released, err)
	}
	if word, _ := f.word(t); word != "one" {
		t.Errorf("the release says %q", word)
	}
	if _, err := f.Object(t.Context(), "apps/v1", "Deployment", f.namespace, "probe"); !kube.IsAbsent(err) {
		t.Errorf("what the failed revision brought answers %v", err)
	}
	if _, err := f.Object(t.Context(), "coordination.k8s.io/v1", "Lease", f.namespace, leaseKey(spec).Name); !kube.IsAbsent(err) {
		t.Errorf("its lease answers %v", err)
	}
}

// testAtomicRefused is an upgrade that gets no further than to its rendering:
// there is nothing to undo, and the complete revision stays as it is.
func testAtomicRefused(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	spec.Chart.Ref, spec.Atomic = newTestChart("2.0.0").with("templates/bad.yaml", `{{ fail "no" }}`).file(t), true
	if released, err := engine.Ensure(t.Context(), f.Client, spec); err == nil || released == nil || released.Revision != 1 {
		t.Errorf("got %+v, %v", released, err)
	}
}

// testRemovedKind has a release with an object of a kind that the cluster no
// longer serves, as charts have that are older than the cluster's version.
func testRemovedKind(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	gone := "\n---\napiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: gone}\n---\napiVersion: gone.example/v1\nkind: Gone\nmetadata: {name: gone}\n"
	f.ensure(t, spec)
	f.rewrite(t, func(last *release.Release) { last.Manifest += gone })
	spec.Values = map[string]any{"word": "two"}
	if got := f.ensure(t, spec); !got.Deployed() || got.Revision != 2 {
		t.Errorf("upgraded to %+v", got)
	}
	f.rewrite(t, func(last *release.Release) { last.Manifest += gone })
	if err := Remove(t.Context(), f.Client, f.namespace, "probe", spec.Owner, nil); err != nil {
		t.Error(err)
	}
	if _, err := f.Object(t.Context(), "v1", "ConfigMap", f.namespace, "probe-words"); !kube.IsAbsent(err) {
		t.Errorf("its object answers %v", err)
	}
}

// testOnlyDefinitions removes a release that has nothing else: there is nothing
// to delete, and the record goes.
func testOnlyDefinitions(t *testing.T, f *fixture) {
	definition := strings.NewReplacer("probes", "onlies", "probe,", "only,", "kind: Probe", "kind: Only", "ProbeList", "OnlyList", "test.example", "only.example").
		Replace(newTestChart("").definition()["templates/definition.yaml"])
	spec := f.spec(t, testChart{"Chart.yaml": newTestChart("1.0.0")["Chart.yaml"], "templates/definition.yaml": definition})
	f.ensure(t, spec)
	if _, err := engine.Remove(t.Context(), f.Client, Removal{Namespace: f.namespace, Name: "probe", Owner: spec.Owner, Definitions: true}); err != nil {
		t.Error(err)
	}
	if _, err := Read(t.Context(), f.Client, f.namespace, "probe"); !kube.IsAbsent(err) {
		t.Errorf("the release answers %v", err)
	}
}

// testDefinitionsOnRequest removes the definitions of folders crds (a
// dependency's too) and of templates, but for those with objects.
func testDefinitionsOnRequest(t *testing.T, f *fixture) {
	definition := func(plural, kind string) string {
		text := newTestChart("").definition()["templates/definition.yaml"]
		return strings.NewReplacer("probes", plural, "probe,", strings.ToLower(kind)+",", "kind: Probe", "kind: "+kind, "ProbeList", kind+"List", "test.example", "request.example").Replace(text)
	}
	chart := newTestChart("1.0.0").
		with("crds/roots.yaml", definition("roots", "Root")).
		with("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.0.0\n").
		with("charts/sub/crds/subs.yaml", definition("subs", "Sub")).
		with("templates/kept.yaml", strings.Replace(definition("kepts", "Kept"), "{name: kepts.request.example}", "{name: kepts.request.example, annotations: {helm.sh/resource-policy: keep}}", 1)).
		with("templates/used.yaml", definition("useds", "Used")).
		// What is deleted for a hook is not the release yet.
		with("templates/hook.yaml", configMap("hook", "annotations: {helm.sh/hook: 'pre-delete,post-delete'}")).
		with("templates/root.yaml", "{{ if .Values.more }}\napiVersion: request.example/v1\nkind: Root\nmetadata: {name: probe}\n{{ end }}\n")
	spec := f.spec(t, chart)
	spec.Wait = true
	f.ensure(t, spec)
	precious := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "request.example/v1", "kind": "Used", "metadata": map[string]any{"namespace": f.namespace, "name": "precious"},
	}}
	if err := f.Create(t.Context(), precious); err != nil {
		t.Fatal(err)
	}
	spec.Values = map[string]any{"more": true}
	f.ensure(t, spec)
	proxy, through := f.proxy(t)
	var early atomic.Bool
	proxy.Refuse(func(r *http.Request) bool {
		if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/customresourcedefinitions/") && f.has(t, "probe-words") {
			early.Store(true)
		}
		return false
	})
	stay, err := engine.Remove(t.Context(), through, Removal{Namespace: f.namespace, Name: "probe", Owner: spec.Owner, Definitions: true})
	if early.Load() {
		t.Error("a definition was deleted before the release's objects were")
	}
	if err != nil || len(stay) != 1 || !strings.Contains(stay[0], "useds.request.example") || !strings.Contains(stay[0], "precious") {
		t.Errorf("what stays is %q, %v", stay, err)
	}
	for name, want := range map[string]bool{"roots": false, "subs": false, "kepts": true, "useds": true} {
		found, err := f.Object(t.Context(), "apiextensions.k8s.io/v1", definitionKind, "", name+".request.example")
		if there := err == nil && found.GetDeletionTimestamp() == nil; there != want || err != nil && !kube.IsAbsent(err) {
			t.Errorf("the definition of %s is there: %v (%v), want %v", name, there, err, want)
		}
	}
	if _, err := f.Object(t.Context(), "request.example/v1", "Used", f.namespace, "precious"); err != nil {
		t.Errorf("the custom resource answers %v", err)
	}
	for _, name := range []string{"kepts", "useds"} {
		definition := &metav1.PartialObjectMetadata{}
		definition.SetGroupVersionKind(found(definitionGroup+"/v1", definitionKind))
		definition.Name = name + ".request.example"
		if err := f.Client.Client.Delete(t.Context(), definition); err != nil {
			t.Error(err)
		}
	}
}

// testRollbackBeforeOurTime goes back to a revision that another Helm client has
// made, which has no mark: the release stays ours.
func testRollbackBeforeOurTime(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	f.rewrite(t, func(last *release.Release) { last.Labels = nil })
	failing := spec
	failing.Chart.Ref = newTestChart("1.1.0").with("templates/wrong.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: probe}\nspec: {ports: [{port: 0}]}\n").file(t)
	failing.Atomic = true
	if _, err := engine.Ensure(t.Context(), f.Client, failing); !errors.Is(err, ErrForeign) {
		t.Errorf("a release without a mark: %v", err)
	}
	failing.AdoptUnmarked = true
	released, err := engine.Ensure(t.Context(), f.Client, failing)
	if err == nil || !strings.Contains(err.Error(), "rolled back to revision 1") || !released.Deployed() || released.Owner != spec.Owner {
		t.Errorf("got %+v, %v", released, err)
	}
	if got := f.ensure(t, spec); got.Revision != 3 {
		t.Errorf("afterwards it came to %+v", got)
	}
}
