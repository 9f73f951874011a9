// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"k8s.io/client-go/rest"

	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// testImage is a boot disk as the Image Factory simulator names it.
const testImage = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515/v1.13.7/nocloud-amd64"

// articlePatch is the strategic patch of the article's control plane.
const articlePatch = `
machine:
  install: {disk: /dev/sda, extraKernelArgs: [net.ifnames=0]}
  network:
    interfaces:
      - deviceSelector: {busPath: "0*"}
        dhcp: false
        vip: {ip: %s}
  kubelet:
    extraArgs: {cloud-provider: external, rotate-server-certificates: true}
  features:
    kubernetesTalosAPIAccess: {enabled: true, allowedRoles: ["os:reader"], allowedKubernetesNamespaces: [%s]}
cluster:
  network: {cni: {name: none}}
  proxy: {disabled: true}
  allowSchedulingOnControlPlanes: true
  externalCloudProvider: {enabled: true}
`

// testCluster makes configurations the way CABPT v0.6.12 does.
type testCluster struct {
	t      *testing.T
	name   string
	bundle *secrets.Bundle
	input  *generate.Input
	vip    netip.Addr
	// namespace is the one whose pods may reach the Talos API.
	namespace string
	booter    *Booter
	dir       string
	next      int
	lines     *consoleLines
	// set and admin are there where control planes are real.
	set   *artifacts.Set
	admin *rest.Config
}

// consoleLines keeps what the nodes report.
type consoleLines struct {
	mu    sync.Mutex
	lines []string
}

func (c *consoleLines) report(_ context.Context, _, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, message)
}

func (c *consoleLines) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lines {
		if strings.Contains(l, text) {
			return true
		}
	}
	return false
}

func newTestCluster(t *testing.T, control Control) *testCluster {
	t.Helper()
	contract, err := config.ParseContractFromVersion("v1.13")
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := secrets.NewBundle(secrets.NewFixedClock(time.Now()), contract)
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{t: t, name: "kmgt", bundle: bundle, vip: loopback(t), namespace: "kube-system", dir: t.TempDir(), lines: &consoleLines{}}
	c.input, err = generate.NewInput(c.name, "https://"+netip.AddrPortFrom(c.vip, 6443).String(), "1.36.2",
		generate.WithVersionContract(contract), generate.WithSecretsBundle(bundle))
	if err != nil {
		t.Fatal(err)
	}
	c.booter = New(Options{Dir: c.dir, Control: control, Report: c.lines.report})
	t.Cleanup(func() {
		if t.Failed() {
			c.lines.mu.Lock()
			defer c.lines.mu.Unlock()
			t.Log("nodes' consoles:\n" + strings.Join(c.lines.lines, "\n"))
		}
	})
	return c
}

// loopback is an address of 127.0.0.0/8 that nobody listens on. Tests of several
// processes draw from 127.192.0.0/10 at random, apart from where labs lie.
func loopback(t *testing.T) netip.Addr {
	t.Helper()
	for range 100 {
		a := netip.AddrFrom4([4]byte{127, byte(192 + rand.IntN(60)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
		l, err := net.Listen("tcp", netip.AddrPortFrom(a, 50000).String())
		if err == nil {
			_ = l.Close()
			return a
		}
	}
	t.Fatal("no free loopback address")
	return netip.Addr{}
}

// config is the machine configuration of a machine type with patches on top of
// the article's.
func (c *testCluster) config(kind machine.Type, patches ...string) []byte {
	c.t.Helper()
	provider, err := c.input.Config(kind)
	if err != nil {
		c.t.Fatal(err)
	}
	if kind.IsControlPlane() {
		patches = append([]string{fmt.Sprintf(articlePatch, c.vip, c.namespace)}, patches...)
	}
	var loaded []configpatcher.Patch
	for _, p := range patches {
		patch, err := configpatcher.LoadPatch([]byte(p))
		if err != nil {
			c.t.Fatal(err)
		}
		loaded = append(loaded, patch)
	}
	out, err := configpatcher.Apply(configpatcher.WithConfig(provider), loaded)
	if err != nil {
		c.t.Fatal(err)
	}
	patched, err := out.Config()
	if err != nil {
		c.t.Fatal(err)
	}
	raw, err := patched.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		c.t.Fatal(err)
	}
	return raw
}

// vm is a virtual machine whose volume CAPMOX would have made.
func (c *testCluster) vm(userData []byte, addr netip.Addr) pvesim.VM {
	c.t.Helper()
	c.next++
	id := 100 + c.next
	uuid := fmt.Sprintf("9a82e2ca-4294-11ee-be56-0242ac12%04d", id)
	name := fmt.Sprintf("kmgtcp-%d", id)
	iso := nocloudISO(c.t, map[string]string{
		"user-data":      string(userData),
		"meta-data":      fmt.Sprintf("instance-id: %[1]s\nlocal-hostname: %[2]s\nhostname: %[2]s\nprovider-id: proxmox://%[1]s\nkubernetes-version: v1.36.2\n", uuid, name),
		"network-config": capmoxNetwork(addr),
	})
	return pvesim.VM{
		Node: "pve1", ID: id, Name: name, UUID: uuid, MemoryMiB: 8192, Cores: 4, TemplateImage: testImage, Disk: fmt.Sprintf("local-lvm:vm-%d-disk-0", id),
		CDROM: func() ([]byte, error) { return iso, nil },
	}
}

// capmoxNetwork is what CAPMOX v0.9.0 renders for one device.
func capmoxNetwork(addr netip.Addr) string {
	return fmt.Sprintf(`network:
  version: 2
  renderer: networkd
  ethernets:
    eth0:
      match:
        macaddress: bc:24:11:2e:c5:01
      dhcp4: false
      dhcp6: false
      addresses:
        - '%s/24'
      routes:
        - { "to": "0.0.0.0/0", "via": "127.0.9.1", }
      nameservers:
        addresses:
          - '127.0.9.1'`, addr)
}

// boot powers a machine on and takes the power away at the end of the test.
func (c *testCluster) boot(vm pvesim.VM) pvesim.Guest {
	c.t.Helper()
	g, err := c.booter.Boot(c.t.Context(), vm)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(g.Kill)
	return g
}

// talosconfig is the one that CABPT puts into <cluster>-talosconfig.
func (c *testCluster) talosconfig(endpoints ...string) *clientconfig.Config {
	c.t.Helper()
	in, err := generate.NewInput(c.name, "https://localhost", "", generate.WithSecretsBundle(c.bundle), generate.WithEndpointList(endpoints))
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := in.Talosconfig()
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// client is made the way CACPPT v0.5.13 makes it.
func (c *testCluster) client(addrs ...netip.Addr) *client.Client {
	c.t.Helper()
	var endpoints []string
	for _, a := range addrs {
		endpoints = append(endpoints, a.String())
	}
	return newClient(c.t, c.talosconfig(endpoints...), endpoints...)
}

// clientAs is a client with the given roles.
func (c *testCluster) clientAs(addr netip.Addr, roles ...role.Role) *client.Client {
	c.t.Helper()
	cert, err := secrets.NewAdminCertificateAndKey(time.Now().Add(-time.Minute), c.bundle.Certs.OS, role.MakeSet(roles...), time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	return newClient(c.t, clientconfig.NewConfig("test", nil, c.bundle.Certs.OS.Crt, cert), addr.String())
}

func newClient(t *testing.T, cfg *clientconfig.Config, endpoints ...string) *client.Client {
	t.Helper()
	out, err := client.New(t.Context(), client.WithDefaultGRPCDialOptions(), client.WithEndpoints(endpoints...), client.WithConfig(cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return out
}

// eventually tries until f has no error; the deadline is the test's patience.
func eventually(t *testing.T, patience time.Duration, what string, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := poll(ctx, 50*time.Millisecond, func(ctx context.Context) (bool, error) {
		err := f(ctx)
		return err == nil, err
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// nocloudISO writes a volume the way go-proxmox does for CAPMOX
// (makeCloudInitISO of its virtual_machine.go).
func nocloudISO(t *testing.T, files map[string]string) []byte {
	t.Helper()
	return labelledISO(t, "cidata", files)
}

func labelledISO(t *testing.T, label string, files map[string]string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(writeISO(path, label, files)); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func writeISO(path, label string, files map[string]string) (err error) {
	iso, err := file.OpenFromPath(path, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, iso.Close()) }()
	fs, err := iso9660.Create(iso, 0, 0, 2048, "")
	if err != nil {
		return err
	}
	if err := fs.Mkdir("/"); err != nil {
		return err
	}
	for name, content := range files {
		rw, err := fs.OpenFile("/"+name, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return err
		}
		if _, err := rw.Write([]byte(content)); err != nil {
			return err
		}
		if err := rw.Close(); err != nil {
			return err
		}
	}
	return fs.Finalize(iso9660.FinalizeOptions{RockRidge: true, Joliet: true, VolumeIdentifier: label})
}
