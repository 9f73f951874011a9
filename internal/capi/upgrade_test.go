// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
)

// olderSet is the providers of a Talos cluster in older releases.
var olderSet = map[string]string{"cluster-api": "v1.13.4", "infrastructure-proxmox": "v0.8.2", "ipam-in-cluster": "v1.0.3"}

func TestCheckUpgrade(t *testing.T) {
	for name, test := range map[string]struct{ from, to, fails string }{
		"nothing installed":       {"", "v1.0.0", ""},
		"the same":                {"v1.0.0", "v1.0.0", ""},
		"a patch":                 {"v1.0.0", "v1.0.1", ""},
		"a pre-release":           {"v1.0.0-rc.1", "v1.0.0", ""},
		"an older one":            {"v1.10.0", "v1.9.9", "nothing is taken back to an older version"},
		"to a pre-release":        {"v1.0.0", "v1.0.0-rc.1", "nothing is taken back to an older version"},
		"from what is no release": {"main", "v1.0.0", "not the version of a release"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkUpgrade("it", test.from, test.to)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("error is %v, want %q", err, test.fails)
			}
		})
	}
}

func TestCheckContracts(t *testing.T) {
	contract := func(kind Type, name, version string) Contract {
		return Contract{Provider: Provider{Type: kind, Name: name, Version: "v1.0.0"}, Version: version}
	}
	for name, test := range map[string]struct {
		contracts []Contract
		fails     string
	}{
		"all of one":                      {contracts: []Contract{contract(Core, "cluster-api", "v1beta2"), contract(IPAM, "in-cluster", "v1beta2")}},
		"v1beta1 under a core of v1beta2": {contracts: []Contract{contract(Core, "cluster-api", "v1beta2"), contract(IPAM, "in-cluster", "v1beta1")}},
		"v1beta2 under a core of v1beta1": {
			contracts: []Contract{contract(Core, "cluster-api", "v1beta1"), contract(IPAM, "in-cluster", "v1beta2")},
			fails:     "ipam-in-cluster v1.0.0 keeps contract v1beta2, and cluster-api v1.0.0 works with v1beta1",
		},
		"no core to compare with": {contracts: []Contract{contract(IPAM, "in-cluster", "v1alpha3")}},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckContracts(test.contracts)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("error is %v, want %q", err, test.fails)
			}
		})
	}
}

// upgradeRig is a plane with the older set, brought in by the owner.
type upgradeRig struct {
	*plane.Plane
	c       *kube.Client
	options InitOptions
}

func newUpgradeRig(t *testing.T) *upgradeRig {
	t.Helper()
	p := plane.Start(t)
	c, err := kube.NewClient(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	withCertManagerKinds(t, c, p.Artifacts.Repository)
	dir := t.TempDir()
	if err := p.Artifacts.WithOlder(dir, olderSet); err != nil {
		t.Fatal(err)
	}
	r := &upgradeRig{Plane: p, c: c, options: InitOptions{
		Providers: talosOnProxmox(), CertManager: CertManager{Version: "v1.21.0"}, Source: Source{Repository: "file://" + dir},
		Owner: "6a4c8f4e-2a0f-4d0e-8f3e-1c1b7a5d9e10", Leases: kube.Leases{Duration: 2 * time.Second, Renewal: 300 * time.Millisecond},
	}}
	r.options.Providers[0].Credentials = &ProxmoxCredentials{URL: "https://pve.example:8006", Token: "capi@pve!capi-token", Secret: "a-secret-of-the-token"}
	return r
}

// older are the options with the older set.
func (r *upgradeRig) older() InitOptions {
	options := r.options
	options.Providers = slices.Clone(options.Providers)
	for i := range options.Providers {
		if version, ok := olderSet[options.Providers[i].Label()]; ok {
			options.Providers[i].Version = version
		}
	}
	return options
}

// upgraded checks that all is there in its version and nothing of the older
// releases is left.
func (r *upgradeRig) upgraded(t *testing.T) {
	t.Helper()
	if err := Ready(t.Context(), r.Config, r.options.Providers); err != nil {
		t.Error(err)
	}
	list := &corev1.ConfigMapList{}
	if err := r.c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		if item.Name == artifacts.OlderOnly {
			t.Errorf("the older release left a ConfigMap in %s", item.Namespace)
		}
	}
	secret := &corev1.Secret{}
	if err := r.c.Get(t.Context(), client.ObjectKey{Namespace: "capmox-system", Name: "capmox-manager-credentials"}, secret); err != nil || string(secret.Data["secret"]) != "a-secret-of-the-token" {
		t.Errorf("the upgraded provider has not its own variables: %v", err)
	}
}

// limited lets a number of writes through and then none, and ends the run: what
// a killed one leaves.
type limited struct {
	next http.RoundTripper
	left atomic.Int32
	cut  func()
}

var errCutOff = errors.New("the network is gone")

func (l *limited) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet && l.left.Add(-1) < 0 {
		l.cut()
		return nil, errCutOff
	}
	return l.next.RoundTrip(req)
}

func clusterctlReader(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := (&proxy{config: config}).NewClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// withoutWebhooks removes the webhooks that would be asked for an object: no pod
// of a plane answers them.
func withoutWebhooks(t *testing.T, c *kube.Client, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
		objects, err := c.Objects(t.Context(), "admissionregistration.k8s.io/v1", kind, "")
		if err != nil {
			t.Fatal(err)
		}
		for i := range objects {
			if err := c.Delete(t.Context(), &objects[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return object
}

func TestInitUpgradesProvidersInPlace(t *testing.T) {
	r := newUpgradeRig(t)
	initUntilPods(t, r.Plane, r.older())
	if err := Ready(t.Context(), r.Config, r.older().Providers); err != nil {
		t.Fatal(err)
	}

	t.Run("a version for which there is no release changes nothing", func(t *testing.T) {
		before := generations(t, r.c)
		options := r.options
		options.Providers = slices.Clone(options.Providers)
		options.Providers[0].Version = "v0.9.9"
		err := Init(t.Context(), r.Config, options, nil)
		if err == nil || !strings.Contains(err.Error(), "v0.9.9") {
			t.Errorf("error is %v", err)
		}
		if after := generations(t, r.c); before != after {
			t.Errorf("Deployments changed from %s to %s", before, after)
		}
	})
	other := r.older()
	other.Owner = "0b9a2c7e-0000-4d0e-8f3e-1c1b7a5d9e10"
	// ended is what a run to its end does; on a plane without nodes none gets there.
	ended := func(options InitOptions) {
		t.Helper()
		initUntilPods(t, r.Plane, options)
		n := &installation{options: options, reader: clusterctlReader(t, r.Config)}
		if err := n.own(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a run whose owner was lost at its very end goes on with another owner", func(t *testing.T) {
		ended(r.older())
		ended(other)
		if err := Finish(t.Context(), r.Config, r.options.Owner); err != nil {
			t.Fatal(err)
		}
		ended(r.older())
	})
	t.Run("another owner is refused what is finished", func(t *testing.T) {
		if err := Finish(t.Context(), r.Config, r.options.Owner); err != nil {
			t.Fatal(err)
		}
		if err := Init(t.Context(), r.Config, other, nil); err == nil || !strings.Contains(err.Error(), "not by this resource") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("cut off at any write it is finished by the next run", func(t *testing.T) {
		// Each run gets a little further than the one before; what the last
		// interrupted one has left is what the complete one finds.
		for _, writes := range []int32{1, 4, 9, 16, 25, 36} {
			cut := rest.CopyConfig(r.Config)
			ctx, cancel := context.WithCancelCause(t.Context())
			limit := &limited{cut: func() { cancel(errCutOff) }}
			limit.left.Store(writes)
			cut.Wrap(func(next http.RoundTripper) http.RoundTripper {
				limit.next = next
				return limit
			})
			err := Init(ctx, cut, r.options, nil)
			cancel(nil)
			if err == nil {
				t.Fatalf("with %d writes it comes to its end", writes)
			}
			if strings.Contains(err.Error(), "a-secret-of-the-token") {
				t.Errorf("the error holds a secret: %v", err)
			}
		}
		initUntilPods(t, r.Plane, r.options)
		r.upgraded(t)
	})
	t.Run("older versions are refused then", func(t *testing.T) {
		before := generations(t, r.c)
		err := Init(t.Context(), r.Config, r.older(), nil)
		if err == nil || !strings.Contains(err.Error(), "is installed and v0.8.2 is asked for: nothing is taken back") {
			t.Errorf("error is %v", err)
		}
		if after := generations(t, r.c); before != after {
			t.Errorf("Deployments changed from %s to %s", before, after)
		}
	})
	t.Run("what is no longer named goes once nothing of it is left", func(t *testing.T) {
		options := r.options
		options.Providers = slices.DeleteFunc(slices.Clone(options.Providers), func(p Provider) bool { return p.Label() == "control-plane-talos" })
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "controlplane.cluster.x-k8s.io/v1alpha3", "kind": "TalosControlPlane",
			"metadata": map[string]any{"namespace": "default", "name": "kept"},
			"spec": map[string]any{"version": "v1.36.2", "infrastructureTemplate": map[string]any{"kind": "ProxmoxMachineTemplate", "name": "x"},
				"controlPlaneConfig": map[string]any{"controlplane": map[string]any{"generateType": "controlplane"}}},
		}}
		if err := r.c.Create(t.Context(), withoutWebhooks(t, r.c, object)); err != nil {
			t.Fatal(err)
		}
		err := Init(t.Context(), r.Config, options, nil)
		if err == nil || !strings.Contains(err.Error(), "control-plane-talos cannot be removed: there are 1 taloscontrolplanes") {
			t.Errorf("error is %v", err)
		}
		if err := r.c.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		initUntilPods(t, r.Plane, options)
		found, err := Inventory(t.Context(), r.Config)
		if err != nil || slices.ContainsFunc(found, func(i Installed) bool { return i.Label() == "control-plane-talos" }) || len(found) != len(options.Providers) {
			t.Errorf("the inventory is %v, %v", found, err)
		}
	})
	t.Run("its removal leaves definitions and namespaces", func(t *testing.T) {
		if err := RemoveClusterctl(t.Context(), r.Config, "somebody-else", nil); err != nil {
			t.Fatal(err)
		}
		if found, err := Inventory(t.Context(), r.Config); err != nil || len(found) == 0 {
			t.Errorf("somebody else's removal leaves %v, %v", found, err)
		}
		if err := RemoveClusterctl(t.Context(), r.Config, r.options.Owner, nil); err != nil {
			t.Fatal(err)
		}
		if found, err := Inventory(t.Context(), r.Config); err != nil || len(found) > 0 {
			t.Errorf("it leaves %v, %v", found, err)
		}
		if names, err := Clusters(t.Context(), r.Config); err != nil || len(names) > 0 {
			t.Errorf("the definition of Clusters: %v, %v", names, err)
		}
	})
}
