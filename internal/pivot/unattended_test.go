// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

// movedGroups are those whose providers have webhooks.
var movedGroups = []string{"cluster.x-k8s.io", "addons.cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io", "ipam.cluster.x-k8s.io"}

// deadWebhooks are the configurations of two providers whose pods are gone, one that
// is asked nothing of the objects, and one that nobody has to answer.
func deadWebhooks() []client.Object {
	rules := func(groups ...string) []admissionv1.RuleWithOperations {
		return []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Update, admissionv1.Delete},
			Rule:       admissionv1.Rule{APIGroups: groups, APIVersions: []string{"*"}, Resources: []string{"*"}},
		}}
	}
	nobody := func(name string) admissionv1.WebhookClientConfig {
		return admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "gone", Name: name, Path: ptr.To("/validate")}}
	}
	none := ptr.To(admissionv1.SideEffectClassNone)
	validating := func(name string, policy admissionv1.FailurePolicyType, groups ...string) admissionv1.ValidatingWebhook {
		return admissionv1.ValidatingWebhook{Name: name, ClientConfig: nobody("core"), Rules: rules(groups...), SideEffects: none, FailurePolicy: &policy, AdmissionReviewVersions: []string{"v1"}}
	}
	mutating := admissionv1.MutatingWebhook{Name: "default.all.example", ClientConfig: nobody("infrastructure"), Rules: rules(movedGroups...), SideEffects: none, AdmissionReviewVersions: []string{"v1"},
		ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "never", Operator: metav1.LabelSelectorOpDoesNotExist}}}}
	return []client.Object{
		&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "core"}, Webhooks: []admissionv1.ValidatingWebhook{
			validating("validation.one.example", admissionv1.Fail, movedGroups[:2]...), validating("validation.two.example", admissionv1.Fail, movedGroups[2:]...),
			validating("validation.optional.example", admissionv1.Ignore, movedGroups...), validating("validation.apps.example", admissionv1.Fail, "events.example"),
		}},
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "infrastructure"}, Webhooks: []admissionv1.MutatingWebhook{mutating}},
	}
}

// withDeadWebhooks makes them on the side that holds the fleet, calls do and looks
// that they are as they were.
func (p *pair) withDeadWebhooks(do func()) {
	p.t.Helper()
	side, configurations := p.sides[p.from].Client, deadWebhooks()
	for _, o := range configurations {
		if err := side.Create(p.ctx, o); err != nil {
			p.t.Fatal(err)
		}
	}
	p.untilRefused()
	do()
	for _, before := range configurations {
		after, ok := before.DeepCopyObject().(client.Object)
		if !ok {
			p.t.Fatalf("%T", before)
		}
		if err := side.Get(p.ctx, client.ObjectKeyFromObject(before), after); err != nil {
			p.t.Fatal(err)
		}
		if !reflect.DeepEqual(hooksOf(before), hooksOf(after)) {
			p.t.Errorf("the webhooks of %s are %+v and were %+v", before.GetName(), hooksOf(after), hooksOf(before))
		}
		if err := side.Delete(p.ctx, after); err != nil {
			p.t.Fatal(err)
		}
	}
}

func hooksOf(configuration client.Object) any {
	switch c := configuration.(type) {
	case *admissionv1.ValidatingWebhookConfiguration:
		return c.Webhooks
	case *admissionv1.MutatingWebhookConfiguration:
		return c.Webhooks
	}
	return nil
}

// untilRefused waits until the API server asks the webhooks.
func (p *pair) untilRefused() {
	p.t.Helper()
	clusters := &clusterv1.ClusterList{}
	p.list(p.from, clusters)
	p.must(kube.Wait(p.ctx, "the webhooks to be asked", func(ctx context.Context) (bool, string, error) {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))
		err := p.sides[p.from].Client.Patch(ctx, clusters.Items[0].DeepCopy(), patch, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "failed calling webhook"), "a write is not refused", nil
	}))
}

func TestAMoveOutOfAClusterWithoutControllers(t *testing.T) {
	p := newPair(t, fleet{clusters: 1, machines: 2, topology: true})
	source := p.sides[0].Client
	// The last word of the controllers was that the Cluster is not well, a provider
	// wanted to prepare the move, and a Machine was to go.
	cluster := &clusterv1.Cluster{}
	key := client.ObjectKey{Namespace: fleetNamespace, Name: "c0"}
	p.must(source.Get(p.ctx, key, cluster))
	cluster.Status.Conditions[0].Status = metav1.ConditionFalse
	p.must(source.Status().Update(p.ctx, cluster))
	vm := p.object(0, infrastructure, "ProxmoxMachine", "c0-0")
	vm.SetAnnotations(map[string]string{clusterctlv1.BlockMoveAnnotation: ""})
	p.must(source.Update(p.ctx, vm))
	p.must(source.Delete(p.ctx, p.object(0, core, "Machine", "c0-1")))

	p.withDeadWebhooks(func() {
		result, err := pivot.Move(p.ctx, p.sides[0], p.sides[1], quickly)
		if err != nil {
			t.Fatal(err)
		}
		p.checkMoved("out of a cluster without controllers", result)
		said := strings.Join(result.Skipped, "\n")
		for _, want := range []string{"nobody answers its webhook", "whether its Clusters are available", "blocked by ProxmoxMachine fleet/c0-0", "Machine fleet/c0-1 was being deleted"} {
			if !strings.Contains(said, want) {
				t.Errorf("it does not say %q: %s", want, said)
			}
		}
	})
	again, err := pivot.Move(p.ctx, p.sides[0], p.sides[1], quickly)
	if err != nil || !slices.Contains(again.Skipped, "Machine fleet/c0-1 was being deleted, which nobody carried out: it lives on after the move. Delete it again on the target if that is still meant") {
		t.Errorf("asked again it answers %+v, %v", again, err)
	}
}

func TestAMoveOutOfAClusterWhoseManagerIsScaledToNone(t *testing.T) {
	h := newHazards(t)
	one := h.in(t, "scaled", fleet{clusters: 1, machines: 1})
	manager := one.deployment("source", "manager", "cluster-api")
	manager.ResourceVersion, manager.Spec.Replicas = "", ptr.To[int32](0)
	one.must(h.clients["source"].Update(h.ctx, manager))
	cluster := &clusterv1.Cluster{}
	one.must(h.clients["source"].Get(h.ctx, client.ObjectKey{Namespace: "scaled", Name: "c0"}, cluster))
	cluster.Status.Conditions[0].Status = metav1.ConditionFalse
	one.must(h.clients["source"].Status().Update(h.ctx, cluster))
	result := one.moved()
	if said := strings.Join(result.Skipped, "\n"); !strings.Contains(said, "Deployment scaled/manager is scaled to none") {
		t.Errorf("it says %q", said)
	}
}

func TestARolledBackMoveLetsDeadWebhooksBeAskedAgain(t *testing.T) {
	p := newPair(t, fleet{clusters: 1, machines: 1})
	p.withDeadWebhooks(func() {
		ctx, cancel := context.WithCancel(p.ctx)
		options := quickly
		options.Report = func(_ context.Context, phase, _ string) {
			if phase == "verifying" {
				cancel()
			}
		}
		if _, err := pivot.Move(ctx, p.sides[0], p.sides[1], options); err == nil {
			t.Error("the move that was cancelled succeeds")
		}
		p.checkSafe("cancelled")
	})
}

func TestAKilledMoveLeavesNoWebhookSilenced(t *testing.T) {
	p := newPair(t, fleet{clusters: 1, machines: 1})
	writes := 0
	p.withDeadWebhooks(func() { writes = p.countWrites() })
	t.Logf("N = %d writes", writes)
	for _, at := range points(t, writes, 5) {
		p.withDeadWebhooks(func() { p.strikeWithKill(at, at%2 == 0) })
	}
	t.Run("whose webhooks died only afterwards", func(t *testing.T) {
		run, output := p.helper()
		killed := make(chan struct{})
		p.tape.armOn(p.names[p.from], "DELETE", "machines", false, func() {
			_ = run.Process.Signal(syscall.SIGKILL)
			<-killed
		})
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		err := run.Wait()
		close(killed)
		p.tape.settle()
		if err == nil {
			t.Fatalf("it was not killed: %s", output)
		}
		p.withDeadWebhooks(func() { p.checkMoved("run again", p.again()) })
	})
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) object(side int, apiVersion, kind, name string) *unstructured.Unstructured {
	p.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	if err := p.sides[side].Client.Get(p.ctx, client.ObjectKey{Namespace: fleetNamespace, Name: name}, o); err != nil {
		p.t.Fatal(fmt.Errorf("reading %s %s: %w", kind, name, err))
	}
	return o
}
