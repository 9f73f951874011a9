// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// reservation holds a port until the program that was told to use it has bound
// it: the socket is bound but does not listen, so it takes no connections, and
// SO_REUSEPORT lets another socket of this user bind the port beside it. The
// kernel gives such a port to nobody else meanwhile, which closing the socket
// before the program starts would allow.
type reservation struct {
	fd   int
	port int
}

func reserve(addr netip.Addr) (*reservation, error) {
	family := unix.AF_INET6
	var sockaddr unix.Sockaddr = &unix.SockaddrInet6{Addr: addr.As16()}
	if addr.Is4() {
		family, sockaddr = unix.AF_INET, &unix.SockaddrInet4{Addr: addr.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserving a port on %s: %w", addr, err)
	}
	port, err := bindShared(fd, sockaddr)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("reserving a port on %s: %w", addr, err)
	}
	return &reservation{fd: fd, port: port}, nil
}

func bindShared(fd int, sockaddr unix.Sockaddr) (int, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, sockaddr); err != nil {
		return 0, err
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	switch s := bound.(type) {
	case *unix.SockaddrInet4:
		return s.Port, nil
	case *unix.SockaddrInet6:
		return s.Port, nil
	}
	return 0, syscall.EAFNOSUPPORT
}

func (r *reservation) release() {
	if r != nil {
		unix.Close(r.fd)
	}
}

// checkFree answers an error when the port of addr is taken, with a better text
// than a program that ends would leave in its log.
func checkFree(ctx context.Context, addr netip.Addr, port int) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(addr.String(), strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}
