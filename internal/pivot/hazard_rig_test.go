// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

// hazards is two API servers without controllers, a tape before each, and a
// namespace for each hazard.
type hazards struct {
	ctx context.Context
	// clients lead to the sides directly, sides through the tape.
	clients map[string]*kube.Client
	sides   map[string]*pivot.Side
	tape    *tape
}

func newHazards(t *testing.T) *hazards {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h := &hazards{ctx: ctx, clients: map[string]*kube.Client{}, sides: map[string]*pivot.Side{}}
	configs := map[string]*rest.Config{}
	done := make(chan struct{}, 2)
	for _, name := range []string{"source", "target"} {
		running := plane.Start(t)
		c := running.Client(t)
		running.InstallKinds(t, c, fleetKinds...)
		fast := rest.CopyConfig(running.Config)
		fast.QPS = -1
		h.clients[name], configs[name] = c, fast
		go func() { revive(ctx, c); done <- struct{}{} }()
	}
	t.Cleanup(func() { cancel(); <-done; <-done })
	h.tape = newTape(t, configs)
	for name, address := range h.tape.addresses {
		c, err := kube.NewClient(&rest.Config{Host: address})
		if err != nil {
			t.Fatal(err)
		}
		if h.sides[name], err = pivot.NewSide(ctx, c, name); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// hazard is one of them, with a fleet on the source.
type hazard struct {
	*hazards
	t         *testing.T
	namespace string
}

func (h *hazards) in(t *testing.T, namespace string, f fleet) *hazard {
	t.Helper()
	h.tape.arm(0, false, nil)
	f.namespace = namespace
	f.make(h.ctx, t, h.clients["source"])
	return &hazard{h, t, namespace}
}

func (h *hazard) options(changes ...func(*pivot.Options)) pivot.Options {
	options := quickly
	options.Leases.Duration = 2 * time.Minute // no run is lost here, and a busy machine is slow
	options.Scope = pivot.Scope{Namespaces: []string{h.namespace}}
	for _, change := range changes {
		change(&options)
	}
	return options
}

func (h *hazard) move(changes ...func(*pivot.Options)) (*pivot.Result, error) {
	ctx, cancel := context.WithTimeout(h.ctx, 2*time.Minute)
	defer cancel()
	return pivot.Move(ctx, h.sides["source"], h.sides["target"], h.options(changes...))
}

func (h *hazard) look(changes ...func(*pivot.Options)) (*pivot.Preview, error) {
	return pivot.Look(h.ctx, h.sides["source"], h.sides["target"], h.options(changes...))
}

// moved moves the fleet and looks that it has left the source.
func (h *hazard) moved(changes ...func(*pivot.Options)) *pivot.Result {
	h.t.Helper()
	result, err := h.move(changes...)
	if err != nil {
		h.t.Fatal(err)
	}
	if left := h.count("source", core, "Machine"); left > 0 {
		h.t.Errorf("%d machines are left on the source", left)
	}
	h.managed("target")
	return result
}

// refused looks that a move is refused, and that nothing was paused.
func (h *hazard) refused(says string, changes ...func(*pivot.Options)) {
	h.t.Helper()
	if _, err := h.move(changes...); !errors.Is(err, pivot.ErrRefused) || !strings.Contains(err.Error(), says) {
		h.t.Errorf("error %v, want a refusal that says %q", err, says)
	}
	h.managed("source")
}

// broughtBack looks that a move fails, and that everything is on the source again.
func (h *hazard) broughtBack(says string) {
	h.t.Helper()
	if _, err := h.move(); err == nil || !strings.Contains(err.Error(), says) {
		h.t.Errorf("error %v, want one that says %q", err, says)
	}
	h.managed("source")
	if left := h.count("target", core, "Machine"); left > 0 {
		h.t.Errorf("%d copies are left on the target", left)
	}
}

// managed looks that a side alone manages the fleet.
func (h *hazard) managed(by string) {
	h.t.Helper()
	for name := range h.clients {
		list := &clusterv1.ClusterList{}
		h.must(h.clients[name].List(h.ctx, list, client.InNamespace(h.namespace)))
		unpaused := 0
		for i := range list.Items {
			if !ptr.Deref(list.Items[i].Spec.Paused, false) {
				unpaused++
			}
		}
		if name == by && (unpaused == 0 || unpaused < len(list.Items)) || name != by && unpaused > 0 {
			h.t.Errorf("the %s manages %d of its %d clusters; the %s should manage all", name, unpaused, len(list.Items), by)
		}
	}
}

func (h *hazard) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *hazard) get(side, apiVersion, kind, name string) *unstructured.Unstructured {
	h.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	h.must(h.clients[side].Get(h.ctx, client.ObjectKey{Namespace: h.namespace, Name: name}, o))
	return o
}

func (h *hazard) count(side, apiVersion, kind string) int {
	h.t.Helper()
	list, err := h.clients[side].Objects(h.ctx, apiVersion, kind, h.namespace)
	h.must(err)
	return len(list)
}

// maker makes further objects on a side; global ones have no namespace.
func (h *hazard) maker(side, namespace string) *fleetMaker {
	return &fleetMaker{client: h.clients[side], namespace: namespace}
}

// change gets an object, changes it and writes it back.
func (h *hazard) change(side string, o *unstructured.Unstructured, change func(*unstructured.Unstructured)) {
	h.t.Helper()
	change(o)
	h.must(h.clients[side].Update(h.ctx, o, client.FieldOwner("kubectl")))
}

// setField changes a field of the specification.
func setField(value any, path ...string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) { _ = unstructured.SetNestedField(o.Object, value, path...) }
}

// unpause is a person with kubectl.
func (h *hazard) unpause(side string) {
	h.change(side, h.get(side, core, "Cluster", "c0"), func(o *unstructured.Unstructured) { unstructured.RemoveNestedField(o.Object, "spec", "paused") })
}

// make makes an object in the hazard's namespace.
func (h *hazard) make(side, apiVersion, kind, name string, content fields, owners ...*unstructured.Unstructured) *unstructured.Unstructured {
	h.t.Helper()
	made, err := h.maker(side, h.namespace).object(h.ctx, apiVersion, kind, name, content, owners...)
	h.must(err)
	return made
}

// deployment makes a Deployment of a provider, or of nobody, that has the arguments.
func (h *hazard) deployment(side, name, provider string, arguments ...string) *appsv1.Deployment {
	h.t.Helper()
	pod := map[string]string{"app": name}
	made := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: name, Labels: map[string]string{clusterv1.ProviderNameLabel: provider}},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: pod}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: pod}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none", Args: arguments}}},
		}},
	}
	err := h.clients[side].EnsureNamespace(h.ctx, h.namespace)
	h.must(err)
	h.must(h.clients[side].Create(h.ctx, made))
	return made
}

func (h *hazard) definition(side, name string) *apiextensionsv1.CustomResourceDefinition {
	h.t.Helper()
	definition := &apiextensionsv1.CustomResourceDefinition{}
	h.must(h.clients[side].Get(h.ctx, client.ObjectKey{Name: name}, definition))
	return definition
}

// install installs a kind with nothing in it and waits until it is served.
func (h *hazard) install(side, kind, plural, group, version string, labels map[string]string) {
	h.t.Helper()
	definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group, Labels: labels}}
	definition.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}},
	}
	h.must(h.clients[side].Create(h.ctx, definition))
	h.must(kube.Wait(h.ctx, kind+" to be served", func(ctx context.Context) (bool, string, error) {
		_, err := h.clients[side].Objects(ctx, group+"/"+version, kind, h.namespace)
		return err == nil, "", err
	}))
}
