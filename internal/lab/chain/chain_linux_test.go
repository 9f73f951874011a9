// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package chain

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

func TestMain(m *testing.M) {
	local.ReexecMain() // the bootstrap cluster's supervisor and all pods are this program again
	os.Exit(m.Run())
}

// kubernetesVersion is the release of the bootstrap cluster.
const kubernetesVersion = "v1.36.2"

// world is everything outside the bootstrap cluster.
type world struct {
	t      *testing.T
	dir    string
	lab    *lab.Lab
	report progress.Reporter
	// calls are those that the hypervisor has answered, admin works there as root.
	calls    *journal
	admin    *proxmox.Client
	template proxmox.Template
	// account is what Cluster API works with, holder whose it is with its secret.
	account proxmox.AccountSpec
	holder  proxmox.Holder
	// instance is the owner of the Cluster.
	instance string
}

func newWorld(ctx context.Context, t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "chain") // a short path: unix sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &world{
		t: t, dir: dir, report: reporter(t), calls: &journal{}, instance: uuid.NewString(), holder: proxmox.Holder{Instance: uuid.NewString()},
		account: proxmox.AccountSpec{UserID: "capi@pve", TokenName: "capi-token", Permissions: proxmox.LeastPrivilege, PrivilegeSeparation: true},
	}
	set, err := artifacts.Ensure(ctx, w.report)
	if err != nil {
		t.Fatal(err)
	}
	if w.lab, err = lab.Start(ctx, lab.Options{Dir: filepath.Join(dir, "lab"), Artifacts: set, Observe: w.calls.observe, Report: w.report}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.lab.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	return w
}

// reporter logs with the time since the start. What a machine's goroutines say
// after the test's end is dropped, which testing would panic about.
func reporter(t *testing.T) progress.Reporter {
	var mu sync.Mutex
	start, over := time.Now(), false
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
	})
	return func(_ context.Context, phase, message string) {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			t.Logf("%6.1fs %s: %s", time.Since(start).Seconds(), phase, message)
		}
	}
}

// http trusts the hypervisor's authority.
func (w *world) http() *http.Client {
	w.t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(w.lab.PVE.CA()) {
		w.t.Fatal("the hypervisor has no CA")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// prepare makes the template and the account on Proxmox VE, with the provider's
// own engines.
func (w *world) prepare(ctx context.Context) {
	w.t.Helper()
	var err error
	w.admin, err = proxmox.New(proxmox.Config{
		Endpoint: w.lab.PVE.URL(), CAPEM: string(w.lab.PVE.CA()), TokenID: lab.TokenID, TokenSecret: w.lab.TokenSecret(), PollInterval: 100 * time.Millisecond,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	schematic, err := talos.NewSchematic([]string{talos.QEMUGuestAgent}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	image, err := talos.NewDiskImage(schematic, talos.Image{Factory: w.lab.Factory.URL(), Version: "v1.13.7"}, talos.Factory{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.template, err = w.admin.EnsureTemplate(ctx, proxmox.TemplateSpec{
		Node: "pve1", Storage: "local-lvm", Image: image, Identity: image.Identity(), TemplateHardware: proxmox.TemplateHardware{BIOS: "seabios"},
		TemplateSettings: proxmox.TemplateSettings{Name: "talos-v1.13.7", CPUType: "x86-64-v2-AES", Cores: 2, MemoryMiB: 2048, Agent: true, Networks: []proxmox.NetworkDevice{{Bridge: "vmbr0"}}},
	}, uuid.NewString(), w.report, func(proxmox.Template) {})
	if err != nil {
		w.t.Fatal(err)
	}
	w.makeAccount(ctx, w.template)
}

// spec is the bootstrap cluster with the example's providers on the runtime
// "local", and with the account's token of now.
func (w *world) spec() bootstrap.Spec {
	v := w.lab.Variables()
	return bootstrap.Spec{
		Name: "bootstrap", Runtime: "local", KubernetesVersion: kubernetesVersion,
		Images: v["images"].([]string), Repository: fmt.Sprint(v["repository"]),
		CertManager: capi.CertManager{Version: artifacts.CertManagerVersion},
		Providers: []capi.Provider{
			{Type: capi.Core, Name: "cluster-api", Version: artifacts.ClusterAPIVersion},
			{Type: capi.Bootstrap, Name: "talos", Version: artifacts.CABPTVersion},
			{Type: capi.ControlPlane, Name: "talos", Version: artifacts.CACPPTVersion},
			{Type: capi.IPAM, Name: "in-cluster", Version: artifacts.IPAMVersion},
			{Type: capi.Infrastructure, Name: "proxmox", Version: artifacts.ProxmoxVersion, Credentials: &capi.ProxmoxCredentials{
				URL: w.lab.PVE.URL(), Token: w.account.TokenID(), Secret: w.holder.Secret, CA: string(w.lab.PVE.CA()),
			}},
		},
	}
}

// bootstrap starts the bootstrap cluster.
func (w *world) bootstrap(ctx context.Context) (*kube.Client, bootstrap.Manager) {
	w.t.Helper()
	runtime := local.Runtime{State: filepath.Join(w.dir, "state")}
	spec, manager := w.spec(), bootstrap.Manager{"local": runtime}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := runtime.Delete(ctx, spec.Name); err != nil {
			w.t.Errorf("delete the bootstrap cluster: %v", err)
		}
	})
	kubeconfig, err := manager.Ensure(ctx, spec, w.report)
	if err != nil {
		w.t.Fatal(err)
	}
	config, err := kube.ConfigFromKubeconfig(kubeconfig, "")
	if err != nil {
		w.t.Fatal(err)
	}
	client, err := kube.NewClient(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return client, manager
}

// example reads a file of the example that the lab runs.
func example(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "examples", "talos-proxmox", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// manifest is the example's cluster on addresses of the block, in the pool that
// the account is confined to, with so many control plane machines.
func (w *world) manifest(replicas int) cluster.ApplyOptions {
	w.t.Helper()
	v := w.lab.Variables()
	values := map[string]string{"TEMPLATE_ID": strconv.Itoa(w.template.VMID), "NODE": "pve1", "BRIDGE": "vmbr0"}
	for name, variable := range map[string]string{
		"VIP": "vip", "ADDRESSES": "addresses", "PREFIX": "prefix", "GATEWAY": "gateway", "DNS_SERVER": "dns_server",
	} {
		values[name] = fmt.Sprint(v[variable])
	}
	text := example(w.t, "kmgt.yaml")
	for old, changed := range map[string]string{
		"  replicas: 1\n":                 fmt.Sprintf("  replicas: %d\n", replicas),
		"      sourceNode: \"${NODE}\"\n": "      sourceNode: \"${NODE}\"\n      pool: " + machinePool + "\n",
	} {
		if strings.Count(text, old) != 1 {
			w.t.Fatalf("the example has no single %q", old)
		}
		text = strings.Replace(text, old, changed, 1)
	}
	parsed, err := cluster.Load(text, values)
	if err != nil {
		w.t.Fatal(err)
	}
	secrets, err := cluster.ParseSecrets(fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: proxmox-credentials, namespace: kmgt, labels: {platform.ionos.com/secret-type: proxmox-credentials}}
stringData: {url: %q, token: %q, secret: %q, insecure: "false", root_ca: %q}
`, w.lab.PVE.URL(), w.account.TokenID(), w.holder.Secret, w.lab.PVE.CA()))
	if err != nil {
		w.t.Fatal(err)
	}
	return cluster.ApplyOptions{Instance: w.instance, Manifest: parsed, Secrets: secrets}
}

// TestRealControllersBuildTheClusterOfTheExample goes the example's way from
// nothing to a ready control plane, scales it up and down, and deletes it: all
// with an account of the least privileges that is confined as far as it can be,
// and whose token is rotated on the way.
func TestRealControllersBuildTheClusterOfTheExample(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a whole Cluster API")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	w := newWorld(ctx, t)
	w.prepare(ctx)
	mgmt, runtime := w.bootstrap(ctx)
	w.report(ctx, "chain", "providers are ready")
	home := cluster.Home{Client: mgmt, Namespace: "kmgt", Name: "kmgt", Report: w.report}
	created, err := home.Create(ctx, w.manifest(1), func() {})
	if err != nil {
		t.Fatalf("%v\n%s", err, home.Tree(context.WithoutCancel(ctx)))
	}
	w.report(ctx, "chain", "control plane is initialized")

	config, err := kube.ConfigFromKubeconfig(created.Credentials.Kubeconfig, "")
	if err != nil {
		t.Fatal(err)
	}
	w.checkBare(ctx, config)
	w.installCharts(ctx, config)
	w.await(ctx, "the Node ready, initialized and with its providerID", func(ctx context.Context) error { return w.nodeReady(ctx, config) })
	w.await(ctx, "TalosControlPlane ready", func(ctx context.Context) error {
		tcp, err := mgmt.Object(ctx, "controlplane.cluster.x-k8s.io/v1alpha3", "TalosControlPlane", "kmgt", "kmgtcp")
		if err != nil {
			return err
		}
		ready, _, _ := unstructured.NestedBool(tcp.Object, "status", "ready")
		if !ready {
			return errors.New("not ready")
		}
		return nil
	})
	if err := home.WaitAvailable(ctx); err != nil {
		t.Fatalf("%v\n%s", err, home.Tree(context.WithoutCancel(ctx)))
	}
	w.report(ctx, "chain", "the cluster is available\n"+home.Tree(ctx))
	w.rotate(ctx, home, runtime)
	w.remove(ctx, mgmt)
	w.checkCalls()
}

// order applies the cluster with another number of control plane machines, and
// with the credentials of now.
func (w *world) order(ctx context.Context, home cluster.Home, replicas int) {
	w.t.Helper()
	w.report(ctx, "chain", fmt.Sprintf("%d control plane machines are ordered with %s", replicas, w.account.TokenID()))
	if err := home.Apply(ctx, w.manifest(replicas)); err != nil {
		w.t.Fatal(err)
	}
}

// awaitMachines waits until so many control plane machines are there and ready:
// later ones join etcd, and those that go leave it first.
func (w *world) awaitMachines(ctx context.Context, mgmt *kube.Client, replicas int) {
	w.t.Helper()
	w.await(ctx, fmt.Sprintf("%d control plane machines ready", replicas), func(ctx context.Context) error {
		tcp, err := mgmt.Object(ctx, "controlplane.cluster.x-k8s.io/v1alpha3", "TalosControlPlane", "kmgt", "kmgtcp")
		if err != nil {
			return err
		}
		ready, _, _ := unstructured.NestedInt64(tcp.Object, "status", "readyReplicas")
		all, _, _ := unstructured.NestedInt64(tcp.Object, "status", "replicas")
		if ready != int64(replicas) || all != int64(replicas) || w.running() != replicas {
			return fmt.Errorf("%d of %d are ready, %d run: %v", ready, all, w.running(), tcp.Object["status"])
		}
		return nil
	})
}

// checkBare checks the Node as it is before any chart.
func (w *world) checkBare(ctx context.Context, config *rest.Config) {
	w.t.Helper()
	client, err := kube.NewClient(config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.await(ctx, "the Node registered", func(ctx context.Context) error {
		nodes := &corev1.NodeList{}
		if err := client.List(ctx, nodes); err != nil {
			return err
		}
		if len(nodes.Items) != 1 {
			return fmt.Errorf("%d nodes", len(nodes.Items))
		}
		n := nodes.Items[0]
		if ready(n) || n.Spec.ProviderID != "" || !uninitialized(n) {
			w.t.Errorf("before the charts the Node is %+v with taints %v", n.Status.Conditions, n.Spec.Taints)
		}
		return nil
	})
}

func ready(n corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func uninitialized(n corev1.Node) bool {
	for _, taint := range n.Spec.Taints {
		if taint.Key == "node.cloudprovider.kubernetes.io/uninitialized" {
			return true
		}
	}
	return false
}

func (w *world) nodeReady(ctx context.Context, config *rest.Config) error {
	client, err := kube.NewClient(config)
	if err != nil {
		return err
	}
	nodes := &corev1.NodeList{}
	if err := client.List(ctx, nodes); err != nil {
		return err
	}
	if len(nodes.Items) != 1 {
		return fmt.Errorf("%d nodes", len(nodes.Items))
	}
	n := nodes.Items[0]
	if !ready(n) || uninitialized(n) || !strings.HasPrefix(n.Spec.ProviderID, "proxmox://") {
		return fmt.Errorf("ready %v, providerID %q, taints %v; pods: %s", ready(n), n.Spec.ProviderID, n.Spec.Taints, pods(ctx, client))
	}
	return nil
}

// pods says in one line how all pods are.
func pods(ctx context.Context, client *kube.Client) string {
	list := &corev1.PodList{}
	if err := client.List(ctx, list); err != nil {
		return err.Error()
	}
	var out []string
	for _, p := range list.Items {
		line := p.Namespace + "/" + p.Name + " " + string(p.Status.Phase)
		for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if s.State.Waiting != nil {
				line += " " + s.Name + ": " + s.State.Waiting.Reason + " " + s.State.Waiting.Message
			}
			if s.LastTerminationState.Terminated != nil {
				line += " " + s.Name + " ended " + strconv.Itoa(int(s.LastTerminationState.Terminated.ExitCode)) + " " + s.LastTerminationState.Terminated.Message
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

func (w *world) installCharts(ctx context.Context, config *rest.Config) {
	w.t.Helper()
	client, err := kube.NewClient(config)
	if err != nil {
		w.t.Fatal(err)
	}
	for chart, values := range map[string]string{"cilium": "cilium.yaml", "talos-cloud-controller-manager": "cloud-controller-manager.yaml"} {
		merged, err := helm.MergeValues([]string{example(w.t, values)})
		if err != nil {
			w.t.Fatal(err)
		}
		release, err := helm.Engine{Report: w.report}.Ensure(ctx, client, helm.Spec{
			Name: chart, Namespace: metav1.NamespaceSystem, Chart: helm.Chart{Ref: w.lab.Artifacts.Charts[chart]}, Values: merged, Owner: uuid.NewString(),
		})
		if err != nil || !release.Deployed() {
			w.t.Fatalf("release %s: %+v, %v", chart, release, err)
		}
	}
}

// remove deletes the Cluster and waits until its machines are gone.
func (w *world) remove(ctx context.Context, mgmt *kube.Client) {
	w.t.Helper()
	obj, err := mgmt.Object(ctx, "cluster.x-k8s.io/v1beta2", "Cluster", "kmgt", "kmgt")
	if err != nil {
		w.t.Fatal(err)
	}
	if err := mgmt.Delete(ctx, obj); err != nil {
		w.t.Fatal(err)
	}
	w.await(ctx, "the Cluster and its VMs gone", func(ctx context.Context) error {
		_, err := mgmt.Object(ctx, "cluster.x-k8s.io/v1beta2", "Cluster", "kmgt", "kmgt")
		if !kube.IsAbsent(err) {
			return fmt.Errorf("the Cluster is there (%w)", err)
		}
		if w.running() > 0 {
			return fmt.Errorf("VMs are %v", w.lab.PVE.Summary().VMs)
		}
		return nil
	})
	if left, err := os.ReadDir(filepath.Join(w.dir, "lab", "disks")); err != nil || len(left) != 0 {
		w.t.Errorf("disks are left: %v (%v)", left, err)
	}
}

// await tries until f has no error. The test's deadline ends it.
func (w *world) await(ctx context.Context, what string, f func(ctx context.Context) error) {
	w.t.Helper()
	w.report(ctx, "await", what)
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			w.t.Fatalf("%s: %v", what, err)
		case <-ticker.C:
		}
	}
}
