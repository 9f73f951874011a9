// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"context"
	"errors"
	"io"
	"net"
)

// Splice copies between two connections in both directions until both are done
// or ctx ends, and closes them. The end of one direction is passed on as a half
// close; a broken direction resets both connections, so that neither side takes
// a part for the whole. Between TCP connections the kernel does the copying.
func Splice(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() {
		reset(a)
		reset(b)
	})
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyOneWay(a, b)
	}()
	copyOneWay(b, a)
	<-done
	a.Close()
	b.Close()
}

// copyOneWay copies from src to dst and ends dst's direction.
func copyOneWay(dst, src net.Conn) {
	if _, err := io.Copy(dst, src); err != nil && !errors.Is(err, net.ErrClosed) {
		reset(dst)
		reset(src)
		return
	}
	if w, ok := dst.(interface{ CloseWrite() error }); ok {
		// It fails where the other side has already closed: nothing is left to say.
		_ = w.CloseWrite()
		return
	}
	dst.Close()
}

// reset closes a connection so that its peer sees an error, where it is TCP.
func reset(c net.Conn) {
	if t, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(0)
	}
	c.Close()
}
