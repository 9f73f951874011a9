// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/factory"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// Hosts of a lab's block.
const (
	hostGateway   = 1
	hostPVE       = 10
	hostFactory   = 11
	hostVIP       = 150
	hostFirstNode = 160
	hostLastNode  = 180
)

// Ports of what answers in a block.
const (
	portPVE     = 8006
	portFactory = 8080
)

// Address is a host of the lab's block.
func (l *Lab) Address(host byte) netip.Addr { return hostOf(l.Block, host) }

func hostOf(block netip.Prefix, host byte) netip.Addr {
	b := block.Masked().Addr().As4()
	b[3] = host
	return netip.AddrFrom4(b)
}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// firstBlock and blocks are those that are tried for a lab without a block:
// 127.77.0.0/24 and the ones after it.
const (
	firstBlock = 77
	blocks     = 256
)

// listen opens hypervisor and factory in the lab's block. The hypervisor's port
// is what reserves a block.
func (l *Lab) listen(ctx context.Context, booter pvesim.Booter) error {
	if l.Block.IsValid() {
		if l.Block.Bits() != 24 || !loopback.Overlaps(l.Block) || !l.Block.Addr().Is4() {
			return fmt.Errorf("the block %s is no /24 of %s", l.Block, loopback)
		}
		return l.open(ctx, booter)
	}
	for third := range blocks {
		l.Block = netip.PrefixFrom(netip.AddrFrom4([4]byte{127, firstBlock, byte(third), 0}), 24)
		err := l.open(ctx, booter)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		if err := l.Close(); err != nil {
			return err
		}
		l.PVE, l.Factory = nil, nil
	}
	return fmt.Errorf("no block from 127.%d.0.0/24 to 127.%d.%d.0/24 is free: something listens on port %d of all addresses, or on one of the nodes' ports",
		firstBlock, firstBlock, blocks-1, portPVE)
}

// open starts hypervisor and factory in l.Block.
func (l *Lab) open(ctx context.Context, booter pvesim.Booter) (err error) {
	address := func(host byte, port uint16) string { return netip.AddrPortFrom(l.Address(host), port).String() }
	if err := l.nodePortsFree(ctx); err != nil {
		return err
	}
	// The factory comes first: machines that start again with the hypervisor ask
	// it what is in their image.
	l.Factory, err = factory.Start(ctx, factory.Options{Address: address(hostFactory, portFactory), Dir: filepath.Join(l.Dir, "factory")})
	if err != nil {
		return err
	}
	l.PVE, err = pvesim.Start(ctx, pvesim.Options{
		Address: address(hostPVE, portPVE), Dir: filepath.Join(l.Dir, "pve"), Release: l.Release, Timing: l.Timing, Booter: booter,
		Observe: l.Observe,
		Log:     func(format string, args ...any) { l.Report.Report(ctx, "hypervisor", fmt.Sprintf(format, args...)) },
	})
	return err
}

// nodePortsFree finds programs of the host that listen on every address where
// nodes will want to.
func (l *Lab) nodePortsFree(ctx context.Context) error {
	var lc net.ListenConfig
	for _, host := range []byte{hostVIP, hostFirstNode} {
		for _, port := range []uint16{6443, 50000, 2379, 2380, 10250} {
			listener, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(l.Address(host), port).String())
			if err != nil {
				return fmt.Errorf("a port of the lab's nodes is taken: %w", err)
			}
			if err := listener.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}
