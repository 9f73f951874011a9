// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/gendata"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Paths on a node's disk, relative to its root file system.
const (
	etcdDataPath   = "var/lib/etcd"
	etcdMemberPath = "var/lib/etcd/member"
	kubeletPath    = "var/lib/kubelet"
	cniPath        = "etc/cni/net.d"
)

// node is one boot of a machine.
type node struct {
	booter    *Booter
	guest     *guest
	seed      *seed
	cfg       config.Provider
	hostname  string
	addrs     []netip.Prefix
	vips      []netip.Addr
	identity  string
	events    *eventLog
	services  *serviceTable
	resources *resources

	ctx    context.Context //nolint:containedctx // the boot's own life, ended by stop
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu           sync.Mutex
	machined     *machined
	apid         *apid
	plane        Plane
	kubelet      Kubelet
	bootstrapped bool
	bootstrapCh  chan struct{}
}

// newNode reads what the machine is to be. ctx ends with the caller's process,
// not with the call.
func newNode(ctx context.Context, g *guest) (*node, error) {
	n := &node{booter: g.booter, guest: g, events: newEventLog(), bootstrapCh: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(ctx)
	if err := n.load(); err != nil {
		n.cancel()
		return nil, err
	}
	var err error
	if n.resources, err = newResources(n.ctx); err == nil {
		err = n.resources.describe(n.ctx, n)
	}
	if err != nil {
		n.cancel()
		return nil, err
	}
	n.services = newServiceTable(n.serviceChanged)
	return n, nil
}

// state files beside the root file system, which a later boot without a volume
// reads: Talos keeps them on its partition STATE.
const (
	stateConfig   = "state/config.yaml"
	stateMeta     = "state/meta-data"
	stateNetwork  = "state/network-config"
	stateIdentity = "state/node-identity"
)

// load finds the machine configuration and the platform's data: those on the
// disk if an earlier boot left them, else those of the volume.
func (n *node) load() error {
	iso, err := n.guest.vm.CDROM()
	if err != nil {
		return fmt.Errorf("read the CD-ROM drive: %w", err)
	}
	fromVolume, err := readSeed(iso)
	if err != nil && !errors.Is(err, errNoConfigSource) {
		return err
	}
	stored, readErr := os.ReadFile(n.path(stateConfig))
	switch {
	case readErr == nil && fromVolume == nil:
		meta, _ := os.ReadFile(n.path(stateMeta))
		network, _ := os.ReadFile(n.path(stateNetwork))
		if fromVolume, err = parseSeed(stored, meta, network); err != nil {
			return err
		}
	case readErr == nil:
		fromVolume.UserData = stored
	case fromVolume == nil:
		return fmt.Errorf("wait for a machine configuration in maintenance mode: %w", err)
	}
	n.seed = fromVolume
	var warnings []string
	n.cfg, warnings, err = loadMachineConfig(n.seed.UserData)
	for _, w := range warnings {
		n.logf("configuration warning: %s", w)
	}
	if err != nil {
		return err
	}
	if err := n.identify(); err != nil {
		return err
	}
	return n.persist()
}

// identify decides on names and addresses.
func (n *node) identify() error {
	n.hostname = configHostname(n.cfg)
	if n.hostname == "" {
		n.hostname = n.seed.MetaData.hostname()
	}
	if n.hostname == "" {
		return errors.New("neither the configuration nor the platform gives a hostname")
	}
	var err error
	if n.addrs, err = n.seed.NetworkConfig.addresses(); err != nil {
		return err
	}
	more, err := staticAddresses(n.cfg)
	if err != nil {
		return err
	}
	if n.addrs = append(n.addrs, more...); len(n.addrs) == 0 {
		return errors.New("no address: the lab has no DHCP server, so network-config has to give one")
	}
	n.vips, err = virtualIPs(n.cfg)
	return err
}

// persist writes what a later boot needs.
func (n *node) persist() error {
	for _, dir := range []string{"state", "root/" + cniPath, "root/" + kubeletPath, "root/var/log/pods"} {
		if err := os.MkdirAll(n.path(dir), 0o700); err != nil {
			return fmt.Errorf("make the disk of %s: %w", n.hostname, err)
		}
	}
	id, err := os.ReadFile(n.path(stateIdentity))
	if err != nil {
		var random [32]byte
		if _, err := rand.Read(random[:]); err != nil {
			return fmt.Errorf("make the identity of %s: %w", n.hostname, err)
		}
		id = []byte(base64.RawURLEncoding.EncodeToString(random[:]))
	}
	n.identity = string(id)
	for name, content := range map[string][]byte{
		stateConfig: n.seed.UserData, stateMeta: n.seed.rawMetaData, stateNetwork: n.seed.rawNetworkConfig, stateIdentity: id,
	} {
		if err := os.WriteFile(n.path(name), content, 0o600); err != nil {
			return fmt.Errorf("write the state of %s: %w", n.hostname, err)
		}
	}
	return nil
}

func (n *node) path(elem string) string { return filepath.Join(n.guest.dir, filepath.FromSlash(elem)) }

// root is the node's root file system on this host.
func (n *node) root() string { return n.path("root") }

// wipe drops everything of the disk, as a reset does. The volume's
// configuration then counts again.
func (n *node) wipe() error {
	for _, dir := range []string{"root", "state"} {
		if err := os.RemoveAll(n.path(dir)); err != nil {
			return fmt.Errorf("wipe the disk of %s: %w", n.hostname, err)
		}
	}
	return nil
}

func (n *node) address() netip.Addr  { return n.addrs[0].Addr() }
func (n *node) isControlPlane() bool { return n.cfg.Machine().Type().IsControlPlane() }

func (n *node) logf(format string, args ...any) { n.guest.logf(format, args...) }

// talosVersion is that of the boot disk's image, else the one of the machinery
// module that this package is built with.
func (n *node) talosVersion() string {
	if v := versionOf(n.guest.vm.TemplateImage); v != "" {
		return v
	}
	return gendata.VersionTag
}

// spawn runs f until the node stops.
func (n *node) spawn(f func(ctx context.Context)) { n.wg.Go(func() { f(n.ctx) }) }

// serviceChanged mirrors a service's change into events and resources.
func (n *node) serviceChanged(id string, s service) {
	p := s.proto(id)
	n.events.publish(&machineapi.ServiceStateEvent{Service: id, Message: s.message, Health: p.Health})
	if err := n.resources.setService(n.ctx, id, s); err != nil && n.ctx.Err() == nil {
		n.logf("publish service %s: %v", id, err)
	}
}

// run is the boot sequence and what follows.
func (n *node) run(ctx context.Context) {
	n.events.sequence("boot", machineapi.SequenceEvent_START)
	if err := n.boot(ctx); err != nil {
		if ctx.Err() == nil {
			n.logf("boot failed: %v", err)
			n.events.publish(&machineapi.SequenceEvent{
				Sequence: "boot", Action: machineapi.SequenceEvent_STOP, Error: &common.Error{Message: err.Error()},
			})
		}
		return
	}
	n.events.sequence("boot", machineapi.SequenceEvent_STOP)
	n.setStage(runtime.MachineStageRunning, true)
	n.logf("boot sequence done")
}

func (n *node) setStage(stage runtime.MachineStage, ready bool) {
	if err := n.resources.setStage(n.ctx, stage, ready); err != nil && n.ctx.Err() == nil {
		n.logf("publish stage %s: %v", stage, err)
	}
}

// boot brings the services up in Talos's order. It returns when all run, which
// on a control plane node means after Bootstrap or after it joined.
func (n *node) boot(ctx context.Context) error {
	n.setStage(runtime.MachineStageBooting, false)
	for _, id := range []string{"machined", "syslogd", "udevd", "containerd", "cri", "dashboard", "auditd"} {
		n.services.set(id, stateRunning, "Started")
		n.services.health(id, nil)
	}
	n.services.set("kubelet", statePreparing, "Running pre state")
	if n.isControlPlane() {
		n.services.set("trustd", stateRunning, "Started")
		n.services.health("trustd", nil)
		n.services.set("etcd", statePreparing, "Running pre state")
	}
	if err := n.serveAPI(ctx); err != nil {
		return err
	}
	if err := n.booter.fabric.join(ctx, n); err != nil {
		return err
	}
	if n.isControlPlane() {
		if err := n.runControlPlane(ctx); err != nil {
			return err
		}
	}
	return n.runKubelet(ctx)
}

// serveAPI starts machined and apid. A worker first needs a certificate from a
// control plane node's trustd, and asks until one answers.
func (n *node) serveAPI(ctx context.Context) error {
	addrs := make([]netip.Addr, 0, len(n.addrs)+len(n.vips))
	for _, p := range n.addrs {
		addrs = append(addrs, p.Addr())
	}
	if n.isControlPlane() {
		addrs = append(addrs, n.vips...)
	}
	var pki *apiPKI
	err := poll(ctx, time.Second, func(context.Context) (bool, error) {
		s, err := n.findSigner()
		if err != nil {
			return false, err
		}
		if pki, err = newAPIPKI(n.cfg, s, n.hostname, addrs); errors.Is(err, errBadToken) || n.isControlPlane() {
			return true, err
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	m := startMachined(n)
	a, err := startAPID(n.address(), pki, m.listen, n.isControlPlane())
	if err != nil {
		m.stop()
		return err
	}
	n.mu.Lock()
	n.machined, n.apid = m, a
	n.mu.Unlock()
	n.services.set("apid", stateRunning, "Started")
	n.services.health("apid", nil)
	n.logf("Talos API on %s:50000", n.address())
	return nil
}

// findSigner is the machine CA itself, or the trustd of a control plane node
// with the same CA.
func (n *node) findSigner() (signer, error) {
	if n.isControlPlane() {
		return newCASigner(n.cfg)
	}
	peers := n.booter.fabric.controlPlane(n)
	if len(peers) == 0 {
		return nil, errors.New("no control plane node answers on trustd")
	}
	return newCASigner(peers[0].cfg)
}

// bootstrap is the call Bootstrap: it lets the node make a new etcd cluster.
func (n *node) bootstrap() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(n.root(), filepath.FromSlash(etcdDataPath)))
	if n.bootstrapped || (err == nil && len(entries) > 0) {
		return status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	if n.booter.opts.Control == nil {
		return status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	n.bootstrapped = true
	close(n.bootstrapCh)
	n.logf("bootstrap request received")
	return nil
}

// stop ends the node: in order and with the events of a sequence, or, without a
// sequence and with an ended ctx, at once.
func (n *node) stop(ctx context.Context, sequence string) error {
	if sequence != "" {
		n.logf("%s", sequence)
		n.events.sequence(sequence, machineapi.SequenceEvent_START)
		n.setStage(runtime.MachineStageShuttingDown, false)
	}
	n.cancel()
	n.mu.Lock()
	kubelet, plane, a, m := n.kubelet, n.plane, n.apid, n.machined
	n.kubelet, n.plane = nil, nil
	n.mu.Unlock()
	var errs []error
	if err := n.booter.fabric.leave(context.WithoutCancel(ctx), n); err != nil {
		errs = append(errs, err)
	}
	if kubelet != nil {
		errs = append(errs, kubelet.Stop(ctx))
	}
	if plane != nil {
		errs = append(errs, plane.Stop(ctx))
	}
	if a != nil {
		a.stop()
	}
	if m != nil {
		m.stop()
	}
	n.wg.Wait()
	n.logf("off")
	return errors.Join(errs...)
}

// restart is a reboot from inside: the machine stays on. between runs while
// nothing of the node does.
func (n *node) restart(sequence string, between func() error) {
	if !n.halt(sequence, between) {
		return
	}
	if err := n.guest.start(context.WithoutCancel(n.ctx)); err != nil {
		n.logf("boot stopped: %v", err) // as after power on: nothing answers
	}
}

// powerOff is a shutdown from inside.
func (n *node) powerOff(sequence string, between func() error) {
	if n.halt(sequence, between) {
		close(n.guest.off)
	}
}

// halt stops this node if it is still the machine's.
func (n *node) halt(sequence string, between func() error) bool {
	n.guest.mu.Lock()
	mine := n.guest.node == n
	if mine {
		n.guest.node = nil
	}
	n.guest.mu.Unlock()
	if !mine {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.stop(ctx, sequence); err != nil {
		n.logf("%s: %v", sequence, err)
	}
	if between != nil {
		if err := between(); err != nil {
			n.logf("%s: %v", sequence, err)
		}
	}
	return true
}

// poll tries until the function says it is done or ctx ends. A function that is
// done may give an error; one that is not has its last error quoted.
func poll(ctx context.Context, every time.Duration, try func(ctx context.Context) (bool, error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		done, err := try(ctx)
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ticker.C:
		}
	}
}
