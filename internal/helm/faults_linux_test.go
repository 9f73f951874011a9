// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/ownership"
)

// found is the kind of an object.
func found(apiVersion, kind string) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind)
}

// noise answers that many characters that do not compress.
func noise(length int) string {
	data := make([]byte, length*3/4)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(data)
	return base64.StdEncoding.EncodeToString(data)
}

// testQuota has the namespace refuse one object more.
func testQuota(t *testing.T, f *fixture) {
	if err := f.EnsureNamespace(t.Context(), f.namespace); err != nil {
		t.Fatal(err)
	}
	quota := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/services": resource.MustParse("0")}}}
	quota.Namespace, quota.Name = f.namespace, "none"
	if err := f.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	err := kube.Wait(t.Context(), "the quota to be in force", func(ctx context.Context) (bool, string, error) {
		err := f.Get(ctx, client.ObjectKeyFromObject(quota), quota)
		return len(quota.Status.Hard) > 0, "", err
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := f.spec(t, newTestChart("1.0.0").with("templates/service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: probe}\nspec: {ports: [{port: 80}]}\n"))
	released, err := engine.Ensure(t.Context(), f.Client, spec)
	if err == nil || !strings.Contains(err.Error(), "exceeded quota") || released == nil || released.Status != "failed" {
		t.Fatalf("got %+v, %v", released, err)
	}
	if err := f.Client.Client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	err = kube.Wait(t.Context(), "the install to go through", func(ctx context.Context) (bool, string, error) {
		released, err = engine.Ensure(ctx, f.Client, spec)
		return err == nil, "", err
	})
	if err != nil || !released.Deployed() {
		t.Errorf("repaired to %+v, %v", released, err)
	}
}

// testAPIServerRestarts lets the API server go away at each third writing call
// for a few calls, as a restart does.
func testAPIServerRestarts(t *testing.T, f *fixture) {
	proxy, through := f.proxy(t)
	spec := f.spec(t, newTestChart("1.0.0"), "word: one")
	if _, err := engine.Ensure(t.Context(), through, spec); err != nil {
		t.Fatal(err)
	}
	writes := proxy.Strike(0, nil)
	for at := 2; at <= writes; at += 3 {
		spec := f.spec(t, newTestChart("1.0.0"), "word: one")
		spec.Name, spec.CreateNamespace = fmt.Sprintf("probe-%d", at), false
		var refusals atomic.Int32
		proxy.Strike(at-1, func() {
			refusals.Store(3)
			proxy.Refuse(func(*http.Request) bool { return refusals.Add(-1) >= 0 })
		})
		if _, err := engine.Ensure(t.Context(), through, spec); err == nil && refusals.Load() > 0 {
			t.Errorf("write %d: the API server was not missed", at)
		}
		proxy.Refuse(nil)
		proxy.Strike(0, nil)
		if got := f.ensure(t, spec); !got.Deployed() {
			t.Errorf("write %d: repaired to %+v", at, got)
		}
	}
}

// testTwoReleases installs two releases side by side, and one twice.
func testTwoReleases(t *testing.T, f *fixture) {
	if err := f.EnsureNamespace(t.Context(), f.namespace); err != nil {
		t.Fatal(err)
	}
	specs := []Spec{f.spec(t, newTestChart("1.0.0")), f.spec(t, newTestChart("1.0.0")), f.spec(t, newTestChart("1.0.0"))}
	specs[0].Name, specs[1].Name, specs[2].Name = "first", "second", "second"
	errs := make([]error, len(specs))
	var group sync.WaitGroup
	for i, spec := range specs {
		group.Go(func() { _, errs[i] = engine.Ensure(t.Context(), f.Client, spec) })
	}
	group.Wait()
	if errs[0] != nil {
		t.Errorf("the release that nobody else wants: %v", errs[0])
	}
	// Both want the same: the second one takes the finished release over, or finds
	// the first one at work.
	for _, err := range errs[1:] {
		if err != nil && !errors.Is(err, ownership.ErrHeld) {
			t.Errorf("one of two that want the same: %v", err)
		}
	}
	if errs[1] != nil && errs[2] != nil {
		t.Errorf("neither of two that want the same got it: %v; %v", errs[1], errs[2])
	}
	got, err := Read(t.Context(), f.Client, f.namespace, "second")
	if err != nil || got.Revision != 1 || got.Owner != specs[1].Owner && got.Owner != specs[2].Owner {
		t.Errorf("afterwards it is %+v, %v", got, err)
	}
}

// largeChart has many objects and a record of nearly a mebibyte.
func largeChart(objects, ballast int) testChart {
	return newTestChart("1.0.0").
		with("templates/many.yaml", fmt.Sprintf("{{ range $i := until %d }}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ $.Release.Name }}-{{ $i }}}\ndata: {number: {{ $i | quote }}}\n{{ end }}\n", objects)).
		with("files/ballast.txt", noise(ballast))
}

// testLarge installs 300 objects with a record of nearly 1 MiB, which is what a
// Secret holds, and is refused a larger one before anything is made.
func testLarge(t *testing.T, f *fixture) {
	spec := f.spec(t, largeChart(300, 770<<10))
	if got := f.ensure(t, spec); !got.Deployed() {
		t.Fatalf("installed %+v", got)
	}
	record := &corev1.Secret{}
	if err := f.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "sh.helm.release.v1.probe.v1"}, record); err != nil {
		t.Fatal(err)
	}
	if size := len(record.Data["release"]); size < 950<<10 {
		t.Errorf("the record has %d bytes: the test proves nothing", size)
	}
	if got := f.drift(t, true); got != "" {
		t.Errorf("there is a drift:\n%s", got)
	}
	spec.Values = map[string]any{"word": "two"}
	if got := f.ensure(t, spec); got.Revision != 2 || !got.Deployed() {
		t.Errorf("upgraded to %+v", got)
	}
	if err := Remove(t.Context(), f.Client, f.namespace, "probe", spec.Owner, nil); err != nil {
		t.Error(err)
	}
	larger := f.spec(t, largeChart(1, 1100<<10))
	released, err := engine.Ensure(t.Context(), f.Client, larger)
	if err == nil || released != nil || !strings.Contains(err.Error(), "1 MiB") {
		t.Errorf("a record that is too large: %+v, %.300v", released, err)
	}
	if _, err := f.Object(t.Context(), "v1", "ConfigMap", f.namespace, "probe-0"); !kube.IsAbsent(err) {
		t.Errorf("an object was made: %v", err)
	}
}

// testUnreachableSources has no chart to be had, and leaves nothing on the
// cluster.
func testUnreachableSources(t *testing.T, f *fixture) {
	repository := repositoryServer(t, "1.0.0").URL + "/stable"
	for name, chart := range map[string]Chart{
		"a registry that is not there":    {Ref: "oci://127.0.0.1:1/charts/probe", Version: "1.0.0"},
		"a repository that is not there":  {Ref: "probe", Repository: "http://127.0.0.1:1"},
		"a repository with wrong secrets": {Ref: "probe", Repository: repository, Username: "reader", Password: "hunter2"},
	} {
		spec := f.spec(t, newTestChart("1.0.0"))
		spec.Chart = chart
		released, err := engine.Ensure(t.Context(), f.Client, spec)
		if err == nil || released != nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %+v, %v", name, released, err)
		}
	}
	if err := f.Get(t.Context(), client.ObjectKey{Name: f.namespace}, &corev1.Namespace{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the namespace answers %v", err)
	}
	spec := f.spec(t, newTestChart("1.0.0"))
	spec.Chart = Chart{Ref: "probe", Repository: repository, Username: "reader", Password: "sesame"}
	if got := f.ensure(t, spec); !got.Deployed() {
		t.Errorf("with the right ones it came to %+v", got)
	}
}

// testUnknownRecord cannot read back what it has left: it is neither there nor
// absent.
func testUnknownRecord(t *testing.T, f *fixture) {
	proxy, through := f.proxy(t)
	spec := f.spec(t, newTestChart("1.0.0"))
	started := false
	blind := engine
	blind.Started = func() error {
		started = true
		proxy.Refuse(func(r *http.Request) bool {
			return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/secrets")
		})
		return nil
	}
	released, err := blind.Ensure(t.Context(), through, spec)
	if err == nil || !started || released == nil || released.Status != "unknown" || released.Owner != spec.Owner {
		t.Errorf("got %+v, %v", released, err)
	}
	second := spec
	second.Owner = uuid.NewString()
	if got := f.ensure(t, second); !got.Deployed() || got.Owner != second.Owner {
		t.Errorf("repaired to %+v", got)
	}
}

// testNoSecretIsShown has a template and the API server quote values.
func testNoSecretIsShown(t *testing.T, f *fixture) {
	for name, test := range map[string]struct{ template, quoted string }{
		"a template that fails with a value":    {`{{ fail .Values.plain }}`, "execution error"},
		"an API server that quotes a value":     {"apiVersion: v1\nkind: Service\nmetadata: {name: probe}\nspec: {type: {{ .Values.plain | quote }}, ports: [{port: 80}]}\n", "Service"},
		"one that quotes a value of its own":    {"apiVersion: v1\nkind: Service\nmetadata: {name: probe}\nspec: {type: {{ .Values.plain }}{{ .Values.more.adminPassword }}, ports: [{port: 80}]}\n", "Service"},
		"a value that the template has encoded": {`{{ fail (.Values.plain | b64enc) }}`, "execution error"},
	} {
		spec := f.spec(t, newTestChart("1.0.0").with("templates/telling.yaml", test.template), `{plain: "hunter2", more: {adminPassword: "sesame"}}`)
		spec.Secrets = []string{"hunter2"}
		telling := engine
		var said []string
		telling.Report = func(_ context.Context, _, message string) { said = append(said, message) }
		released, err := telling.Ensure(t.Context(), f.Client, spec)
		if err == nil || !strings.Contains(err.Error(), test.quoted) || !strings.Contains(err.Error(), masked) {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		all := fmt.Sprint(err, said, released)
		for _, secret := range []string{"hunter2", "sesame", base64.StdEncoding.EncodeToString([]byte("hunter2"))} {
			if strings.Contains(all, secret) {
				t.Errorf("%s: %s is in %s", name, secret, all)
			}
		}
	}
}
