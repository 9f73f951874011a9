// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// ServeEgress serves HTTP CONNECT on the listener until it is closed: the
// protocol of the API server's egress selector (HTTPConnect in
// apiserver.k8s.io/v1beta1 EgressSelectorConfiguration). What it is asked for is
// dialled as a pod would. It answers nil when the listener is closed.
func (n *Network) ServeEgress(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var open sync.WaitGroup
	defer func() {
		cancel()
		open.Wait()
	}()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serving the API server's way to pods: %w", err)
		}
		open.Go(func() { n.connect(ctx, conn) })
	}
}

func (n *Network) connect(ctx context.Context, client net.Conn) {
	defer client.Close()
	// The end of the proxy ends its connections.
	defer context.AfterFunc(ctx, func() { client.Close() })()
	reader := bufio.NewReader(client)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return // the client has gone, or speaks something else
	}
	if request.Method != http.MethodConnect {
		respond(client, http.StatusMethodNotAllowed, "CONNECT only")
		return
	}
	target, err := n.Dial(ctx, "tcp", request.Host)
	if err != nil {
		respond(client, http.StatusBadGateway, err.Error())
		return
	}
	defer target.Close()
	defer context.AfterFunc(ctx, func() { target.Close() })()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	relay(client, reader, target)
}

func respond(client io.Writer, status int, text string) {
	// Whoever asked may have gone meanwhile.
	_, _ = fmt.Fprintf(client, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s",
		status, http.StatusText(status), len(text), text)
}

// relay copies both ways until both sides are done; the end of one direction is
// passed on as such.
func relay(client net.Conn, fromClient io.Reader, target net.Conn) {
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(target, fromClient) // a broken connection ends the copy, which is all there is to do
		closeWrite(target)
	})
	both.Go(func() {
		_, _ = io.Copy(client, target)
		closeWrite(client)
	})
	both.Wait()
}

func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = conn.Close()
}
