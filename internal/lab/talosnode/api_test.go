// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// fakeControl starts nothing but keeps Talos's bookkeeping going.
type fakeControl struct {
	mu     sync.Mutex
	planes []*fakePlane
}

type fakePlane struct {
	spec PlaneSpec
	done chan struct{}
	end  sync.Once
}

func (c *fakeControl) StartPlane(_ context.Context, spec PlaneSpec) (Plane, error) {
	p := &fakePlane{spec: spec, done: make(chan struct{})}
	c.mu.Lock()
	c.planes = append(c.planes, p)
	c.mu.Unlock()
	return p, os.MkdirAll(filepath.Join(spec.Dir, "etcd", "member", "wal"), 0o700)
}

// last is the control plane that was started last.
func (c *fakeControl) last() *fakePlane {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.planes) == 0 {
		return nil
	}
	return c.planes[len(c.planes)-1]
}

func (c *fakeControl) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.planes)
}

func (c *fakeControl) StartKubelet(context.Context, KubeletSpec) (Kubelet, error) {
	return nil, errors.New("no kubelet in this test")
}

func (p *fakePlane) Endpoint() netip.AddrPort {
	return netip.AddrPortFrom(p.spec.Address, uint16(p.spec.Port))
}
func (p *fakePlane) EtcdClientURL() string {
	return "https://" + netip.AddrPortFrom(p.spec.Address, 2379).String()
}
func (p *fakePlane) Done() <-chan struct{}      { return p.done }
func (p *fakePlane) Err() error                 { return errors.New("a program ended") }
func (p *fakePlane) Stop(context.Context) error { p.crash(); return nil }
func (p *fakePlane) crash()                     { p.end.Do(func() { close(p.done) }) }

func TestNodeAnswersWhatCACPPTAsksBeforeBootstrap(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, &fakeControl{})
	addr := loopback(t)
	c.boot(c.vm(c.config(machine.TypeControlPlane), addr))
	api := c.client(addr)

	eventually(t, 10*time.Second, "list the services", func(ctx context.Context) error {
		list, err := api.ServiceList(ctx)
		if err != nil {
			return err
		}
		for _, m := range list.Messages {
			for _, s := range m.Services {
				if !s.GetHealth().GetUnknown() && !s.GetHealth().GetHealthy() {
					return fmt.Errorf("service %s is unhealthy", s.GetId())
				}
			}
		}
		return nil
	})
	info, err := api.ServiceInfo(t.Context(), "etcd")
	if err != nil || len(info) != 1 || info[0].Service.GetState() != statePreparing {
		t.Errorf("etcd before Bootstrap: %v, %v", info, err)
	}
	if _, err := api.EtcdMemberList(t.Context(), &machineapi.EtcdMemberListRequest{}); client.StatusCode(err) != codes.Unavailable {
		t.Errorf("member list before Bootstrap: %v", err)
	}
	if name := firstEntry(t, api, addr); name != "" {
		t.Errorf("etcd's folder is there before Bootstrap: %s", name)
	}
}

// firstEntry asks like bootstrapCluster of CACPPT: for the folder of the etcd
// member, through the node's own apid. Empty means that the node answered with
// an error in the metadata, which has to be there.
func firstEntry(t *testing.T, api *client.Client, addr netip.Addr) string {
	t.Helper()
	stream, err := api.LS(client.WithNodes(t.Context(), addr.String()), &machineapi.ListRequest{Root: "/var/lib/etcd/member"})
	if err != nil {
		t.Fatal(err)
	}
	found := ""
	for {
		entry, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if entry.GetMetadata().GetHostname() != addr.String() {
			t.Fatalf("the entry's metadata name %q", entry.GetMetadata().GetHostname())
		}
		if entry.Metadata.Error == "" && found == "" {
			found = entry.GetName()
		}
	}
}

func TestBootstrapHappensOnce(t *testing.T) {
	t.Parallel()
	control := &fakeControl{}
	c := newTestCluster(t, control)
	addr := loopback(t)
	c.boot(c.vm(c.config(machine.TypeControlPlane), addr))
	api := c.client(addr)
	ctx := client.WithNodes(t.Context(), addr.String())

	eventually(t, 10*time.Second, "bootstrap", func(context.Context) error {
		return api.Bootstrap(ctx, &machineapi.BootstrapRequest{})
	})
	if err := api.Bootstrap(ctx, &machineapi.BootstrapRequest{}); client.StatusCode(err) != codes.AlreadyExists {
		t.Errorf("second Bootstrap: %v", err)
	}
	eventually(t, 10*time.Second, "see etcd's folder", func(context.Context) error {
		if firstEntry(t, api, addr) == "" {
			return errors.New("not there")
		}
		return nil
	})
	spec := control.last().spec
	if spec.Version != "v1.36.2" || spec.Address != addr || spec.Port != 6443 || spec.Etcd.Name != "kmgtcp-101" {
		t.Errorf("control plane is %s at %s:%d, etcd member %s", spec.Version, spec.Address, spec.Port, spec.Etcd.Name)
	}
	if string(spec.PKI.CA.Cert) != string(c.bundle.Certs.K8s.Crt) || string(spec.PKI.EtcdCA.Cert) != string(c.bundle.Certs.Etcd.Crt) ||
		string(spec.PKI.FrontProxyCA.Cert) != string(c.bundle.Certs.K8sAggregator.Crt) || string(spec.PKI.ServiceAccountKey) != string(c.bundle.Certs.K8sServiceAccount.Key) {
		t.Error("the control plane's PKI is not that of the machine configuration")
	}
}

func TestPastEventsTellWhetherTheBootSequenceEnded(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, &fakeControl{})
	addr := loopback(t)
	c.boot(c.vm(c.config(machine.TypeControlPlane), addr))
	api := c.client(addr)
	started, stopped := bootSequence(t, api, addr)
	if !started || stopped {
		t.Errorf("before Bootstrap the boot sequence started: %v, stopped: %v", started, stopped)
	}
}

// bootSequence watches like ensureNodesBooted of CACPPT, until a quiet second.
func bootSequence(t *testing.T, api *client.Client, addr netip.Addr) (started, stopped bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch := make(chan client.EventResult)
	eventually(t, 10*time.Second, "watch events", func(context.Context) error {
		return api.EventsWatchV2(ctx, ch, client.WithTailEvents(-1))
	})
	for {
		select {
		case e := <-ch:
			if e.Error != nil {
				t.Fatal(e.Error)
			}
			if e.Event.Node != addr.String() {
				t.Fatalf("the event is of node %q", e.Event.Node)
			}
			if s, ok := e.Event.Payload.(*machineapi.SequenceEvent); ok && s.GetSequence() == "boot" {
				started = started || s.GetAction() == machineapi.SequenceEvent_START
				stopped = stopped || s.GetAction() == machineapi.SequenceEvent_STOP
			}
		case <-time.After(time.Second):
			return started, stopped
		}
	}
}

func TestRolesDecideWhoMayCallWhat(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, &fakeControl{})
	addr := loopback(t)
	c.boot(c.vm(c.config(machine.TypeControlPlane), addr))
	eventually(t, 10*time.Second, "reach the API", func(ctx context.Context) error {
		_, err := c.client(addr).Version(ctx)
		return err
	})
	calls := map[string]func(ctx context.Context, api *client.Client) error{
		"Version": func(ctx context.Context, api *client.Client) error { _, err := api.Version(ctx); return err },
		"Bootstrap": func(ctx context.Context, api *client.Client) error {
			return api.Bootstrap(ctx, &machineapi.BootstrapRequest{})
		},
		"Kubeconfig": func(ctx context.Context, api *client.Client) error { _, err := api.Kubeconfig(ctx); return err },
		"MemberList": func(ctx context.Context, api *client.Client) error {
			_, err := api.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
			return err
		},
		"PlatformMetadata": func(ctx context.Context, api *client.Client) error {
			_, err := safe.StateGetByID[*runtime.PlatformMetadata](ctx, api.COSI, runtime.PlatformMetadataID)
			return err
		},
		"MachineConfig": func(ctx context.Context, api *client.Client) error {
			_, err := safe.StateGetByID[*config.MachineConfig](ctx, api.COSI, config.ActiveID)
			return err
		},
	}
	for name, tt := range map[string]struct {
		role   role.Role
		denied string
	}{
		"a reader reads what is no secret":         {role.Reader, "Bootstrap Kubeconfig MachineConfig"},
		"an operator too":                          {role.Operator, "Bootstrap Kubeconfig MachineConfig"},
		"who makes backups sees etcd alone":        {role.EtcdBackup, "Bootstrap Kubeconfig MachineConfig PlatformMetadata Version"},
		"an impersonator without a name is nobody": {role.Impersonator, "Bootstrap Kubeconfig MachineConfig MemberList PlatformMetadata Version"},
		"an administrator may do everything":       {role.Admin, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, proxied := range []bool{false, true} {
				ctx := t.Context()
				if proxied {
					ctx = client.WithNode(ctx, addr.String())
				}
				api := c.clientAs(addr, tt.role)
				for call, do := range calls {
					err := do(ctx, api)
					denied := client.StatusCode(err) == codes.PermissionDenied
					if denied != strings.Contains(tt.denied, call) {
						t.Errorf("%s (through apid: %v): %v", call, proxied, err)
					}
				}
			}
		})
	}
}

func TestStrangersGetNoConnection(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, &fakeControl{})
	addr := loopback(t)
	c.boot(c.vm(c.config(machine.TypeControlPlane), addr))
	eventually(t, 10*time.Second, "reach the API", func(ctx context.Context) error {
		_, err := c.client(addr).Version(ctx)
		return err
	})
	other := newTestCluster(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := other.client(addr).Version(ctx); err == nil {
		t.Error("a client of another machine CA got an answer")
	}
}

func TestStateShowsThePlatformAndTheMembers(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, &fakeControl{})
	first, second := loopback(t), loopback(t)
	vm := c.vm(c.config(machine.TypeControlPlane), first)
	c.boot(vm)
	c.boot(c.vm(c.config(machine.TypeControlPlane), second))
	api := c.clientAs(first, role.Reader)
	eventually(t, 10*time.Second, "see both members", func(ctx context.Context) error {
		members, err := safe.StateListAll[*cluster.Member](ctx, api.COSI)
		if err != nil {
			return err
		}
		if members.Len() != 2 {
			return fmt.Errorf("%d members", members.Len())
		}
		return nil
	})
	md, err := safe.StateGetByID[*runtime.PlatformMetadata](t.Context(), api.COSI, runtime.PlatformMetadataID)
	if err != nil {
		t.Fatal(err)
	}
	want := runtime.PlatformMetadataSpec{
		Platform: "nocloud", Hostname: vm.Name, InternalDNS: vm.Name, InstanceID: vm.UUID, ProviderID: "proxmox://" + vm.UUID,
	}
	if got := *md.TypedSpec(); got.Platform != want.Platform || got.Hostname != want.Hostname || got.InternalDNS != want.InternalDNS ||
		got.InstanceID != want.InstanceID || got.ProviderID != want.ProviderID {
		t.Errorf("platform metadata are %+v, want %+v", got, want)
	}
	name, err := safe.StateGetByID[*k8s.Nodename](t.Context(), api.COSI, k8s.NodenameID)
	if err != nil || name.TypedSpec().Nodename != vm.Name {
		t.Errorf("node name: %v, %v", name, err)
	}
	if err := api.COSI.Create(t.Context(), k8s.NewNodename(k8s.NamespaceName, "x")); err == nil || !strings.Contains(err.Error(), "not authorized") {
		t.Errorf("writing a resource: %v", err)
	}
	unknown := resource.NewMetadata(runtime.NamespaceName, "Nonsense.talos.dev", "x", resource.VersionUndefined)
	if _, err := api.COSI.Get(t.Context(), unknown); err == nil || state.IsNotFoundError(err) {
		t.Errorf("reading a type that is not there: %v", err)
	}
}

func TestControlPlaneForwardsToOtherNodesAndWorkersDoNot(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, &fakeControl{})
	cp, worker, nobody := loopback(t), loopback(t), loopback(t)
	c.boot(c.vm(c.config(machine.TypeControlPlane), cp))
	c.boot(c.vm(c.config(machine.TypeWorker), worker))
	api := c.client(cp)
	names := map[string]string{cp.String(): "kmgtcp-101", worker.String(): "kmgtcp-102"}
	eventually(t, 15*time.Second, "ask both nodes through the control plane", func(ctx context.Context) error {
		resp, err := api.MachineClient.Hostname(client.WithNodes(ctx, cp.String(), worker.String()), &emptypb.Empty{})
		if err != nil {
			return err
		}
		if len(resp.Messages) != 2 {
			return fmt.Errorf("%d answers", len(resp.Messages))
		}
		for _, m := range resp.Messages {
			if names[m.GetMetadata().GetHostname()] != m.GetHostname() {
				return fmt.Errorf("%q answered %q (%s)", m.GetMetadata().GetHostname(), m.GetHostname(), m.GetMetadata().GetError())
			}
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	resp, err := api.ServiceList(client.WithNodes(ctx, cp.String(), nobody.String()))
	var nodeErr *client.NodeError
	if len(resp.GetMessages()) != 1 || !errors.As(err, &nodeErr) || nodeErr.Node != nobody.String() {
		t.Errorf("one answer and one error expected: %d answers, %v", len(resp.GetMessages()), err)
	}
	direct := c.client(worker)
	if _, err := direct.Version(client.WithNode(t.Context(), cp.String())); client.StatusCode(err) != codes.PermissionDenied {
		t.Errorf("a worker forwards: %v", err)
	}
	if err := direct.Bootstrap(t.Context(), &machineapi.BootstrapRequest{}); client.StatusCode(err) != codes.Unimplemented {
		t.Errorf("Bootstrap of a worker: %v", err)
	}
}

func TestWorkerWithAnotherTokenGetsNoCertificate(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, &fakeControl{})
	c.boot(c.vm(c.config(machine.TypeControlPlane), loopback(t)))
	addr := loopback(t)
	c.boot(c.vm(c.config(machine.TypeWorker, "machine: {token: abcdef.0123456789abcdef}"), addr))
	eventually(t, 10*time.Second, "read the refusal on the console", func(context.Context) error {
		if !c.lines.has("trustd: the machine token is not the cluster's") {
			return errors.New("not there")
		}
		return nil
	})
	if conn, err := net.Dial("tcp", netip.AddrPortFrom(addr, 50000).String()); err == nil {
		_ = conn.Close()
		t.Error("the worker's API listens")
	}
}

func TestInvalidConfigurationsNeverBoot(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, &fakeControl{})
	valid := string(c.config(machine.TypeControlPlane))
	for name, tt := range map[string]struct {
		userData, want string
	}{
		"no YAML":                      {"{", "load the machine configuration"},
		"an unknown field":             {strings.Replace(valid, "machine:", "machine:\n    nonsense: true", 1), "unknown keys found"},
		"no cluster endpoint":          {strings.Replace(valid, "endpoint: https://", "endpoint: nonsense//", 1), "validate the machine configuration"},
		"a machine type of fancy":      {strings.Replace(valid, "type: controlplane", "type: fancy", 1), "unknown machine type"},
		"no machine section at all":    {"version: v1alpha1\ncluster: {}\n", "validate the machine configuration"},
		"a cloud-config for something": {"#cloud-config\nusers: []\n", "maintenance mode"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := loopback(t)
			vm := c.vm([]byte(tt.userData), addr)
			g, err := c.booter.Boot(t.Context(), vm)
			if err == nil {
				g.Kill()
				t.Fatal("it boots")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q", err, tt.want)
			}
			console, rerr := os.ReadFile(filepath.Join(c.booter.diskDir(vm.Disk), "console.log"))
			if rerr != nil || !strings.Contains(string(console), tt.want) {
				t.Errorf("the console says %q (%v)", console, rerr)
			}
			if conn, err := net.Dial("tcp", netip.AddrPortFrom(addr, 50000).String()); err == nil {
				_ = conn.Close()
				t.Error("the API listens")
			}
		})
	}
}

func TestPowerOffEndsTheNodeAndPowerOnGoesOnWithItsData(t *testing.T) {
	t.Parallel()
	control := &fakeControl{}
	c := newTestCluster(t, control)
	addr := loopback(t)
	vm := c.vm(c.config(machine.TypeControlPlane), addr)
	g := c.boot(vm)
	if !g.AgentRunning() || g.Hostname() != vm.Name || len(g.Addresses()) != 1 {
		t.Errorf("the agent shows running %v, %q, %v", g.AgentRunning(), g.Hostname(), g.Addresses())
	}
	eventually(t, 10*time.Second, "bootstrap", func(ctx context.Context) error {
		return c.client(addr).Bootstrap(ctx, &machineapi.BootstrapRequest{})
	})
	eventually(t, 10*time.Second, "hold the virtual IP", func(context.Context) error {
		if len(g.Addresses()) != 2 {
			return errors.New("not yet")
		}
		return nil
	})
	g.Kill()
	if g.AgentRunning() || g.Hostname() != "" || g.Addresses() != nil {
		t.Errorf("after power off the agent shows running %v, %q, %v", g.AgentRunning(), g.Hostname(), g.Addresses())
	}
	for _, at := range []netip.AddrPort{netip.AddrPortFrom(addr, 50000), netip.AddrPortFrom(c.vip, 6443)} {
		if conn, err := net.Dial("tcp", at.String()); err == nil {
			_ = conn.Close()
			t.Errorf("%s still answers", at)
		}
	}
	// CAPMOX takes the volume out once the machine is up
	vm.CDROM = func() ([]byte, error) { return nil, nil }
	again := c.boot(vm)
	eventually(t, 10*time.Second, "start the control plane from its data", func(context.Context) error {
		if control.count() != 2 || len(again.Addresses()) != 2 {
			return fmt.Errorf("%d starts", control.count())
		}
		return nil
	})
	again.Kill()
	if err := c.booter.Destroy(vm.Disk); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.booter.diskDir(vm.Disk)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the disk is still there: %v", err)
	}
}

func TestVirtualIPMovesWhenItsHolderStops(t *testing.T) {
	t.Parallel()
	control := &fakeControl{}
	c := newTestCluster(t, control)
	first := loopback(t)
	g1 := c.boot(c.vm(c.config(machine.TypeControlPlane), first))
	eventually(t, 10*time.Second, "bootstrap", func(ctx context.Context) error {
		return c.client(first).Bootstrap(ctx, &machineapi.BootstrapRequest{})
	})
	holds := func(g pvesim.Guest) func(context.Context) error {
		return func(context.Context) error {
			if len(g.Addresses()) != 2 {
				return errors.New("does not hold it")
			}
			return nil
		}
	}
	eventually(t, 10*time.Second, "the first holds the address", holds(g1))
	// a second node that has data of its own offers itself as well
	vm2 := c.vm(c.config(machine.TypeControlPlane), loopback(t))
	if err := os.MkdirAll(filepath.Join(c.booter.diskDir(vm2.Disk), "root/var/lib/etcd/member/wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	g2 := c.boot(vm2)
	eventually(t, 10*time.Second, "the second's control plane", func(context.Context) error {
		if control.count() < 2 {
			return errors.New("not started")
		}
		return nil
	})
	if len(g2.Addresses()) != 1 {
		t.Errorf("two holders: %v", g2.Addresses())
	}
	if err := g1.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the second takes over", holds(g2))
}

func TestControlPlaneComesBackAfterACrash(t *testing.T) {
	t.Parallel()
	control := &fakeControl{}
	c := newTestCluster(t, control)
	addr := loopback(t)
	c.boot(c.vm(c.config(machine.TypeControlPlane), addr))
	eventually(t, 10*time.Second, "bootstrap", func(ctx context.Context) error {
		return c.client(addr).Bootstrap(ctx, &machineapi.BootstrapRequest{})
	})
	eventually(t, 10*time.Second, "first start", func(context.Context) error {
		if control.count() != 1 {
			return errors.New("not started")
		}
		return nil
	})
	eventually(t, 20*time.Second, "start again", func(context.Context) error {
		control.last().crash()
		if control.count() < 2 {
			return errors.New("not started")
		}
		return nil
	})
}

func TestClientConfigurationIsMadeForTheRolesAskedFor(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, &fakeControl{})
	addr := loopback(t)
	c.boot(c.vm(c.config(machine.TypeControlPlane), addr))
	var made *machineapi.GenerateClientConfigurationResponse
	eventually(t, 10*time.Second, "make a client configuration", func(ctx context.Context) (err error) {
		made, err = c.client(addr).GenerateClientConfiguration(ctx, &machineapi.GenerateClientConfigurationRequest{
			Roles: []string{string(role.Reader)}, CrtTtl: durationpb.New(time.Hour),
		})
		return err
	})
	if len(made.GetMessages()) != 1 || string(made.Messages[0].GetCa()) != string(c.bundle.Certs.OS.Crt) {
		t.Errorf("answer is %v", made)
	}
}
