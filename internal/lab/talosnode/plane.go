// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/controlplane"
)

// Ports of etcd on every Talos control plane node.
const (
	etcdClientPort = 2379
	etcdPeerPort   = 2380
)

// planeRestart is how long a control plane whose program ended stays down; the
// kubelet of a real node restarts its static pods about as fast.
const planeRestart = time.Second

// etcdStart says how the etcd of a node comes to be.
type etcdStart int

const (
	etcdFromData etcdStart = iota // a member's data lies on the disk
	etcdNew                       // Bootstrap was called: a cluster of one
	etcdJoins                     // another node's etcd runs: become a member
)

// awaitEtcd waits until one of the three ways is open.
func (n *node) awaitEtcd(ctx context.Context) (etcdStart, error) {
	start := etcdNew
	err := poll(ctx, 500*time.Millisecond, func(context.Context) (bool, error) {
		if entries, err := os.ReadDir(filepath.Join(n.root(), filepath.FromSlash(etcdMemberPath))); err == nil && len(entries) > 0 {
			start = etcdFromData
			return true, nil
		}
		select {
		case <-n.bootstrapCh:
			return true, nil
		default:
		}
		for _, m := range n.booter.fabric.controlPlane(n) {
			if m != n && m.etcdURL() != "" {
				start = etcdJoins
				return true, nil
			}
		}
		return false, errors.New("etcd was not bootstrapped")
	})
	return start, err
}

// runControlPlane waits for etcd's turn, starts the control plane and keeps it
// running in the background. A start that fails is tried again, as Talos does
// with its services: etcd, for one, takes only one new member at a time.
func (n *node) runControlPlane(ctx context.Context) error {
	said := ""
	err := poll(ctx, planeRestart, func(ctx context.Context) (bool, error) {
		start, err := n.awaitEtcd(ctx)
		if err != nil {
			return false, err
		}
		err = n.startPlane(ctx, start)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			n.logf("control plane: %v", err)
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	n.spawn(n.keepPlane)
	return nil
}

// startPlane starts the programs and makes what depends on them known.
func (n *node) startPlane(ctx context.Context, start etcdStart) error {
	if n.booter.opts.Control == nil {
		return errors.New("this lab runs no control planes")
	}
	spec, err := n.planeSpec()
	if err != nil {
		return err
	}
	n.services.set("etcd", stateRunning, "Started")
	if start == etcdJoins {
		peer := "https://" + netip.AddrPortFrom(n.address(), etcdPeerPort).String()
		if spec.Etcd.InitialCluster, err = n.etcdJoin(ctx, peer); err != nil {
			n.services.set("etcd", stateFailed, err.Error())
			return err
		}
		spec.Etcd.Existing = true
		n.spawn(func(ctx context.Context) {
			if err := n.etcdPromote(ctx, peer); err != nil && ctx.Err() == nil {
				n.logf("etcd stays a learner: %v", err)
			}
		})
	}
	n.logf("control plane %s: starting", spec.Version)
	plane, err := n.booter.opts.Control.StartPlane(ctx, spec)
	if err != nil {
		n.services.set("etcd", stateFailed, "control plane failed to start")
		return fmt.Errorf("start the control plane of %s: %w", n.hostname, err)
	}
	if !n.attachPlane(plane) {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return errors.Join(ctx.Err(), plane.Stop(stopCtx))
	}
	n.services.health("etcd", nil)
	n.spawn(func(ctx context.Context) {
		if err := n.publishEtcdMember(ctx, plane.EtcdClientURL()); err != nil && ctx.Err() == nil {
			n.logf("publish the etcd member: %v", err)
		}
	})
	if err := n.booter.fabric.apiUp(n); err != nil {
		n.logf("virtual IP: %v", err)
	}
	n.logf("control plane: ready at %s", plane.Endpoint())
	return nil
}

// keepPlane starts the control plane again whenever one of its programs ends.
func (n *node) keepPlane(ctx context.Context) {
	for {
		plane := n.currentPlane()
		if plane == nil {
			return // it left etcd, or the node stops
		}
		select {
		case <-ctx.Done():
			return
		case <-plane.Done():
		}
		if n.detachPlane() == nil {
			return
		}
		n.logf("control plane: %v", plane.Err())
		n.services.set("etcd", stateFailed, "a program of the control plane ended")
		if err := plane.Stop(ctx); err != nil && ctx.Err() == nil {
			n.logf("stop the rest of the control plane: %v", err)
		}
		err := poll(ctx, planeRestart, func(ctx context.Context) (bool, error) {
			err := n.startPlane(ctx, etcdFromData)
			if err != nil && ctx.Err() == nil {
				n.logf("control plane: %v", err)
			}
			return err == nil, err
		})
		if err != nil {
			return
		}
	}
}

// attachPlane makes a control plane the node's. It answers false when the node
// is stopping, whose stop no longer sees it.
func (n *node) attachPlane(p Plane) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return false
	}
	n.plane = p
	return true
}

// detachPlane takes the control plane out of the node and off the virtual IPs.
func (n *node) detachPlane() Plane {
	n.mu.Lock()
	p := n.plane
	n.plane = nil
	n.mu.Unlock()
	if p != nil {
		n.booter.fabric.apiDown(n)
	}
	return p
}

func (n *node) currentPlane() Plane {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.plane
}

// etcdURL is where this node's member answers clients; empty when it does not run.
func (n *node) etcdURL() string {
	if p := n.currentPlane(); p != nil {
		return p.EtcdClientURL()
	}
	return ""
}

// apiEndpoint is where the node's API server listens.
func (n *node) apiEndpoint() netip.AddrPort {
	return netip.AddrPortFrom(n.address(), uint16(n.cfg.Cluster().LocalAPIServerPort()))
}

// planeSpec reads the machine configuration.
func (n *node) planeSpec() (PlaneSpec, error) {
	c := n.cfg.Cluster()
	pki, err := n.planePKI()
	if err != nil {
		return PlaneSpec{}, err
	}
	services, err := firstPrefix(c.Network().ServiceCIDRs())
	if err != nil {
		return PlaneSpec{}, err
	}
	pods, err := firstPrefix(c.Network().PodCIDRs())
	if err != nil {
		return PlaneSpec{}, err
	}
	sans := slices.Concat(c.CertSANs(), []string{n.hostname, shortHostname(n.hostname), c.Endpoint().Hostname(),
		"kubernetes.default.svc." + c.Network().DNSDomain()})
	for _, v := range n.vips {
		sans = append(sans, v.String())
	}
	slices.Sort(sans)
	audit := filepath.Join(n.root(), "var", "log", "audit", "kube")
	if err := os.MkdirAll(audit, 0o700); err != nil {
		return PlaneSpec{}, fmt.Errorf("make the audit log's folder: %w", err)
	}
	return PlaneSpec{
		Version: imageVersion(c.APIServer().Image()),
		Config: controlplane.Config{
			Name: c.Name(), Dir: filepath.Join(n.root(), "var", "lib"), Address: n.address(), Port: c.LocalAPIServerPort(),
			PKI: pki, ExtraSANs: slices.Compact(sans), ServiceCIDR: services, PodCIDR: pods,
			ServiceAccountIssuer: c.Endpoint().String(), // Talos's default --service-account-issuer
			Etcd:                 controlplane.Etcd{Name: n.hostname, ClientPort: etcdClientPort, PeerPort: etcdPeerPort, NoFsync: true},
			EgressSocket:         n.egressSocket(),
			AuditLog:             filepath.Join(audit, "kube-apiserver.log"),
			LeaderElect:          true,
			ExtraArgs: controlplane.ExtraArgs{
				APIServer: flags(c.APIServer().ExtraArgs()), ControllerManager: flags(c.ControllerManager().ExtraArgs()),
				Scheduler: flags(c.Scheduler().ExtraArgs()), Etcd: flags(c.Etcd().ExtraArgs()),
			},
		},
	}, nil
}

// planePKI takes the authorities out of the machine configuration.
func (n *node) planePKI() (*controlplane.PKI, error) {
	c := n.cfg.Cluster()
	ca, etcd, aggregator, sa := c.IssuingCA(), c.Etcd().CA(), c.AggregatorCA(), c.ServiceAccount()
	switch {
	case ca == nil || len(ca.Key) == 0:
		return nil, errors.New("the machine configuration has no key of the Kubernetes CA")
	case etcd == nil || len(etcd.Key) == 0:
		return nil, errors.New("the machine configuration has no key of the etcd CA")
	case aggregator == nil || len(aggregator.Key) == 0:
		return nil, errors.New("the machine configuration has no key of the aggregator CA")
	case sa == nil:
		return nil, errors.New("the machine configuration has no service account key")
	}
	return &controlplane.PKI{
		CA:                controlplane.KeyPair{Cert: ca.Crt, Key: ca.Key},
		EtcdCA:            controlplane.KeyPair{Cert: etcd.Crt, Key: etcd.Key},
		FrontProxyCA:      controlplane.KeyPair{Cert: aggregator.Crt, Key: aggregator.Key},
		ServiceAccountKey: sa.Key,
	}, nil
}

// unixSocketPath is the longest path of a unix socket that Linux takes (108
// bytes with the final zero, unix(7)).
const unixSocketPath = 107

// egressSocket is the path of the socket over which the API server reaches pods:
// on the disk, or, where that path is too long for a socket, below the folder
// for temporary files.
func (n *node) egressSocket() string {
	p := n.path("egress.sock")
	if len(p) <= unixSocketPath {
		return p
	}
	return filepath.Join(os.TempDir(), "capi-lab-"+strconv.Itoa(os.Getpid())+"-"+n.address().String()+".sock")
}

// flags turns extraArgs into command line flags in a stable order.
func flags(args map[string][]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(args)) {
		for _, v := range args[k] {
			out = append(out, "--"+k+"="+v)
		}
	}
	return out
}

// firstPrefix is the first IPv4 range: the lab is IPv4 alone.
func firstPrefix(cidrs []string) (netip.Prefix, error) {
	for _, text := range cidrs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("the range %q of the cluster's network: %w", text, err)
		}
		if p.Addr().Is4() {
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("the cluster's network has no IPv4 range (%s)", strings.Join(cidrs, ", "))
}

// imageVersion is an image reference's tag.
func imageVersion(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndex(ref, ":"); i >= 0 && !strings.Contains(ref[i:], "/") {
		return ref[i+1:]
	}
	return constants.DefaultKubernetesVersion
}

// dialAPI connects to an API server of the cluster: this node's, another's, or
// whatever answers at the cluster's endpoint. It is KubePrism's choice.
func (n *node) dialAPI(ctx context.Context) (net.Conn, error) {
	var targets []string
	if n.currentPlane() != nil {
		targets = append(targets, n.apiEndpoint().String())
	}
	for _, m := range n.booter.fabric.controlPlane(n) {
		if m != n && m.currentPlane() != nil {
			targets = append(targets, m.apiEndpoint().String())
		}
	}
	endpoint := n.cfg.Cluster().Endpoint()
	port := endpoint.Port()
	if port == "" {
		port = "443"
	}
	targets = append(targets, net.JoinHostPort(endpoint.Hostname(), port))
	var errs []error
	for _, t := range targets {
		c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", t)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("reach an API server of cluster %s: %w", n.cfg.Cluster().Name(), errors.Join(errs...))
}
