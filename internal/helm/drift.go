// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// driftManager owns, in dry runs alone, the fields of a release's objects.
const driftManager = kube.FieldManager + "-drift"

// driftParallel is how many objects are asked for side by side. A release may
// have hundreds, and a refresh should take seconds.
const driftParallel = 8

// Drift answers in a few lines what somebody has changed in the objects of a
// release since it was installed: what a server-side apply of the manifest on
// record would change, asked for as a dry run. Values of Secrets, what looks
// like a secret and, without showTexts, most texts are masked. What others have
// added beside the manifest's fields is no drift, nor is what controllers are
// known to fill in.
//
// An object that the server refuses to dry-run is not compared. An error means
// that nothing is known.
func Drift(ctx context.Context, c *kube.Client, namespace, name string, showTexts bool) ([]string, error) {
	cfg, err := configure(ctx, c, namespace, name, nil)
	if err != nil {
		return nil, fmt.Errorf("comparing the objects of Helm release %s/%s: %w", namespace, name, err)
	}
	last, err := newest(cfg, name)
	if err != nil {
		return nil, fmt.Errorf("reading Helm release %s/%s to compare its objects: %w", namespace, name, err)
	}
	objects, err := kube.ParseDocuments([]byte(last.Manifest))
	if err != nil {
		return nil, fmt.Errorf("reading the manifest of Helm release %s/%s: %w", namespace, name, err)
	}
	found := make([][]string, len(objects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(driftParallel)
	for i, object := range objects {
		group.Go(func() error {
			var err error
			found[i], err = driftOf(ctx, c, namespace, object, showTexts)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("comparing the objects of Helm release %s/%s: %w", namespace, name, err)
	}
	var lines []string
	for _, some := range found {
		lines = append(lines, some...)
	}
	return shorten(lines), nil
}

// driftOf compares one object with what is on the cluster.
func driftOf(ctx context.Context, c *kube.Client, namespace string, object *unstructured.Unstructured, showTexts bool) ([]string, error) {
	namespaced, err := c.IsObjectNamespaced(object)
	if kube.IsAbsent(kube.Classify(err)) {
		return []string{kube.Describe(object) + " is missing: its kind is no longer served"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the kind of %s: %w", kube.Describe(object), err)
	}
	if namespaced && object.GetNamespace() == "" {
		object.SetNamespace(namespace)
	}
	live, err := c.Object(ctx, object.GetAPIVersion(), object.GetKind(), object.GetNamespace(), object.GetName())
	if kube.IsAbsent(err) {
		if expires(object) {
			return nil, nil
		}
		return []string{kube.Describe(object) + " is missing"}, nil
	}
	if err != nil {
		return nil, err
	}
	applied, err := c.ApplyObject(ctx, comparable(object, live), kube.ApplyOptions{Manager: driftManager, Force: true, DryRun: true})
	if refuses(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, change := range compare("", stripped(live), stripped(applied)) {
		if !ofControllers(live, change.path) {
			lines = append(lines, kube.Describe(object)+" "+change.line(shown(object, showTexts)))
		}
	}
	return lines, nil
}

// expires says whether an object is removed by the cluster once it is done.
func expires(object *unstructured.Unstructured) bool {
	_, found, err := unstructured.NestedFieldNoCopy(object.Object, "spec", "ttlSecondsAfterFinished")
	return err == nil && found && object.GroupVersionKind().Group == batchv1.GroupName
}

// comparable is what the manifest says of an object, without what the server
// fills in itself.
func comparable(object, live *unstructured.Unstructured) *unstructured.Unstructured {
	sent := object.DeepCopy()
	unstructured.RemoveNestedField(sent.Object, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(sent.Object, "status")
	if scaled(live) {
		unstructured.RemoveNestedField(sent.Object, "spec", "replicas")
	}
	return sent
}

// scaled says whether somebody, as a rule an autoscaler, sets the replicas
// through the subresource for it.
func scaled(live *unstructured.Unstructured) bool {
	for _, entry := range live.GetManagedFields() {
		if entry.Subresource == "scale" && entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:replicas"`) {
			return true
		}
	}
	return false
}

// refuses tells an answer about the object from one about the server: an
// admission webhook or policy that takes no dry run, a manifest that only a
// client-side merge takes.
func refuses(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) || apierrors.IsMethodNotSupported(err) ||
		apierrors.IsConflict(err) || err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnsupportedMediaType || refusedByWebhook(err)
}

// refusedByWebhook recognises the answer for a webhook that is away or has side
// effects (k8s.io/apiserver, admission/plugin/webhook/errors).
func refusedByWebhook(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "failed calling webhook") || strings.Contains(err.Error(), "does not support dry run"))
}

// stripped is an object without what every write changes.
func stripped(object *unstructured.Unstructured) map[string]any {
	left := object.DeepCopy().Object
	delete(left, "status")
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"} {
		unstructured.RemoveNestedField(left, "metadata", field)
	}
	return left
}

// ofControllers says whether a field is one that controllers fill in over what
// the manifest says: the authorities of webhooks.
func ofControllers(live *unstructured.Unstructured, path string) bool {
	switch live.GetKind() {
	case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService", definitionKind:
		return strings.HasSuffix(path, "caBundle")
	}
	return false
}

// plainTexts matches the fields whose texts are no secrets.
var plainTexts = regexp.MustCompile(`(\.(image|type|imagePullPolicy|serviceAccountName|namespace|restartPolicy|clusterIP|protocol)$)|^metadata\.labels`)

// shown says which values of an object are shown: none of a Secret.
func shown(object *unstructured.Unstructured, showTexts bool) func(path string, value any) bool {
	return func(path string, value any) bool {
		return object.GetKind() != "Secret" && mayShow(path, value, showTexts || plainTexts.MatchString(path))
	}
}
