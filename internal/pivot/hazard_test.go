// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

const ipamKinds = "ipam.cluster.x-k8s.io/v1alpha2"

// TestHazards has one or two tests for each way in which a move is known to end
// badly that is in the move's own hands.
func TestHazards(t *testing.T) {
	h := newHazards(t)
	one := fleet{clusters: 1, machines: 1}
	for _, test := range []struct {
		name      string
		namespace string
		fleet     fleet
		run       func(*hazard)
	}{
		{"a pause that is lifted while the objects are copied brings everything back", "lifted", one, testLiftedPause},
		{"a source that was restored after the move is not moved again", "restored", one, testRestoredSource},
		{"a side that has lost machines of its control plane is not un-paused", "lost", fleet{clusters: 1, machines: 3}, testLostMachine},
		{"nothing leaves the source while the target holds something else", "altered", one, testAlteredCopy},
		{"an object that somebody deletes during the move does not live on", "deleted", one, testDeletedMeanwhile},
		{"credentials follow their Cluster and stay for the others", "credentials", one, testCredentials},
		{"Argo CD and Flux are told of beforehand", "gitops", one, testGitOps},
		{"a Cluster that Argo CD makes again during the removal is removed again", "remade", one, testMadeAgain},
		{"an object with a foreign owner is refused, left or carried as is asked for", "foreign", one, testForeignOwner},
		{"an object of a kind that no move sees is not left to the garbage collector", "unlabelled", one, testUnlabelledKind},
		{"a pool is never on both sides", "pool", fleet{clusters: 2, machines: 1, ipam: true}, testSharedPool},
		{"addresses that nobody finds out again come along", "status", one, testCarriedStatus},
		{"Ctrl-C in the middle brings everything back", "interrupted", one, testInterrupt},
		{"a control plane that runs in the source is refused at plan", "hosted", one, testHosted},
		{"an autoscaler is told of beforehand", "scaled", one, testAutoscaler},
		{"a backup of real objects shows nothing of them", "backup", one, testEncryptedBackup},
		{"annotations of users come along and none of the move stays", "annotated", one, testAnnotations},
		{"a move of one namespace leaves what is global on the source", "global", one, testGlobal},
		{"a block of the move is waited for and its holder named", "blocked", one, testBlocked},
		{"etcd that was well must be well again", "etcd", one, testEtcd},
		{"a target without a feature gate that is used is refused", "gates", fleet{clusters: 1, machines: 1, topology: true}, testGates},
		{"a target with an older contract is refused", "contract", one, testContract},
		{"a target with an older or no provider is refused", "providers", one, testProviders},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(h.in(t, test.namespace, test.fleet)) })
	}
}

func testLiftedPause(h *hazard) {
	h.tape.armOn("target", "POST", "machines", false, func() { h.unpause("source") })
	h.broughtBack("somebody un-paused it while it was moved: suspend what applies it from elsewhere")
	h.tape.arm(0, false, nil)
	h.moved()
}

func testRestoredSource(h *hazard) {
	snapshot := h.get("source", core, "Cluster", "c0")
	h.moved()
	snapshot.SetResourceVersion("")
	snapshot.SetUID("")
	h.must(h.clients["source"].Create(h.ctx, snapshot))
	if _, err := h.move(); !errors.Is(err, pivot.ErrHalfDone) || !strings.Contains(err.Error(), "is on both sides") {
		h.t.Errorf("error %v, want %v", err, pivot.ErrHalfDone)
	}
}

func testLostMachine(h *hazard) {
	h.tape.armOn("target", "POST", "machines", false, func() {
		// With what it owns, since nobody should still be at work on that.
		for _, kind := range [][2]string{{infrastructure, "ProxmoxMachine"}, {"v1", "Secret"}, {bootstrap, "TalosConfig"}, {core, "Machine"}} {
			lost := h.get("source", kind[0], kind[1], "c0-0")
			h.change("source", lost, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
			h.must(h.clients["source"].Client.Delete(h.ctx, lost))
		}
	})
	_, err := h.move()
	if err == nil || !strings.Contains(err.Error(), "has lost machines of its control plane") || !strings.Contains(err.Error(), "it stays paused") {
		h.t.Errorf("error %v, want one of the lost machine", err)
	}
	if paused, _, _ := unstructured.NestedBool(h.get("source", core, "Cluster", "c0").Object, "spec", "paused"); !paused {
		h.t.Error("the source was un-paused with a machine less")
	}
	if _, err := h.move(); err == nil || !strings.Contains(err.Error(), "un-pause it by hand") {
		h.t.Errorf("error %v, want one that says what to do", err)
	}
	h.unpause("source")
	h.moved()
}

func testAlteredCopy(h *hazard) {
	h.tape.armOn("target", "POST", "proxmoxmachines", false, func() {
		h.change("target", h.get("target", core, "Machine", "c0-0"), setField("proxmox://00000000-0000-4000-8000-00000000dead", "spec", "providerID"))
	})
	h.broughtBack("has another provider ID")
	if machines := h.count("source", infrastructure, "ProxmoxMachine"); machines != 1 {
		h.t.Errorf("the source holds %d machines of Proxmox", machines)
	}
}

func testDeletedMeanwhile(h *hazard) {
	h.tape.armOn("target", "POST", "proxmoxmachines", false, func() {
		h.must(h.clients["source"].Client.Delete(h.ctx, h.get("source", core, "Machine", "c0-0")))
	})
	h.broughtBack("somebody deleted Machine deleted/c0-0 while it was moved")
}

func testCredentials(h *hazard) {
	h.make("source", "v1", "Secret", "pve", fields{"stringData": fields{"token": "x"}})
	h.change("source", h.get("source", infrastructure, "ProxmoxCluster", "c0"), setField(fields{"name": "pve", "namespace": h.namespace}, "spec", "credentialsRef"))
	h.moved()
	for _, side := range []string{"source", "target"} {
		if data, _, _ := unstructured.NestedString(h.get(side, "v1", "Secret", "pve").Object, "data", "token"); data != "eA==" {
			h.t.Errorf("the %s has the token %q", side, data)
		}
	}
}

func testGitOps(h *hazard) {
	h.change("source", h.get("source", core, "Cluster", "c0"), func(o *unstructured.Unstructured) {
		o.SetAnnotations(map[string]string{"argocd.argoproj.io/tracking-id": "app:cluster.x-k8s.io/Cluster:gitops/c0"})
	})
	namespace := &corev1.Namespace{}
	h.must(h.clients["source"].Get(h.ctx, client.ObjectKey{Name: h.namespace}, namespace))
	namespace.Labels["kustomize.toolkit.fluxcd.io/name"] = "fleet"
	h.must(h.clients["source"].Update(h.ctx, namespace))
	preview, err := h.look()
	h.must(err)
	said := strings.Join(preview.Notices, "\n")
	for _, want := range []string{"Argo CD applies Cluster gitops/c0", "Flux applies Namespace gitops", "suspend it"} {
		if !strings.Contains(said, want) {
			h.t.Errorf("the plan does not say %q: %s", want, said)
		}
	}
	h.moved()
}

func testMadeAgain(h *hazard) {
	h.tape.armOn("source", "DELETE", "clusters", true, func() {
		h.make("source", core, "Cluster", "c0", fields{"spec": fields{"infrastructureRef": ref("infrastructure.cluster.x-k8s.io", "ProxmoxCluster", "c0")}})
	})
	h.moved()
	if left := h.count("source", core, "Cluster"); left > 0 {
		h.t.Errorf("%d clusters are left on the source", left)
	}
}

func testForeignOwner(h *hazard) {
	cluster := h.get("source", core, "Cluster", "c0")
	stranger := h.make("source", "v1", "ConfigMap", "stranger", nil)
	h.make("source", "v1", "Secret", "held", nil, cluster, stranger)
	if _, err := h.look(); !errors.Is(err, pivot.ErrRefused) || !strings.Contains(err.Error(), "Secret foreign/held would be left behind: its owner ConfigMap stranger does not move") {
		h.t.Errorf("the plan says %v", err)
	}
	h.refused("Secret foreign/held would be left behind")
	preview, err := h.look(func(o *pivot.Options) { o.ForeignOwners = pivot.ForeignLeave })
	if err != nil || len(preview.Stayed) != 1 {
		h.t.Errorf("%+v, %v: want one that stays", preview, err)
	}
	h.moved(func(o *pivot.Options) { o.ForeignOwners = pivot.ForeignCarry })
	if owners := h.get("target", "v1", "Secret", "held").GetOwnerReferences(); len(owners) != 1 || owners[0].Kind != "Cluster" {
		h.t.Errorf("the carried Secret has the owners %v", owners)
	}
}

func testUnlabelledKind(h *hazard) {
	h.install("source", "Server", "servers", "openstack.example", "v1alpha1", nil)
	h.make("source", "openstack.example/v1alpha1", "Server", "c0-0", nil, h.get("source", infrastructure, "ProxmoxMachine", "c0-0"))
	h.refused("Server unlabelled/c0-0 would be left behind: ProxmoxMachine unlabelled/c0-0 owns it and moves, but its kind does not carry the label")
	for _, side := range []string{"source", "target"} {
		if side == "target" {
			h.install(side, "Server", "servers", "openstack.example", "v1alpha1", nil)
		}
		definition := h.definition(side, "servers.openstack.example")
		definition.Labels = map[string]string{clusterctlv1.ClusterctlLabel: ""}
		h.must(h.clients[side].Update(h.ctx, definition))
	}
	h.moved()
	h.get("target", "openstack.example/v1alpha1", "Server", "c0-0")
}

func testSharedPool(h *hazard) {
	h.make("source", ipam, "IPAddressClaim", "of-c1", fields{"metadata": labels("c1"), "spec": fields{"poolRef": ref("ipam.cluster.x-k8s.io", "InClusterIPPool", "c0")}}, h.get("source", infrastructure, "ProxmoxMachine", "c1-0"))
	alone := func(o *pivot.Options) {
		o.Scope = pivot.Scope{Clusters: []client.ObjectKey{{Namespace: h.namespace, Name: "c0"}}}
	}
	if _, err := h.look(alone); !errors.Is(err, pivot.ErrRefused) {
		h.t.Errorf("the plan says %v, want a refusal", err)
	}
	h.refused("on both sides it would hand out the same addresses", alone)
	h.moved()
	for _, kind := range [][2]string{{ipamKinds, "InClusterIPPool"}, {ipam, "IPAddressClaim"}, {ipam, "IPAddress"}} {
		if here, there := h.count("source", kind[0], kind[1]), h.count("target", kind[0], kind[1]); here != 0 || there < 2 {
			h.t.Errorf("%s: %d on the source and %d on the target", kind[1], here, there)
		}
	}
}

func testCarriedStatus(h *hazard) {
	before := h.get("source", infrastructure, "ProxmoxMachine", "c0-0")
	result := h.moved()
	after := h.get("target", infrastructure, "ProxmoxMachine", "c0-0")
	for _, field := range []string{"addresses", "proxmoxNode"} {
		want, _, _ := unstructured.NestedFieldCopy(before.Object, "status", field)
		got, _, _ := unstructured.NestedFieldCopy(after.Object, "status", field)
		if want == nil || !reflect.DeepEqual(want, got) {
			h.t.Errorf("status.%s is %v, want %v", field, got, want)
		}
	}
	if result.Counts["Machine"] != 1 || len(result.ProviderIDs) != 1 {
		h.t.Errorf("the single machine of the control plane did not come alone: %+v", result)
	}
}

func testInterrupt(h *hazard) {
	ctx, cancel := context.WithCancel(h.ctx)
	h.tape.armOn("target", "POST", "machines", true, cancel)
	if _, err := pivot.Move(ctx, h.sides["source"], h.sides["target"], h.options()); !errors.Is(err, context.Canceled) {
		h.t.Errorf("error %v, want %v", err, context.Canceled)
	}
	h.managed("source")
	h.tape.arm(0, false, nil)
	h.moved()
}

func testHosted(h *hazard) {
	h.install("source", "KamajiControlPlane", "kamajicontrolplanes", "controlplane.cluster.x-k8s.io", "v1alpha1", map[string]string{clusterctlv1.ClusterctlLabel: ""})
	h.install("target", "KamajiControlPlane", "kamajicontrolplanes", "controlplane.cluster.x-k8s.io", "v1alpha1", map[string]string{clusterctlv1.ClusterctlLabel: ""})
	h.make("source", "controlplane.cluster.x-k8s.io/v1alpha1", "KamajiControlPlane", "tenant", nil, h.get("source", core, "Cluster", "c0"))
	if _, err := h.look(); !errors.Is(err, pivot.ErrRefused) || !strings.Contains(err.Error(), "KamajiControlPlane hosted/tenant runs in the source itself") {
		h.t.Errorf("the plan says %v, want a refusal", err)
	}
	h.refused("its API server and etcd cannot be moved as objects")
}

func testAutoscaler(h *hazard) {
	h.deployment("source", "autoscaler", "", "--cloud-provider=clusterapi")
	preview, err := h.look()
	h.must(err)
	if said := strings.Join(preview.Notices, "\n"); !strings.Contains(said, "Deployment scaled/autoscaler scales the Clusters of the source") {
		h.t.Errorf("the plan says %q", said)
	}
	h.moved()
}

func testEncryptedBackup(h *hazard) {
	identity, err := age.GenerateX25519Identity()
	h.must(err)
	result := h.moved(func(o *pivot.Options) {
		o.Backup = &pivot.Backup{Dir: h.t.TempDir(), Recipients: []string{identity.Recipient().String()}}
	})
	raw, err := os.ReadFile(result.Backup)
	h.must(err)
	for _, shown := range []string{"c2VjcmV0", "Secret", h.namespace} {
		if bytes.Contains(raw, []byte(shown)) {
			h.t.Errorf("the backup shows %q", shown)
		}
	}
	moved := 0
	for _, count := range result.Counts {
		moved += int(count)
	}
	objects, err := pivot.ReadBackup(bytes.NewReader(raw), identity)
	if err != nil || len(objects) != moved {
		h.t.Errorf("%d objects in the backup, %v; %d were moved", len(objects), err, moved)
	}
}

func testAnnotations(h *hazard) {
	h.change("source", h.get("source", core, "Machine", "c0-0"), func(o *unstructured.Unstructured) {
		o.SetAnnotations(map[string]string{"team": "shop", clusterv1.PausedAnnotation: "true"})
	})
	h.moved()
	machine := h.get("target", core, "Machine", "c0-0")
	annotations := machine.GetAnnotations()
	_, paused := annotations[clusterv1.PausedAnnotation]
	_, left := annotations[clusterctlv1.DeleteForMoveAnnotation]
	if annotations["team"] != "shop" || !paused || left {
		h.t.Errorf("the annotations are %v", annotations)
	}
	for _, entry := range machine.GetManagedFields() {
		if strings.Contains(entry.Manager, "pivot") {
			h.t.Errorf("the move owns fields: %+v", entry)
		}
	}
}

func testGlobal(h *hazard) {
	pool := func(first string) fields {
		return fields{"spec": fields{"addresses": []any{first + "-10.9.0.20"}, "prefix": int64(24), "gateway": "10.9.0.1"}}
	}
	made, err := h.maker("source", "").object(h.ctx, ipamKinds, "GlobalInClusterIPPool", "global", pool("10.9.0.10"))
	h.must(err)
	other, err := h.maker("target", "").object(h.ctx, ipamKinds, "GlobalInClusterIPPool", "global", pool("10.9.0.11"))
	h.must(err)
	h.refused("the target has a GlobalInClusterIPPool global already, which")
	h.must(h.clients["target"].Client.Delete(h.ctx, other))
	h.moved()
	for _, side := range []string{"source", "target"} {
		if err := h.clients[side].Get(h.ctx, client.ObjectKey{Name: "global"}, made.DeepCopy()); err != nil {
			h.t.Errorf("the global pool is not on the %s: %v", side, err)
		}
		h.must(client.IgnoreNotFound(h.clients[side].Client.Delete(h.ctx, made.DeepCopy())))
	}
}

func testBlocked(h *hazard) {
	machine := h.get("source", infrastructure, "ProxmoxMachine", "c0-0")
	h.change("source", machine, func(o *unstructured.Unstructured) {
		o.SetAnnotations(map[string]string{clusterctlv1.BlockMoveAnnotation: ""})
	})
	h.moved(func(o *pivot.Options) {
		o.Report = func(_ context.Context, phase, message string) {
			if phase != "blocked" {
				return
			}
			if !strings.Contains(message, "ProxmoxMachine blocked/c0-0 (set by kubectl)") {
				h.t.Errorf("it says %q", message)
			}
			h.change("source", h.get("source", infrastructure, "ProxmoxMachine", "c0-0"), func(o *unstructured.Unstructured) { o.SetAnnotations(nil) })
		}
	})
}

func testEtcd(h *hazard) {
	healthy := func(side string) {
		plane := h.get(side, controlPlane, "TalosControlPlane", "c0")
		setField([]any{fields{"type": "EtcdClusterHealthy", "status": "True", "lastTransitionTime": metav1.Now().UTC().Format("2006-01-02T15:04:05Z")}}, "status", "conditions")(plane)
		h.must(h.clients[side].Status().Update(h.ctx, plane))
	}
	healthy("source")
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	_, err := pivot.Move(ctx, h.sides["source"], h.sides["target"], h.options(func(o *pivot.Options) {
		o.Report = func(_ context.Context, _, message string) {
			if strings.Contains(message, "members of etcd") {
				cancel()
			}
		}
	}))
	if err == nil || !strings.Contains(err.Error(), "TalosControlPlane etcd/c0 to find the members of etcd as they were") {
		h.t.Errorf("error %v, want one of etcd", err)
	}
	h.managed("target")
	healthy("target")
	h.moved()
}

func testGates(h *hazard) {
	manager := h.deployment("target", "manager", "cluster-api", "--feature-gates=MachinePool=true,ClusterTopology=false")
	preview, err := h.look()
	h.must(err)
	if preview.Lacking == nil || !strings.Contains(preview.Lacking.Error(), "needs the feature gate ClusterTopology") {
		h.t.Errorf("the plan says %v", preview.Lacking)
	}
	h.refused(`give that provider the variable CLUSTER_TOPOLOGY = "true"`)
	manager.ResourceVersion = "" // whatever the control plane has noted in between
	manager.Spec.Template.Spec.Containers[0].Args = []string{"--leader-elect", "--feature-gates", "MachinePool=true,ClusterTopology=true"}
	h.must(h.clients["target"].Update(h.ctx, manager))
	h.moved()
	h.must(h.clients["target"].Client.Delete(h.ctx, manager))
}

func testContract(h *hazard) {
	definition := h.definition("target", "proxmoxmachines.infrastructure.cluster.x-k8s.io")
	newest := clusterv1.GroupVersion.Group + "/" + clusterv1.GroupVersion.Version
	value := definition.Labels[newest]
	delete(definition.Labels, newest)
	h.must(h.clients["target"].Update(h.ctx, definition))
	h.refused("install a newer version of its provider")
	definition = h.definition("target", "proxmoxmachines.infrastructure.cluster.x-k8s.io")
	definition.Labels[newest] = value
	h.must(h.clients["target"].Update(h.ctx, definition))
	h.moved()
}

func testProviders(h *hazard) {
	installInventory(h.ctx, h.t, h.clients["source"])
	h.refused("the target lacks the provider infrastructure-proxmox v0.9.0")
	installInventory(h.ctx, h.t, h.clients["target"])
	version := func(version string) {
		provider := &unstructured.Unstructured{}
		provider.SetAPIVersion(clusterctlv1.GroupVersion.String())
		provider.SetKind("Provider")
		h.must(h.clients["target"].Get(h.ctx, client.ObjectKey{Namespace: providerNamespace, Name: "infrastructure-proxmox"}, provider))
		provider.Object["version"] = version
		h.must(h.clients["target"].Update(h.ctx, provider))
	}
	version("v0.8.9")
	h.refused("older than the source's v0.9.0")
	version("v0.10.0")
	h.moved()
}
