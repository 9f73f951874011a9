// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The operations that a starter asks of a shim, and the two things that a shim
// says unasked.
const (
	opDial   = "dial"
	opListen = "listen"
	opStart  = "start"
	opExec   = "exec"
	opSignal = "signal"
	opReady  = "ready"
	opExit   = "exit"
)

// maxMessage bounds a message. All of them are short: whatever may be long or
// secret (environment, arguments, mounts) travels in a memory file.
const maxMessage = 16 << 10

// message is a request, an answer or an event on the socket between the starter
// and a shim. Files go along as descriptors.
type message struct {
	Op string `json:"op,omitempty"`
	// ID joins an answer to its request.
	ID uint64 `json:"id,omitempty"`
	// Process is the starter's number of a process: a container's first one or
	// an exec'd command.
	Process uint64 `json:"process,omitempty"`
	// Container is the Process of the container that a command is executed in.
	Container uint64        `json:"container,omitempty"`
	Network   string        `json:"network,omitempty"`
	Address   string        `json:"address,omitempty"`
	Timeout   time.Duration `json:"timeout,omitempty"`
	Signal    int           `json:"signal,omitempty"`
	// Status is the wait status of a process that ended.
	Status uint32 `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
	// Errno is the system's error behind Error, if there is one.
	Errno int `json:"errno,omitempty"`
	// Gone says that Error is ErrNotRunning.
	Gone bool `json:"gone,omitempty"`
}

// wire is one end of the socket. Both directions keep message boundaries.
type wire struct{ conn *net.UnixConn }

// close ends the socket. Nothing is lost: each message is sent as a whole.
func (w *wire) close() { _ = w.conn.Close() }

// newWire takes over the socket f, a SOCK_SEQPACKET.
func newWire(f *os.File) (*wire, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("using the socket between starter and shim: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("using the socket between starter and shim: it is a %T", c)
	}
	return &wire{conn: u}, nil
}

// wirePair makes a connected pair of sockets.
func wirePair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making the socket between starter and shim: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "shim"), os.NewFile(uintptr(fds[1]), "starter"), nil
}

// send writes a message. The files stay the caller's.
func (w *wire) send(m message, files ...*os.File) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("a message of %d bytes is too long for the shim", len(body))
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err = w.conn.WriteMsgUnix(body, oob, nil)
	return err
}

// receive reads a message; the files belong to the caller.
func (w *wire) receive() (message, []*os.File, error) {
	body := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(8*4))
	n, oobn, _, _, err := w.conn.ReadMsgUnix(body, oob)
	if err != nil {
		return message{}, nil, err
	}
	files, err := filesOf(oob[:oobn])
	if err != nil {
		return message{}, nil, err
	}
	var m message
	if err := json.Unmarshal(body[:n], &m); err != nil {
		closeAll(files)
		return message{}, nil, fmt.Errorf("reading a message: %w", err)
	}
	return m, files, nil
}

func filesOf(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("reading the file descriptors of a message: %w", err)
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// memoryFile returns a file without a name that holds v as JSON and is read
// from its start. It never touches a disk, since environments hold secrets.
func memoryFile(v any) (*os.File, error) {
	fd, err := unix.MemfdCreate("capi-sandbox", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memory file")
	if err = json.NewEncoder(f).Encode(v); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("writing a memory file: %w", err)
	}
	return f, nil
}

// failure makes the answer that says that a request failed with err.
func failure(err error) message {
	m := message{Error: err.Error(), Gone: errors.Is(err, ErrNotRunning)}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		m.Errno = int(errno)
	}
	return m
}

// failed is the error that an answer carries, or nil.
func (m message) failed() error {
	switch {
	case m.Error == "":
		return nil
	case m.Gone:
		return ErrNotRunning
	case m.Errno != 0:
		return &remoteError{text: m.Error, errno: syscall.Errno(m.Errno)}
	}
	return errors.New(m.Error)
}

// remoteError is an error of the shim that keeps the system's error number, so
// that callers may ask for ECONNREFUSED and the like.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.errno }
