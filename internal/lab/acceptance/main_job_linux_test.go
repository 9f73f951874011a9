// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package acceptance

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// jobTime bounds one whole run of the example.
const jobTime = 40 * time.Minute

func TestTheMainJob(t *testing.T) {
	t.Parallel() // beside the others: whole labs do not meet
	ctx, cancel := context.WithTimeout(untilInterrupt, jobTime)
	defer cancel()
	w := newWorld(ctx, t)

	t.Run("the plan works with nothing running", func(t *testing.T) {
		w.stop(t)
		defer w.start(ctx, t)
		changes, plan, err := w.stack.Plan(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !changes || len(plan.ResourceChanges) != 8 {
			t.Errorf("the plan has %d resources, want all 8 of the example", len(plan.ResourceChanges))
		}
		w.noSecrets(t, plan)
	})
	if err := w.stack.Apply(ctx); err != nil {
		t.Fatal(err)
	}
	before := w.machines(ctx, t)
	w.checkManagementCluster(ctx, t)
	events := w.audit.read(t)
	t.Run("at no moment did two clusters manage it", func(t *testing.T) { checkSingleWriter(t, events) })
	t.Run("the node became ready in the article's order", func(t *testing.T) { checkNodeOrder(t, events) })
	t.Run("a second plan is empty", func(t *testing.T) {
		changes, plan, err := w.stack.Plan(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if changes {
			t.Errorf("the second plan changes %v", changed(plan))
		}
	})
	t.Run("the VMs are those that the state names", func(t *testing.T) {
		for _, m := range before {
			if !slices.ContainsFunc(w.lab.PVE.Summary().VMs, func(vm pvesim.VMSummary) bool {
				return vm.ID == m.VMID && strings.EqualFold(vm.UUID, m.VMUUID) && vm.Running
			}) {
				t.Errorf("the hypervisor has no running VM like %+v", m)
			}
		}
	})
	w.cloneAgain(ctx, t) // the destroy takes it along
	w.destroy(ctx, t)
}

// kills are moments in the life of the example at which the provider is killed,
// in the order in which they come: at least one in each resource's create.
var kills = []struct{ resource, phase string }{
	{"capi_service_account", "token"},
	{"capi_proxmox_template", "convert"},
	{"capi_ephemeral_cluster", "installing-providers"},
	{"capi_management_cluster", "waiting-for-control-plane"},
	{"capi_helm_release", "installing"},
	{"capi_providers", "installing-providers"},
	{"capi_pivot", "recording-inventory"}, // before its first write
	{"capi_pivot", "creating"},            // both sides are about to hold copies
	{"capi_pivot", "verifying"},           // both do
	{"capi_pivot", "deleting-source"},     // past the point of no return
}

// logged matches the line of the provider's log at which a resource enters a
// phase; the order of a line's fields is not fixed.
func logged(resource, phase string) *regexp.Regexp {
	r, p := `tf_resource_type=`+resource+`\b`, `phase=`+phase+`(\s|$)`
	return regexp.MustCompile(r + `.*` + p + `|` + p + `.*` + r)
}

func TestAKilledProviderContinues(t *testing.T) {
	t.Parallel() // beside the others: whole labs do not meet
	ctx, cancel := context.WithTimeout(untilInterrupt, jobTime)
	defer cancel()
	w := newWorld(ctx, t)
	var machines []string
	for _, kill := range kills {
		if err := w.stack.ApplyKilling(ctx, logged(kill.resource, kill.phase)); err != nil {
			t.Fatalf("killing the provider in the create of %s: %v", kill.resource, err)
		}
		t.Logf("killed in the create of %s", kill.resource)
		now := w.runningVMs()
		for _, vm := range machines {
			if !slices.Contains(now, vm) {
				t.Errorf("after the kill in %s VM %s is gone: %v", kill.resource, vm, now)
			}
		}
		machines = now
	}
	if err := w.stack.Apply(ctx); err != nil {
		t.Fatal(err)
	}
	if now := w.runningVMs(); !slices.Equal(now, machines) || len(now) != 1 {
		t.Errorf("the hypervisor runs %v, want the one machine that was there before: %v", now, machines)
	}
	w.checkNoDuplicates(t)
	w.checkManagementCluster(ctx, t)
	w.destroy(ctx, t)
}

// checkManagementCluster looks at what the apply has come to, through the
// outputs that a user has.
func (w *world) checkManagementCluster(ctx context.Context, t *testing.T) {
	t.Helper()
	c := w.client(ctx, t)
	t.Run("all Cluster API objects are in the cluster itself, un-paused", func(t *testing.T) {
		list := &clusterv1.ClusterList{}
		if err := c.List(ctx, list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 || list.Items[0].Name != "kmgt" || ptr.Deref(list.Items[0].Spec.Paused, false) {
			t.Errorf("clusters %+v, want kmgt alone, un-paused", list.Items)
		}
		available := slices.ContainsFunc(list.Items[0].Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == clusterv1.ClusterAvailableCondition && c.Status == "True"
		})
		if !available {
			t.Error("the Cluster is not Available")
		}
	})
	t.Run("its control plane is ready and its node too", func(t *testing.T) {
		plane, err := c.Object(ctx, "controlplane.cluster.x-k8s.io/v1alpha3", "TalosControlPlane", "kmgt", "kmgtcp")
		if err != nil {
			t.Fatal(err)
		}
		status, _ := plane.Object["status"].(map[string]any)
		if status["ready"] != true {
			t.Errorf("the TalosControlPlane is not ready: %v", status)
		}
		nodes := &corev1.NodeList{}
		if err := c.List(ctx, nodes); err != nil {
			t.Fatal(err)
		}
		if len(nodes.Items) != 1 || !ready(nodes.Items[0]) || nodes.Items[0].Spec.ProviderID == "" {
			t.Errorf("nodes %+v, want one, ready and with a provider id", nodes.Items)
		}
	})
	t.Run("the ephemeral cluster is gone", func(t *testing.T) {
		status, err := local.Runtime{State: w.state()}.Status(ctx, bootstrapName)
		if err != nil || status != bootstrap.NotHere {
			t.Errorf("status %q, %v", status, err)
		}
	})
	t.Run("the talosconfig works", func(t *testing.T) { w.checkTalosconfig(ctx, t) })
}

func ready(node corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// destroy takes everything down and looks that nothing stays.
func (w *world) destroy(ctx context.Context, t *testing.T) {
	t.Helper()
	t.Run("destroy refuses a cluster that manages itself", func(t *testing.T) {
		if err := w.stack.Destroy(ctx); err == nil || !regexp.MustCompile("(?s)manages.*itself.*force_destroy").MatchString(err.Error()) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("destroy with force_destroy leaves the hypervisor empty", func(t *testing.T) {
		if err := w.stack.Apply(ctx, "force_destroy=true"); err != nil {
			t.Fatal(err)
		}
		if err := w.stack.Destroy(ctx, "force_destroy=true"); err != nil {
			t.Fatal(err)
		}
		left := w.lab.PVE.Summary()
		left.Tokens = slices.DeleteFunc(left.Tokens, func(id string) bool { return id == lab.TokenID })
		left.Users = slices.DeleteFunc(left.Users, func(id string) bool { return strings.HasPrefix(lab.TokenID, id+"!") })
		if len(left.VMs)+len(left.Files)+len(left.Users)+len(left.Tokens)+len(left.Roles)+len(left.Pools) > 0 {
			t.Errorf("left on the hypervisor: %+v", left)
		}
	})
}
