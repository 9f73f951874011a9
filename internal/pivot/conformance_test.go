// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	clusterctlconfig "sigs.k8s.io/cluster-api/cmd/clusterctl/config"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

const providerNamespace = "capmox-system"

// TestTheDiscoveryFindsWhatClusterctlFinds compares with clusterctl's own library
// on generated fleets: in one namespace and in all, the same objects with the
// same owners. CONFORMANCE_SEED plays one fleet again.
func TestTheDiscoveryFindsWhatClusterctlFinds(t *testing.T) {
	running := plane.Start(t)
	c := running.Client(t)
	running.InstallKinds(t, c, fleetKinds...)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	installInventory(ctx, t, c)
	side, err := pivot.NewSide(ctx, c, "source")
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("CONFORMANCE_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("CONFORMANCE_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	namespaces := []string{"n0", "n1", "n2"}
	for _, namespace := range namespaces {
		// Each namespace has a class, so that another's Cluster can use it.
		fleet{clusters: 1 + random.IntN(2), machines: random.IntN(3), ipam: random.IntN(2) == 0, topology: true, namespace: namespace}.make(ctx, t, side.Client)
		oddities(ctx, t, side.Client, random, namespace)
	}
	useClassElsewhere(ctx, t, side.Client)
	for _, namespace := range append(namespaces, "") {
		t.Run("in namespace "+strconv.Quote(namespace), func(t *testing.T) {
			scope := pivot.Scope{}
			if namespace != "" {
				scope.Namespaces = []string{namespace}
			}
			ours, err := pivot.DiscoveredOwners(ctx, side, scope)
			if err != nil {
				t.Fatal(err)
			}
			theirs := clusterctlFinds(ctx, t, running.Config, namespace)
			if len(theirs) < 10 {
				t.Fatalf("clusterctl finds %d objects only: %v", len(theirs), slices.Sorted(maps.Keys(theirs)))
			}
			for object, owners := range theirs {
				if mine, ok := ours[object]; !ok {
					t.Errorf("%s is found by clusterctl alone", object)
				} else if !slices.Equal(mine, owners) {
					t.Errorf("%s has the owners %v, and by clusterctl %v", object, mine, owners)
				}
			}
			for object := range ours {
				if _, ok := theirs[object]; !ok {
					t.Errorf("%s is found by ours alone", object)
				}
			}
		})
	}
}

// installInventory makes clusterctl's inventory with one infrastructure provider,
// in whose namespace clusterctl looks for Secrets.
func installInventory(ctx context.Context, t *testing.T, c *kube.Client) {
	t.Helper()
	documents, err := kube.ParseDocuments(clusterctlconfig.ClusterctlAPIManifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range documents {
		if err := c.Create(ctx, document); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.EnsureNamespace(ctx, providerNamespace); err != nil {
		t.Fatal(err)
	}
	provider := &unstructured.Unstructured{Object: fields{"providerName": "proxmox", "type": "InfrastructureProvider", "version": "v0.9.0"}}
	provider.SetAPIVersion(clusterctlv1.GroupVersion.String())
	provider.SetKind("Provider")
	provider.SetNamespace(providerNamespace)
	provider.SetName("infrastructure-proxmox")
	err = kube.Wait(ctx, "the inventory's kind", func(ctx context.Context) (bool, string, error) {
		err := c.Create(ctx, provider.DeepCopy())
		return err == nil, "", err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// oddities are what the graph has rules for, some of it in each namespace.
func oddities(ctx context.Context, t *testing.T, c client.Client, random *rand.Rand, namespace string) {
	t.Helper()
	m := &fleetMaker{client: c, namespace: namespace}
	do := func(o *unstructured.Unstructured, err error) *unstructured.Unstructured {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	labelled := func(label string) fields { return fields{"metadata": fields{"labels": fields{label: ""}}} }
	foreign := &unstructured.Unstructured{Object: fields{}}
	foreign.SetAPIVersion("argoproj.io/v1alpha1")
	foreign.SetKind("Application")
	foreign.SetName("app")
	foreign.SetUID("00000000-0000-4000-8000-000000000001")
	cluster := &unstructured.Unstructured{}
	cluster.SetAPIVersion(core)
	cluster.SetKind("Cluster")
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "c0"}, cluster); err != nil {
		t.Fatal(err)
	}
	rules := []func(){
		func() {
			do(m.object(ctx, "v1", "ConfigMap", "moved-by-label", labelled(clusterctlv1.ClusterctlMoveLabel)))
		},
		func() {
			root := do(m.object(ctx, "v1", "Secret", "root", labelled(clusterctlv1.ClusterctlMoveHierarchyLabel)))
			below := do(m.object(ctx, "v1", "ConfigMap", "below-root", nil, root))
			do(m.object(ctx, "v1", "Secret", "far-below-root", nil, below))
		},
		func() { do(m.object(ctx, "v1", "Secret", "c0-etcd", nil)) },
		func() { do(m.object(ctx, "v1", "Secret", "c0-unknown", nil)) },
		func() { do(m.object(ctx, "v1", "Secret", "nobody-ca", nil)) },
		func() { do(m.object(ctx, "v1", "Secret", "c0-proxy", nil, foreign)) },
		func() { do(m.object(ctx, "v1", "ConfigMap", "of-a-stranger", nil, foreign)) },
		func() {
			held := do(m.object(ctx, "v1", "ConfigMap", "of-cluster-and-stranger", nil, cluster, foreign))
			do(m.object(ctx, "v1", "Secret", "below-held-back", nil, held))
		},
		func() { do(m.object(ctx, "v1", "Secret", "of-cluster", nil, cluster)) },
		func() {
			one := do(m.object(ctx, "v1", "ConfigMap", "circle-1", labelled(clusterctlv1.ClusterctlMoveHierarchyLabel)))
			two := do(m.object(ctx, "v1", "ConfigMap", "circle-2", nil, one))
			one.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: two.GetName(), UID: two.GetUID()}})
			do(one, c.Update(ctx, one))
		},
		func() {
			global := &fleetMaker{client: c}
			pool := do(global.object(ctx, "ipam.cluster.x-k8s.io/v1alpha2", "GlobalInClusterIPPool", "global-"+namespace, fields{"spec": fields{"addresses": []any{"10.9.0.10-10.9.0.20"}, "prefix": int64(24), "gateway": "10.9.0.1"}}))
			provider := &fleetMaker{client: c, namespace: providerNamespace}
			do(provider.object(ctx, "v1", "Secret", "of-global-"+namespace, nil, pool))
			do(provider.object(ctx, "v1", "Secret", "of-nobody-"+namespace, nil))
			do(provider.object(ctx, "v1", "Secret", "labelled-"+namespace, labelled(clusterctlv1.ClusterctlMoveLabel)))
		},
	}
	for _, rule := range rules {
		if random.IntN(3) > 0 {
			rule()
		}
	}
}

// useClassElsewhere lets a Cluster use the class of another namespace.
func useClassElsewhere(ctx context.Context, t *testing.T, c client.Client) {
	t.Helper()
	cluster := &unstructured.Unstructured{}
	cluster.SetAPIVersion(core)
	cluster.SetKind("Cluster")
	if err := c.Get(ctx, client.ObjectKey{Namespace: "n0", Name: "c0"}, cluster); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(cluster.Object, "n1", "spec", "topology", "classRef", "namespace"); err != nil {
		t.Fatal(err)
	}
	if err := c.Update(ctx, cluster); err != nil {
		t.Fatal(err)
	}
}

// clusterctlFinds answers the objects that clusterctl's export writes, with their
// owners.
func clusterctlFinds(ctx context.Context, t *testing.T, config *rest.Config, namespace string) map[string][]string {
	t.Helper()
	fast := rest.CopyConfig(config)
	fast.QPS = -1
	clusterctl, err := capi.ClusterClient(ctx, fast)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := clusterctl.ObjectMover().ToDirectory(ctx, namespace, dir); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, file := range files {
		raw, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(raw, o); err != nil {
			t.Fatal(err)
		}
		var owners []string
		for _, owner := range o.GetOwnerReferences() {
			owners = append(owners, owner.Kind+" "+owner.Name)
		}
		slices.Sort(owners)
		found[fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())] = owners
	}
	return found
}
