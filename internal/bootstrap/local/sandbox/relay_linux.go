// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// dialTimeout bounds the dialling of what a pod dialled: about as long as the
// kernel would go on with a connection of its own.
const dialTimeout = 2 * time.Minute

// soOriginalDst is SO_ORIGINAL_DST of include/uapi/linux/netfilter_ipv4.h.
const soOriginalDst = 80

// loopback is the one address of 127.0.0.0/8 that a pod has for itself.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// relay serves the sockets that a pod's redirects lead to. They belong to the
// pod's network namespace and are served out here.
type relay struct {
	outbound Dialer
	listener net.Listener
	udp      net.PacketConn
	tcp      net.Listener
	servers  []*dns.Server
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// newRelay takes over the three sockets of networkSockets and starts serving.
func newRelay(sockets []*os.File, outbound Dialer, handler dns.Handler) (*relay, error) {
	defer closeAll(sockets)
	if len(sockets) != 3 {
		return nil, fmt.Errorf("the shim sent %d sockets, not 3", len(sockets))
	}
	if handler == nil {
		handler = dns.HandlerFunc(dns.HandleFailed)
	}
	r := &relay{outbound: outbound}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	var err error
	if r.listener, err = net.FileListener(sockets[0]); err == nil {
		r.udp, err = net.FilePacketConn(sockets[1])
	}
	if err == nil {
		r.tcp, err = net.FileListener(sockets[2])
	}
	if err != nil {
		r.close()
		return nil, fmt.Errorf("using the pod's sockets: %w", err)
	}
	// The long timeout keeps the server from waking up to no end.
	r.servers = []*dns.Server{
		{PacketConn: r.udp, Handler: handler, ReadTimeout: time.Hour},
		{Listener: r.tcp, Handler: handler},
	}
	for _, s := range r.servers {
		// It returns an error only when its socket is closed, which close does.
		r.wg.Go(func() { _ = s.ActivateAndServe() })
	}
	r.wg.Go(r.accept)
	return r, nil
}

// accept takes the pod's outgoing connections.
func (r *relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			if r.ctx.Err() != nil {
				return
			}
			// Out of descriptors, most likely: let some connections end.
			select {
			case <-r.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		r.wg.Go(func() { r.connect(c) })
	}
}

// connect dials what the pod dialled and copies. A destination that cannot be
// reached shows as a reset: the pod's own connect(2) has succeeded by now.
func (r *relay) connect(c net.Conn) {
	to, err := originalDestination(c)
	// A process that dials the relay's own port would get to the host's.
	if err != nil || r.outbound == nil || to.Addr() == loopback {
		reset(c)
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, dialTimeout)
	out, err := r.outbound(ctx, "tcp", to.String())
	cancel()
	if err != nil {
		reset(c)
		return
	}
	Splice(r.ctx, c, out)
}

// originalDestination reads what a redirected connection was dialled to.
func originalDestination(c net.Conn) (netip.AddrPort, error) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("a redirected connection is a %T", c)
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var to netip.AddrPort
	var failed error
	err = raw.Control(func(fd uintptr) {
		// The option fills a struct sockaddr_in of 16 bytes: family, port and
		// address; IPv6Mreq begins with as many bytes.
		m, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, soOriginalDst)
		if err != nil {
			failed = err
			return
		}
		b := m.Multiaddr
		to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
	})
	if err == nil {
		err = failed
	}
	return to, err
}

// close ends all connections and waits for them.
func (r *relay) close() {
	r.cancel()
	for _, s := range r.servers {
		// It fails where the server has not begun, which the closed socket prevents.
		_ = s.Shutdown()
	}
	for _, socket := range []io.Closer{r.listener, r.udp, r.tcp} {
		if socket != nil {
			socket.Close()
		}
	}
	r.wg.Wait()
}
