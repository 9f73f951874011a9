// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"helm.sh/helm/v3/pkg/release"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
)

// workVariable makes the test binary a program that does one piece of work, in
// the JSON of a [work], so that it can be killed.
const workVariable = "HELM_TEST_WORK"

// work is what such a program does: it removes, or else ensures.
type work struct {
	Host    string
	Spec    Spec
	Removal *Removal
}

func TestMain(m *testing.M) {
	text := os.Getenv(workVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var w work
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := w.do(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (w work) do(ctx context.Context) error {
	c, err := kube.NewClient(&rest.Config{Host: w.Host, QPS: 200, Burst: 400})
	if err != nil {
		return err
	}
	if w.Removal != nil {
		_, err = engine.Remove(ctx, c, *w.Removal)
		return err
	}
	_, err = engine.Ensure(ctx, c, w.Spec)
	return err
}

// killChart has a definition in the folder crds, a hook for every operation, and
// objects. A Job as a hook would need nodes.
func killChart(version string) testChart {
	definition := strings.NewReplacer("probes", "killeds", "probe,", "killed,", "kind: Probe", "kind: Killed", "ProbeList", "KilledList", "test.example", "kill.example").
		Replace(newTestChart("").definition()["templates/definition.yaml"])
	return newTestChart(version).with("crds/definition.yaml", definition).
		with("templates/secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: {{ .Release.Name }}-secret}\nstringData: {word: {{ .Values.word | quote }}}\n").
		with("templates/hook.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-hook\n"+
			"  annotations: {helm.sh/hook: 'pre-install,pre-upgrade,pre-rollback,pre-delete', helm.sh/hook-delete-policy: 'before-hook-creation,hook-succeeded'}\n")
}

// testKills kills a run at each of its writing calls: the call is carried out,
// and the run dies before it hears of it. What follows is what Terraform does: an
// apply that has no state (of an install), or has it (of anything else), or a
// destroy.
func testKills(t *testing.T, f *fixture) {
	definition := killChart("1.0.0")
	first := f.spec(t, definition, "word: one")
	f.ensure(t, first)
	precious := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kill.example/v1", "kind": "Killed", "metadata": map[string]any{"namespace": f.namespace, "name": "precious"},
	}}
	if err := f.Create(t.Context(), precious); err != nil {
		t.Fatal(err)
	}
	t.Run("of", func(t *testing.T) {
		for name, prepare := range map[string]func(*testing.T, *fixture) (killed work, after func(*testing.T)){
			"an install":   killedInstall,
			"an upgrade":   killedUpgrade,
			"a roll-back":  killedRollback,
			"an uninstall": killedUninstall,
			"an undoing":   killedUndoing,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				// How often it writes depends a little on how long it takes: it is killed at
				// one call after the other until it gets by.
				at := 1
				for f.killed(t, at, prepare) {
					at++
				}
				if at <= 4 {
					t.Errorf("undisturbed it writes only %d times", at-1)
				}
				t.Logf("%d writes", at-1)
			})
		}
	})
	if _, err := f.Object(t.Context(), "kill.example/v1", "Killed", f.namespace, "precious"); err != nil {
		t.Errorf("after all of it the custom resource answers %v", err)
	}
}

// killed has a program do the work in a namespace of its own, kills it at a
// writing call, and lets what follows mend and judge it. It answers whether the
// program got as far as that call; if not, it has come to its end.
func (f *fixture) killed(t *testing.T, at int, prepare func(*testing.T, *fixture) (work, func(*testing.T))) bool {
	t.Helper()
	mine := &fixture{f.Client, f.running, "n-" + uuid.NewString()[:8]}
	w, after := prepare(t, mine)
	proxy, _ := mine.proxy(t)
	w.Host = proxy.URL
	program, output := plane.Program(t, workVariable, w)
	var struck atomic.Bool
	started := make(chan struct{})
	proxy.Strike(at, func() {
		<-started
		struck.Store(true)
		_ = program.Process.Kill()
	})
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	close(started)
	err := program.Wait()
	if !struck.Load() && err != nil && !w.Spec.Atomic {
		t.Fatalf("before write %d: %v\n%s", at, err, output)
	}
	if !t.Run(fmt.Sprintf("write %d", at), after) {
		t.Logf("the killed run said:\n%s", output)
	}
	return struck.Load()
}

// mended judges a release that is to say word.
func (f *fixture) mended(t *testing.T, owner, word string) {
	t.Helper()
	got, err := Read(t.Context(), f.Client, f.namespace, "probe")
	if err != nil || !got.Deployed() || got.Owner != owner {
		t.Errorf("the release is %+v, %v", got, err)
	}
	if said, _ := f.word(t); said != word {
		t.Errorf("the release says %q, want %q", said, word)
	}
	secret := &corev1.Secret{}
	if err := f.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "probe-secret"}, secret); err != nil || string(secret.Data["word"]) != word {
		t.Errorf("its Secret says %q, %v", secret.Data["word"], err)
	}
	f.noLease(t)
	if err := Remove(t.Context(), f.Client, f.namespace, "probe", owner, nil); err != nil {
		t.Error(err)
	}
	f.nothingLeft(t)
}

func (f *fixture) noLease(t *testing.T) {
	t.Helper()
	leases := &coordinationv1.LeaseList{}
	if err := f.List(t.Context(), leases, client.InNamespace(f.namespace)); err != nil || len(leases.Items) > 0 {
		t.Errorf("the leases are %d, %v", len(leases.Items), err)
	}
}

// nothingLeft judges a namespace after an uninstall.
func (f *fixture) nothingLeft(t *testing.T) {
	t.Helper()
	f.noLease(t)
	secrets, words := &corev1.SecretList{}, &corev1.ConfigMapList{}
	if err := f.List(t.Context(), secrets, client.InNamespace(f.namespace)); err != nil || len(secrets.Items) > 0 {
		t.Errorf("the Secrets are %d, %v", len(secrets.Items), err)
	}
	if err := f.List(t.Context(), words, client.InNamespace(f.namespace)); err != nil {
		t.Error(err)
	}
	for _, left := range words.Items {
		if strings.HasPrefix(left.Name, "probe") {
			t.Errorf("ConfigMap %s was left", left.Name)
		}
	}
}

func killedInstall(t *testing.T, f *fixture) (work, func(*testing.T)) {
	spec := f.spec(t, killChart("1.0.0"), "word: one")
	return work{Spec: spec}, func(t *testing.T) {
		// The killed provider has saved no state, so that the next one has another
		// mark, and somebody has changed the configuration meanwhile.
		again := spec
		again.Owner, again.Chart.Ref, again.Values = uuid.NewString(), killChart("1.1.0").file(t), map[string]any{"word": "two"}
		_, err := engine.Ensure(t.Context(), f.Client, again)
		if errors.Is(err, ErrForeign) {
			// Killed after its last write it had finished: nothing tells its release
			// from one that is in some state, but that it is just what was wanted.
			f.noLease(t)
			spec.Owner = again.Owner
			f.ensure(t, spec)
			f.mended(t, again.Owner, "one")
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		f.mended(t, again.Owner, "two")
	}
}

func killedUpgrade(t *testing.T, f *fixture) (work, func(*testing.T)) {
	spec := f.spec(t, killChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	spec.Chart.Ref, spec.Values = killChart("1.1.0").file(t), map[string]any{"word": "two"}
	return work{Spec: spec}, func(t *testing.T) {
		f.ensure(t, spec)
		f.mended(t, spec.Owner, "two")
	}
}

func killedRollback(t *testing.T, f *fixture) (work, func(*testing.T)) {
	spec := f.spec(t, killChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	broken := spec
	broken.Values = map[string]any{"word": "broken"}
	f.ensure(t, broken)
	f.interrupt(t, spec.Owner, release.StatusPendingUpgrade)
	spec.Recover = RecoverRollback
	return work{Spec: spec}, func(t *testing.T) {
		f.ensure(t, spec)
		f.mended(t, spec.Owner, "one")
	}
}

func killedUninstall(t *testing.T, f *fixture) (work, func(*testing.T)) {
	spec := f.spec(t, killChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	removal := Removal{Namespace: f.namespace, Name: "probe", Owner: spec.Owner, Definitions: true}
	return work{Removal: &removal}, func(t *testing.T) {
		stay, err := engine.Remove(t.Context(), f.Client, removal)
		if err != nil || len(stay) > 1 {
			t.Errorf("what stays is %q, %v", stay, err)
		}
		f.nothingLeft(t)
	}
}

// killedUndoing is an atomic upgrade that fails at its last object.
func killedUndoing(t *testing.T, f *fixture) (work, func(*testing.T)) {
	spec := f.spec(t, killChart("1.0.0"), "word: one")
	f.ensure(t, spec)
	failing := spec
	failing.Chart.Ref = killChart("1.1.0").with("templates/wrong.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: probe}\nspec: {ports: [{port: 0}]}\n").file(t)
	failing.Values, failing.Atomic = map[string]any{"word": "two"}, true
	return work{Spec: failing}, func(t *testing.T) {
		f.ensure(t, spec)
		f.mended(t, spec.Owner, "one")
	}
}
