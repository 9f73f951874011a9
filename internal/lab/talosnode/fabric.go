// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// fabric is what connects the nodes of a lab beside TCP: the discovery of a
// cluster's members, for which real nodes ask a discovery service, and the
// virtual IPs, which real nodes announce by ARP. Everything else between nodes
// goes over the network.
type fabric struct {
	mu       sync.Mutex
	clusters map[string]*clusterState
	apis     aliasTable
	pods     aliasTable
}

// clusterState is one cluster, known by id and secret as in Talos's discovery.
type clusterState struct {
	nodes []*node
	vips  map[netip.Addr]*virtualIP
}

func newFabric() *fabric {
	return &fabric{clusters: map[string]*clusterState{}, apis: aliasTable{}, pods: aliasTable{}}
}

// clusterKey identifies a cluster. Configurations without an id (generated for
// Talos before 1.0, or with discovery off) are told apart by their machine CA.
func clusterKey(n *node) string {
	c := n.cfg.Cluster()
	if c.ID() != "" {
		return c.ID() + "/" + c.Secret()
	}
	if ca := n.cfg.Machine().Security().IssuingCA(); ca != nil {
		return string(ca.Crt)
	}
	return ""
}

func (f *fabric) cluster(n *node) *clusterState {
	key := clusterKey(n)
	c, ok := f.clusters[key]
	if !ok {
		c = &clusterState{vips: map[netip.Addr]*virtualIP{}}
		f.clusters[key] = c
	}
	return c
}

// join makes a node known to the others.
func (f *fabric) join(ctx context.Context, n *node) error {
	f.mu.Lock()
	c := f.cluster(n)
	c.nodes = append(c.nodes, n)
	f.mu.Unlock()
	return f.announce(ctx, n)
}

// leave takes a node out and gives up its virtual IPs.
func (f *fabric) leave(ctx context.Context, n *node) error {
	f.apiDown(n)
	f.mu.Lock()
	c := f.cluster(n)
	c.nodes = slices.DeleteFunc(c.nodes, func(o *node) bool { return o == n })
	if len(c.nodes) == 0 {
		delete(f.clusters, clusterKey(n))
	}
	f.mu.Unlock()
	return f.announce(ctx, n)
}

// announce writes the members of n's cluster into the resources of all of them.
func (f *fabric) announce(ctx context.Context, n *node) error {
	members := f.members(n)
	var errs []error
	for _, m := range members {
		errs = append(errs, m.resources.setMembers(ctx, members))
	}
	return errors.Join(errs...)
}

// members are the running nodes of n's cluster in the order of their names.
func (f *fabric) members(n *node) []*node {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.cluster(n).nodes)
	slices.SortFunc(out, func(a, b *node) int { return cmp.Compare(a.hostname, b.hostname) })
	return out
}

// controlPlane are the members that run the control plane.
func (f *fabric) controlPlane(n *node) []*node {
	return slices.DeleteFunc(f.members(n), func(m *node) bool { return !m.isControlPlane() })
}

// apiUp offers a node as the holder of its virtual IPs.
func (f *fabric) apiUp(n *node) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.cluster(n)
	var errs []error
	for _, addr := range n.vips {
		v, ok := c.vips[addr]
		if !ok {
			v = &virtualIP{addr: addr}
			c.vips[addr] = v
		}
		v.candidates = append(v.candidates, n)
		errs = append(errs, v.elect())
	}
	return errors.Join(errs...)
}

// apiDown withdraws a node; another candidate takes over what it held.
func (f *fabric) apiDown(n *node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.cluster(n).vips {
		v.candidates = slices.DeleteFunc(v.candidates, func(o *node) bool { return o == n })
		if v.holder == n {
			v.release()
		}
		if err := v.elect(); err != nil {
			n.logf("virtual IP %s: %v", v.addr, err)
		}
	}
}

// holder is the node that answers on a virtual IP of n's cluster, or nil.
func (f *fabric) holder(n *node, addr netip.Addr) *node {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v, ok := f.cluster(n).vips[addr]; ok {
		return v.holder
	}
	return nil
}

// virtualIP is one shared address. Its holder answers on the API server's port
// with its own API server. Real nodes elect the holder through etcd and move
// every port; only the API server's is of use to anybody.
type virtualIP struct {
	addr       netip.Addr
	candidates []*node
	holder     *node
	listener   net.Listener
	mu         sync.Mutex
	conns      map[net.Conn]struct{}
}

// elect gives an unheld address to the first candidate. The fabric's lock is held.
func (v *virtualIP) elect() error {
	if v.holder != nil || len(v.candidates) == 0 {
		return nil
	}
	n := v.candidates[0]
	target := n.apiEndpoint()
	l, err := net.Listen("tcp", netip.AddrPortFrom(v.addr, target.Port()).String())
	if err != nil {
		return fmt.Errorf("take over the virtual IP: %w", err)
	}
	v.holder, v.listener, v.conns = n, l, map[net.Conn]struct{}{}
	n.logf("holds the virtual IP %s", v.addr)
	go v.serve(l, target.String())
	return nil
}

// release cuts every connection, as happens when the address moves to another
// machine.
func (v *virtualIP) release() {
	_ = v.listener.Close()
	v.mu.Lock()
	for c := range v.conns {
		_ = c.Close()
	}
	v.conns = nil
	v.mu.Unlock()
	v.holder, v.listener = nil, nil
}

func (v *virtualIP) serve(l net.Listener, target string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		if !v.track(in) {
			return
		}
		go func() {
			defer v.forget(in)
			out, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			if !v.track(out) {
				return
			}
			defer v.forget(out)
			relay(in, out)
		}()
	}
}

// track remembers an open connection; it closes it at once when the address has
// moved on.
func (v *virtualIP) track(c net.Conn) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.conns == nil {
		_ = c.Close()
		return false
	}
	v.conns[c] = struct{}{}
	return true
}

func (v *virtualIP) forget(c net.Conn) {
	_ = c.Close()
	v.mu.Lock()
	delete(v.conns, c)
	v.mu.Unlock()
}

// relay copies both ways until both sides have ended.
func relay(a, b net.Conn) {
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			// an error means that one side is gone, which ends the other below
			_, _ = io.Copy(pair[0], pair[1])
			if half, ok := pair[0].(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		})
	}
	wg.Wait()
}
