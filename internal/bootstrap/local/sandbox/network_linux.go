// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The ports of the pod's 127.0.0.1 that the redirects lead to. No program
// listens on the lowest ones, so they take nothing away from the containers.
const (
	relayPort  = 1 // TCP: everything that goes out; UDP: DNS
	dnsTCPPort = 2
)

// setUpNetwork brings up the network namespace that the process is in: lo with
// the pod's address, every address of the world local, and redirects. It
// returns the relay's listener and the two DNS sockets.
//
// Seen on Linux 6.1 and 6.18: an OUTPUT redirect alone is not enough, since
// without a route connect(2) fails before a packet exists.
func setUpNetwork(ip netip.Addr) ([]*os.File, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("finding lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("bringing up lo: %w", err)
	}
	address := &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(32, 32)}
	if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: address}); err != nil {
		return nil, fmt.Errorf("adding the address %s: %w", ip, err)
	}
	everywhere := &netlink.Route{
		LinkIndex: lo.Attrs().Index,
		Dst:       &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
		Src:       ip.AsSlice(),
		Type:      unix.RTN_LOCAL,
		Table:     unix.RT_TABLE_LOCAL,
		Scope:     netlink.SCOPE_HOST,
	}
	if err := netlink.RouteAdd(everywhere); err != nil {
		return nil, fmt.Errorf("adding the local route for all addresses: %w", err)
	}
	if err := redirect(ip); err != nil {
		return nil, fmt.Errorf("redirecting what the pod dials (nftables): %w", err)
	}
	// Containers have user namespaces of their own and so no CAP_NET_BIND_SERVICE
	// here; container engines set this for their pods too. Where /proc/sys is
	// read-only (inside a container) ports below 1024 stay closed to the pod.
	_ = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
	return networkSockets()
}

// networkSockets opens the sockets that the redirects lead to.
func networkSockets() ([]*os.File, error) {
	var files []*os.File
	keep := func(f *os.File, err error) error {
		if err == nil {
			files = append(files, f)
		}
		return err
	}
	lc := net.ListenConfig{}
	for _, s := range []struct {
		network string
		port    int
	}{{"tcp4", relayPort}, {"udp4", relayPort}, {"tcp4", dnsTCPPort}} {
		address := fmt.Sprintf("127.0.0.1:%d", s.port)
		var err error
		if s.network == "udp4" {
			var c net.PacketConn
			if c, err = lc.ListenPacket(context.Background(), s.network, address); err == nil {
				err = keep(c.(*net.UDPConn).File())
				_ = c.Close()
			}
		} else {
			var l net.Listener
			if l, err = lc.Listen(context.Background(), s.network, address); err == nil {
				err = keep(l.(*net.TCPListener).File())
				l.Close()
			}
		}
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("listening on %s in the pod: %w", address, err)
		}
	}
	return files, nil
}

// redirect sends outgoing DNS and TCP to the sockets of networkSockets, except
// what goes to 127.0.0.1 and to the pod itself.
func redirect(ip netip.Addr) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "sandbox"})
	chain := c.AddChain(&nftables.Chain{
		Name:     "output",
		Table:    table,
		Type:     nftables.ChainTypeNAT,
		Hooknum:  nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityNATDest,
	})
	rule := func(exprs ...expr.Any) {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	for _, own := range []netip.Addr{loopback, ip} {
		rule(
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: own.AsSlice()},
			&expr.Verdict{Kind: expr.VerdictReturn},
		)
	}
	protocol := func(number byte) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}},
		}
	}
	domain := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(53)},
	}
	to := func(port uint16) []expr.Any {
		return []expr.Any{
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
			&expr.Redir{RegisterProtoMin: 1},
		}
	}
	rule(slices.Concat(protocol(unix.IPPROTO_UDP), domain, to(relayPort))...)
	rule(slices.Concat(protocol(unix.IPPROTO_TCP), domain, to(dnsTCPPort))...)
	rule(slices.Concat(protocol(unix.IPPROTO_TCP), to(relayPort))...)
	return c.Flush()
}
