// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"helm.sh/helm/v3/pkg/release"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// configMap is a template of one with further metadata.
func configMap(name, metadata string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", " + metadata + "}\n"
}

// wrong is a template of an object that the API server refuses, after it has
// taken what is installed before it.
const wrong = "apiVersion: v1\nkind: Service\nmetadata: {name: probe}\nspec: {ports: [{port: 0}]}\n"

// has says whether a ConfigMap is there and stays.
func (f *fixture) has(t *testing.T, name string) bool {
	t.Helper()
	object, err := f.Object(t.Context(), "v1", "ConfigMap", f.namespace, name)
	if err != nil && !kube.IsAbsent(err) {
		t.Fatal(err)
	}
	return err == nil && object.GetDeletionTimestamp() == nil
}

// testLeftovers has a revision fail that brought objects which nothing has
// afterwards: neither the next revision, nor the one before, nor the uninstall of the
// newest one.
func testLeftovers(t *testing.T, f *fixture) {
	failing := newTestChart("2.0.0").with("templates/wrong.yaml", wrong).
		with("templates/extra.yaml", configMap("extra", "")).
		with("templates/theirs.yaml", configMap("theirs", "")).
		with("templates/kept.yaml", configMap("kept", "annotations: {helm.sh/resource-policy: keep}"))
	delete(failing, "templates/configmap.yaml")
	ensure := func(recovery Recovery) func(*testing.T, *fixture, Spec) {
		return func(t *testing.T, f *fixture, spec Spec) {
			spec.Recover = recovery
			if got := f.ensure(t, spec); !got.Deployed() {
				t.Errorf("it came to %+v", got)
			}
		}
	}
	remove := func(t *testing.T, f *fixture, spec Spec) {
		if err := Remove(t.Context(), f.Client, f.namespace, "probe", spec.Owner, nil); err != nil {
			t.Error(err)
		}
	}
	for name, test := range map[string]struct {
		complete bool
		failures int
		then     func(*testing.T, *fixture, Spec)
		words    bool
	}{
		"a failed install and another one":      {false, 1, ensure(RecoverRetry), true},
		"two failed installs and a replacement": {false, 2, ensure(RecoverReplace), true},
		"a failed install and an uninstall":     {false, 1, remove, false},
		"a failed upgrade and another one":      {true, 1, ensure(RecoverRetry), true},
		"two failed upgrades and a roll-back":   {true, 2, ensure(RecoverRollback), true},
		"two failed upgrades and an uninstall":  {true, 2, remove, false},
		"two failed upgrades and a replacement": {true, 2, ensure(RecoverReplace), true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fixture{f.Client, f.running, "n-" + uuid.NewString()[:8]}
			spec := f.spec(t, newTestChart("1.0.0"), "word: one")
			if test.complete {
				f.ensure(t, spec)
			}
			for i := range test.failures {
				broken := spec
				chart := failing
				if i > 0 {
					// What the first one brought is in no record but its own.
					chart = newTestChart("2.0.1").with("templates/wrong.yaml", wrong)
				}
				broken.Chart.Ref = chart.file(t)
				if released, err := engine.Ensure(t.Context(), f.Client, broken); err == nil || released == nil || released.Status != "failed" {
					t.Fatalf("the broken chart came to %+v, %v", released, err)
				}
			}
			if !f.has(t, "extra") {
				t.Fatal("the failed revision brought nothing: the test proves nothing")
			}
			f.patch(t, named(&corev1.ConfigMap{}, "theirs"), types.MergePatchType, `{"metadata":{"annotations":{"meta.helm.sh/release-name":"other"}}}`)
			test.then(t, f, spec)
			for object, want := range map[string]bool{"extra": false, "theirs": true, "kept": true, "probe-words": test.words} {
				if got := f.has(t, object); got != want {
					t.Errorf("ConfigMap %s is there: %v, want %v", object, got, want)
				}
			}
		})
	}
}

// testUndeleted has the API server refuse deletions, which the library only
// logs, or forgets with the record.
func testUndeleted(t *testing.T, f *fixture) {
	proxy, through := f.proxy(t)
	refuse := func(path string) {
		proxy.Refuse(func(r *http.Request) bool { return r.Method == http.MethodDelete && strings.Contains(r.URL.Path, path) })
	}
	definition := strings.NewReplacer("probes", "stays", "probe,", "stay,", "kind: Probe", "kind: Stay", "ProbeList", "StayList", "test.example", "stay.example").
		Replace(newTestChart("").definition()["templates/definition.yaml"])
	spec := f.spec(t, newTestChart("1.0.0").with("templates/extra.yaml", configMap("extra", "")).with("crds/definition.yaml", definition))
	f.ensure(t, spec)

	refuse("/configmaps/extra")
	without := spec
	without.Chart.Ref = newTestChart("1.1.0").file(t)
	released, err := engine.Ensure(t.Context(), through, without)
	if err == nil || !strings.Contains(err.Error(), "configmaps/extra") || released == nil || released.Status != "failed" {
		t.Errorf("an upgrade that could not delete came to %+v, %v", released, err)
	}
	proxy.Refuse(nil)
	if got := f.ensure(t, without); !got.Deployed() || f.has(t, "extra") {
		t.Errorf("the next one came to %+v; the object is there: %v", got, f.has(t, "extra"))
	}

	spec.Chart.Ref = newTestChart("1.2.0").with("crds/definition.yaml", definition).file(t)
	f.ensure(t, spec)
	removal := Removal{Namespace: f.namespace, Name: "probe", Owner: spec.Owner, Definitions: true}
	for _, path := range []string{"/configmaps/probe-words", "/customresourcedefinitions/stays.stay.example"} {
		refuse(path)
		if _, err := engine.Remove(t.Context(), through, removal); err == nil || !strings.Contains(err.Error(), "currently unable to handle the request") {
			t.Errorf("an uninstall that could not delete %s: %v", path, err)
		}
		if _, err := Read(t.Context(), f.Client, f.namespace, "probe"); err != nil {
			t.Fatalf("what could not be removed is found by nobody: %v", err)
		}
	}
	proxy.Refuse(nil)
	if _, err := engine.Remove(t.Context(), f.Client, removal); err != nil {
		t.Error(err)
	}
	found, err := f.Object(t.Context(), definitionGroup+"/v1", definitionKind, "", "stays.stay.example")
	if err == nil && found.GetDeletionTimestamp() == nil || err != nil && !kube.IsAbsent(err) {
		t.Errorf("the definition answers %v", err)
	}
}

// testEndingNamespace uninstalls a release whose namespace is being deleted,
// with what it has outside of it, and installs it anew in the next namespace of that name.
func testEndingNamespace(t *testing.T, f *fixture) {
	role := "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: {{ .Release.Namespace }}}\nrules: []\n"
	hook := configMap("hook", "annotations: {helm.sh/hook: pre-delete}")
	spec := f.spec(t, newTestChart("1.0.0").with("templates/role.yaml", role).with("templates/hook.yaml", hook))
	f.ensure(t, spec)
	// The namespace is being deleted for as long as something holds this.
	holder := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "holder", Finalizers: []string{"test.example/held"}}}
	if err := f.Create(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	if err := f.Client.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.namespace}}); err != nil {
		t.Fatal(err)
	}
	inside := spec
	inside.CreateNamespace = false
	if released, err := engine.Ensure(t.Context(), f.Client, inside); err == nil || !strings.Contains(err.Error(), "being terminated") {
		t.Errorf("an install in it came to %+v, %v", released, err)
	}
	if err := Remove(t.Context(), f.Client, f.namespace, "probe", spec.Owner, nil); err != nil {
		t.Error(err)
	}
	if _, err := f.Object(t.Context(), "rbac.authorization.k8s.io/v1", "ClusterRole", "", f.namespace); !kube.IsAbsent(err) {
		t.Errorf("the release's object outside of the namespace answers %v", err)
	}
	installed := make(chan error, 1)
	go func() {
		_, err := engine.Ensure(t.Context(), f.Client, spec)
		installed <- err
	}()
	f.patch(t, named(&corev1.ConfigMap{}, "holder"), types.MergePatchType, `{"metadata":{"finalizers":null}}`)
	if err := <-installed; err != nil {
		t.Error(err)
	}
	if !f.has(t, "probe-words") {
		t.Error("the release has no objects")
	}
}

// testInterruptedOfAnother kills the upgrade of a release that is in somebody's
// state, before it has changed anything: others may not take it.
func testInterruptedOfAnother(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	f.interrupt(t, spec.Owner, release.StatusDeployed)
	released, err := engine.Ensure(t.Context(), f.Client, f.spec(t, newTestChart("1.0.0"), "word: two"))
	if !errors.Is(err, ErrForeign) || released != nil {
		t.Errorf("got %+v, %v", released, err)
	}
}

// testUninstalledOnRecord finds what `helm uninstall --keep-history` has left.
func testUninstalledOnRecord(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	uninstalled := func() {
		f.rewrite(t, func(last *release.Release) { last.Info.Status = release.StatusUninstalled })
		if err := f.Client.Client.Delete(t.Context(), named(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace}}, "probe-words")); err != nil {
			t.Fatal(err)
		}
	}
	f.ensure(t, spec)
	uninstalled()
	if got := f.ensure(t, spec); !got.Deployed() || got.Revision != 2 || !f.has(t, "probe-words") {
		t.Errorf("it came to %+v", got)
	}
	uninstalled()
	if err := Remove(t.Context(), f.Client, f.namespace, "probe", spec.Owner, nil); err != nil {
		t.Error(err)
	}
	f.nothingLeft(t)
}

// testFailedLate takes a finished release over whose objects are not ready any
// more: the resource that fails is replaced by one with another mark.
func testFailedLate(t *testing.T, f *fixture) {
	spec := f.spec(t, newTestChart("1.0.0").unready(), "word: one")
	f.ensure(t, spec)
	second := spec
	second.Owner = uuid.NewString()
	if released, err := f.cancelledWhileWaiting(t, second); released == nil || released.Status != "failed" || released.Owner != second.Owner {
		t.Fatalf("got %+v, %v", released, err)
	}
	third := f.spec(t, newTestChart("1.0.1"), "word: three")
	if got := f.ensure(t, third); !got.Deployed() || got.Owner != third.Owner {
		t.Errorf("afterwards it came to %+v", got)
	}
	if _, err := f.Object(t.Context(), "apps/v1", "Deployment", f.namespace, "probe"); !kube.IsAbsent(err) {
		t.Errorf("what the third one does not have answers %v", err)
	}
}

func TestAWaitEndsWhereCredentialsAreRefused(t *testing.T) {
	refused := fmt.Errorf("looking: %w", apierrors.NewUnauthorized("revoked"))
	for name, test := range map[string]struct {
		answers []error
		ends    bool
	}{
		"always":              {[]error{refused}, true},
		"again and again":     {[]error{refused, nil}, false},
		"by an absent server": {[]error{errors.New("connection refused")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var looks atomic.Int32
			check := unlessRefused(time.Millisecond, func(context.Context) (bool, string, error) {
				at := int(looks.Add(1)) - 1
				return false, "", test.answers[at%len(test.answers)]
			})
			ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
			defer cancel()
			err := kube.Wait(ctx, "the end", check)
			if got := apierrors.IsUnauthorized(err) && !errors.Is(err, context.DeadlineExceeded); got != test.ends {
				t.Errorf("got %v after %d looks", err, looks.Load())
			}
		})
	}
}
