// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// driftingChart has objects of several kinds, and writes them in forms that the
// server changes: quantities, defaults, stringData.
func driftingChart() testChart {
	return newTestChart("1.0.0").
		with("templates/secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: {{ .Release.Name }}-secret}\nstringData: {word: hunter2}\n").
		with("templates/service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: {{ .Release.Name }}}\nspec: {selector: {app: probe}, ports: [{name: http, port: 80}, {name: https, port: 443}]}\n").
		with("templates/deployment.yaml", `apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}, creationTimestamp: null}
spec:
  replicas: 2
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      containers:
        - {name: main, image: registry.example/none:v1, resources: {requests: {cpu: "1000m", memory: 1024Mi}}, env: [{name: A, value: a}]}
        - {name: side, image: registry.example/side:v1}
`).
		with("templates/job.yaml", `apiVersion: batch/v1
kind: Job
metadata: {name: {{ .Release.Name }}}
spec: {ttlSecondsAfterFinished: 1, template: {spec: {restartPolicy: Never, containers: [{name: main, image: registry.example/none}]}}}
`).
		with("templates/webhook.yaml", `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: {{ .Release.Namespace }}}
webhooks:
  - name: a.probe.example
    clientConfig: {caBundle: Cg==, service: {name: none, namespace: {{ .Release.Namespace }}}}
    sideEffects: None
    admissionReviewVersions: [v1]
    failurePolicy: Ignore
    rules: [{apiGroups: [none.example], apiVersions: [v1], operations: [CREATE], resources: [nones]}]
`)
}

func (f *fixture) drift(t *testing.T, showTexts bool) string {
	t.Helper()
	lines, err := Drift(t.Context(), f.Client, f.namespace, "probe", showTexts)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), f.namespace+"/", "")
}

func (f *fixture) patch(t *testing.T, object client.Object, kind types.PatchType, patch string, options ...client.PatchOption) {
	t.Helper()
	object.SetNamespace(f.namespace)
	if err := f.Client.Client.Patch(t.Context(), object, client.RawPatch(kind, []byte(patch)), options...); err != nil {
		t.Fatal(err)
	}
}

func named[T client.Object](object T, name string) T {
	object.SetName(name)
	return object
}

// testDrift edits objects by hand, reads what is told of it, and repairs it.
func testDrift(t *testing.T, f *fixture) {
	spec := f.spec(t, driftingChart(), "word: one")
	f.ensure(t, spec)
	if got := f.drift(t, true); got != "" {
		t.Fatalf("right after the install there is a drift:\n%s", got)
	}
	// What is none: fields of others, an autoscaler's replicas, an authority that is filled in.
	f.patch(t, named(&corev1.ConfigMap{}, "probe-words"), types.MergePatchType, `{"metadata":{"labels":{"theirs":"x"}},"data":{"more":"x"}}`)
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 5}}
	if err := f.Client.Client.SubResource("scale").Update(t.Context(), f.deployment(t), client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	webhook := &unstructured.Unstructured{}
	webhook.SetGroupVersionKind(found("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"))
	webhook.SetName(f.namespace)
	if err := f.Client.Client.Patch(t.Context(), webhook, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/webhooks/0/clientConfig/caBundle","value":"Cgo="}]`))); err != nil {
		t.Fatal(err)
	}
	job := &unstructured.Unstructured{}
	job.SetGroupVersionKind(found("batch/v1", "Job"))
	job.SetNamespace(f.namespace)
	if err := f.Client.Client.Delete(t.Context(), named(job, "probe"), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	if got := f.drift(t, true); got != "" {
		t.Errorf("what is no drift is told as one:\n%s", got)
	}
	// What is.
	f.patch(t, named(&corev1.ConfigMap{}, "probe-words"), types.MergePatchType, `{"data":{"word":"theirs"}}`)
	f.patch(t, named(&corev1.Secret{}, "probe-secret"), types.MergePatchType, `{"data":{"word":"aHVudGVyMw=="}}`)
	f.patch(t, named(&appsv1.Deployment{}, "probe"), types.StrategicMergePatchType, `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"evil.example/x","env":[{"name":"A","value":"b"}]}]}}}}`)
	f.patch(t, named(&corev1.Service{}, "probe"), types.MergePatchType, `{"spec":{"selector":{"app":"evil"}}}`)
	want := strings.Join([]string{
		`Secret probe-secret ~ data.word: (masked) -> (masked)`,
		`ConfigMap probe-words ~ data.word: "theirs" -> "one"`,
		`Service probe ~ spec.selector.app: "evil" -> "probe"`,
		`Deployment probe ~ spec.template.spec.containers[main].env[A].value: "b" -> "a"`,
		`Deployment probe ~ spec.template.spec.containers[main].image: "evil.example/x" -> "registry.example/none:v1"`,
	}, "\n")
	got := f.drift(t, true)
	for _, line := range strings.Split(want, "\n") {
		if !strings.Contains(got, line) {
			t.Errorf("%q is not in the drift:\n%s", line, got)
		}
	}
	hidden := f.drift(t, false)
	if strings.Contains(hidden, `"theirs"`) || strings.Contains(hidden, `"b"`) || !strings.Contains(hidden, "evil.example/x") || strings.Contains(got+hidden, "aHVudGVy") {
		t.Errorf("without texts the drift says:\n%s", hidden)
	}
	if err := f.Client.Client.Delete(t.Context(), f.deployment(t)); err != nil {
		t.Fatal(err)
	}
	if got := f.drift(t, true); !strings.Contains(got, "Deployment probe is missing") {
		t.Errorf("a missing object is told as:\n%s", got)
	}
	spec.Repair = true
	if got := f.ensure(t, spec); got.Revision != 2 || !got.Deployed() {
		t.Errorf("repaired to %+v", got)
	}
	if got := f.drift(t, true); got != "" {
		t.Errorf("after the repair there is a drift:\n%s", got)
	}
}

func (f *fixture) deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	deployment := &appsv1.Deployment{}
	if err := f.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: "probe"}, deployment); err != nil {
		t.Fatal(err)
	}
	return deployment
}

// drifterChart has a custom resource, and its definition in the folder crds.
func drifterChart(kind string) testChart {
	lower := strings.ToLower(kind)
	definition := strings.NewReplacer("probes", lower+"s", "probe,", lower+",", "kind: Probe", "kind: "+kind, "ProbeList", kind+"List", "test.example", "drift.example").
		Replace(newTestChart("").definition()["templates/definition.yaml"])
	return newTestChart("1.0.0").with("crds/definition.yaml", definition).
		with("templates/drifter.yaml", "apiVersion: drift.example/v1\nkind: "+kind+"\nmetadata: {name: probe}\nspec: {count: {{ .Values.count | default 1 }}, list: [{a: 1}, {a: 2}]}\n")
}

// testFailedCustomResource goes back to the values of the complete revision after
// a failed one has changed a custom resource: to the chart nothing changes.
func testFailedCustomResource(t *testing.T, f *fixture) {
	chart := drifterChart("Returner")
	spec := f.spec(t, chart, "count: 1")
	f.ensure(t, spec)
	failing := spec
	failing.Chart.Ref, failing.Values = chart.unready().file(t), map[string]any{"count": 7}
	if released, err := f.cancelledWhileWaiting(t, failing); released == nil || released.Status != "failed" {
		t.Errorf("got %+v, %v", released, err)
	}
	f.ensure(t, spec)
	found, err := f.Object(t.Context(), "drift.example/v1", "Returner", f.namespace, "probe")
	if err != nil {
		t.Fatal(err)
	}
	if count, _, _ := unstructured.NestedFieldNoCopy(found.Object, "spec", "count"); count != int64(1) {
		t.Errorf("the custom resource's count is still %v", count)
	}
}

// testDriftOfCustomResources repairs one, which the library alone would not:
// nothing has changed in the chart.
func testDriftOfCustomResources(t *testing.T, f *fixture) {
	chart := drifterChart("Drifter")
	spec := f.spec(t, chart)
	f.ensure(t, spec)
	if got := f.drift(t, true); got != "" {
		t.Fatalf("right after the install there is a drift:\n%s", got)
	}
	edited := &unstructured.Unstructured{}
	edited.SetGroupVersionKind(found("drift.example/v1", "Drifter"))
	f.patch(t, named(edited, "probe"), types.MergePatchType, `{"spec":{"count":7}}`)
	if got := f.drift(t, false); got != "Drifter probe ~ spec.count: 7 -> 1" {
		t.Errorf("the drift is:\n%s", got)
	}
	spec.Repair = true
	f.ensure(t, spec)
	if got := f.drift(t, true); got != "" {
		t.Errorf("after the repair there is a drift:\n%s", got)
	}
	if _, err := engine.Remove(t.Context(), f.Client, Removal{Namespace: f.namespace, Name: "probe", Owner: spec.Owner, Definitions: true}); err != nil {
		t.Error(err)
	}
}
