// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package talosnode is what a virtual machine of the lab's hypervisor becomes
// when it is started: a Talos Linux node as seen from the network. It reads the
// nocloud volume that CAPMOX attaches, validates the machine configuration with
// machinery's own validation, answers the machine API on port 50000 with the
// machine's own CA, and after Bootstrap runs a real etcd and Kubernetes control
// plane out of the PKI in that configuration.
//
// Real are: configuration and validation, the API's protocol and its
// authorization, etcd and its membership, the control plane's programs, TLS
// bootstrap of the kubelet, every pod that Kubernetes schedules on the node.
// Not there are: the kernel, disks, DHCP, time synchronisation, containerd,
// static pods (the control plane's programs are processes without Pod objects),
// trustd's network protocol, KubeSpan, the discovery service (the nodes of one
// lab know one another), flannel and kube-proxy (pods reach one another and
// Services through the lab's relay in any case).
package talosnode

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

var (
	_ pvesim.Booter    = (*Booter)(nil)
	_ pvesim.Destroyer = (*Booter)(nil)
	_ pvesim.Ender     = (*guest)(nil)
)

// agentExtension is the system extension that answers the hypervisor's agent
// calls.
const agentExtension = "siderolabs/qemu-guest-agent"

// Options configure all nodes of a lab.
type Options struct {
	// Dir holds the disks of the nodes.
	Dir string
	// Control runs a node's control plane and pods. Nil makes nodes whose API
	// answers and whose Bootstrap fails.
	Control Control
	// Extensions names the system extensions of an Image Factory schematic. Nil
	// means that every image has the guest agent.
	Extensions func(schematic string) []string
	// Report hears what the nodes do. Each node also writes console.log beside
	// its disk.
	Report progress.Reporter
}

// Booter boots the virtual machines of one lab.
type Booter struct {
	opts   Options
	fabric *fabric
}

// New makes a booter. Nodes on it find one another.
func New(opts Options) *Booter { return &Booter{opts: opts, fabric: newFabric()} }

// Boot powers a machine on. It fails, with the reason on the machine's console,
// when no valid machine configuration is there; then nothing answers.
func (b *Booter) Boot(ctx context.Context, vm pvesim.VM) (pvesim.Guest, error) {
	g := &guest{booter: b, vm: vm, dir: b.diskDir(vm.Disk), off: make(chan struct{})}
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the disk of VM %d: %w", vm.ID, err)
	}
	g.logf("power on: VM %d %q, image %s", vm.ID, vm.Name, vm.TemplateImage)
	if err := g.start(context.WithoutCancel(ctx)); err != nil {
		g.logf("boot stopped: %v", err)
		return nil, fmt.Errorf("boot VM %d: %w", vm.ID, err)
	}
	return g, nil
}

// Destroy drops the disk of a deleted machine.
func (b *Booter) Destroy(disk string) error {
	if disk == "" {
		return errors.New("destroy a disk without a name")
	}
	if err := os.RemoveAll(b.diskDir(disk)); err != nil {
		return fmt.Errorf("remove the disk %s: %w", disk, err)
	}
	return nil
}

func (b *Booter) diskDir(disk string) string { return filepath.Join(b.opts.Dir, url.PathEscape(disk)) }

// guest is a powered-on machine. It lives over reboots; each boot is a node.
type guest struct {
	booter *Booter
	vm     pvesim.VM
	dir    string

	mu   sync.Mutex
	node *node // nil when off
	off  chan struct{}
	log  sync.Mutex
}

// Done is closed when the node powered itself off.
func (g *guest) Done() <-chan struct{} { return g.off }

// start boots the machine from its disk and its volume.
func (g *guest) start(ctx context.Context) error {
	n, err := newNode(ctx, g)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.node = n
	g.mu.Unlock()
	n.spawn(n.run)
	return nil
}

// take answers the running node and leaves the machine without one, so that only
// one caller stops it.
func (g *guest) take() *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.node
	g.node = nil
	return n
}

func (g *guest) current() *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.node
}

// Shutdown stops the node in order: pods, control plane, API.
func (g *guest) Shutdown(ctx context.Context) error {
	n := g.take()
	if n == nil {
		return nil
	}
	if err := n.stop(ctx, "shutdown"); err != nil {
		return fmt.Errorf("shut down %s: %w", n.hostname, err)
	}
	return nil
}

// Kill ends everything of the node at once.
func (g *guest) Kill() {
	n := g.take()
	if n == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // no patience with anything
	if err := n.stop(ctx, ""); err != nil && !errors.Is(err, context.Canceled) {
		g.logf("power off: %v", err)
	}
}

// AgentRunning says whether the image has the guest agent and the node runs.
func (g *guest) AgentRunning() bool {
	if g.current() == nil {
		return false
	}
	if g.booter.opts.Extensions == nil {
		return true
	}
	return slices.Contains(g.booter.opts.Extensions(schematicOf(g.vm.TemplateImage)), agentExtension)
}

// Hostname is the node's name, empty when nothing runs.
func (g *guest) Hostname() string {
	if n := g.current(); n != nil {
		return n.hostname
	}
	return ""
}

// Addresses are the node's own and the virtual IPs that it holds.
func (g *guest) Addresses() []netip.Prefix {
	n := g.current()
	if n == nil {
		return nil
	}
	out := slices.Clone(n.addrs)
	for _, v := range n.vips {
		if g.booter.fabric.holder(n, v) == n {
			out = append(out, netip.PrefixFrom(v, v.BitLen()))
		}
	}
	return out
}

// logf writes a line to the machine's console.
func (g *guest) logf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	name := g.vm.Name
	if name == "" {
		name = fmt.Sprintf("vm-%d", g.vm.ID)
	}
	g.booter.opts.Report.Report(context.Background(), "talos", name+": "+line)
	g.log.Lock()
	defer g.log.Unlock()
	f, err := os.OpenFile(filepath.Join(g.dir, "console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return // the disk is gone: the machine was deleted
	}
	_, werr := fmt.Fprintf(f, "%s %s\n", time.Now().UTC().Format(time.RFC3339Nano), line)
	if cerr := f.Close(); werr != nil || cerr != nil {
		g.booter.opts.Report.Report(context.Background(), "talos", fmt.Sprintf("%s: console: %v", name, errors.Join(werr, cerr)))
	}
}

// schematicOf and versionOf take a boot disk's identity apart:
// "<schematic>/<version>/<platform>-<arch>".
func schematicOf(image string) string { return strings.Split(image, "/")[0] }

func versionOf(image string) string {
	if parts := strings.Split(image, "/"); len(parts) > 1 {
		return parts[1]
	}
	return ""
}
