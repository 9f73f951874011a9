// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package sandbox runs pods as an ordinary user, with no container engine.
//
// A pod is one helper process, the shim, that holds a user, a network and a PID
// namespace; each container is a child of the shim with a user, mount, PID, UTS
// and IPC namespace of its own and is PID 1 in it. Outgoing TCP of a pod is
// redirected inside its network namespace to a listener that the starter holds
// and goes to PodConfig.Outbound; DNS goes to PodConfig.DNS. No byte of a
// connection passes through the shim: sockets travel as file descriptors.
//
// Everything a pod is made of dies with the process that called Start, also
// when that one is killed with SIGKILL: the shim has a parent death signal, and
// the kernel ends a PID namespace with its first process.
//
// What an unprivileged namespace cannot give is not pretended: exactly one user
// and one group exist in a container (the one it runs as), there are no resource
// limits, no shared process or IPC namespace between a pod's containers, no
// mount propagation, no UDP but DNS, no IPv6 but ::1.
//
// The running binary is executed again as shim and as container init. So
// ReexecMain must be the first call of main and of TestMain in every program
// that starts pods.
package sandbox

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

var (
	// ErrUnsupported is the answer on systems other than Linux.
	ErrUnsupported = errors.New("the local runtime needs Linux")
	// ErrNotRunning says that a container or pod has ended, or was never there.
	ErrNotRunning = errors.New("not running")
)

// Dialer opens a connection on behalf of a pod. Network is "tcp", address is
// the IP address and port that the pod's process dialled.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// PodConfig says what Start makes.
type PodConfig struct {
	// Name is shown in errors and in the process list ("namespace/name").
	Name string
	// Dir is a directory of the pod's own for what it writes outside its
	// volumes. It is made if need be; what lies in it is removed by Stop.
	Dir string
	// IP is the pod's address, IPv4. It exists in the pod's own network
	// namespace alone.
	IP netip.Addr
	// Hostname is the host name in all containers; the default is the last
	// part of Name.
	Hostname string
	// ShareNetwork starts the containers in that pod's network instead of one
	// of their own, as hostNetwork pods do. IP, Outbound and DNS are then that
	// pod's; stopping it stops this pod as well.
	ShareNetwork *Pod
	// Outbound dials what the pod's processes dial (TCP, all addresses but
	// 127.0.0.1 and IP). Without it such connections are reset.
	Outbound Dialer
	// DNS answers queries, whichever server they are sent to. Without it every
	// query is answered with SERVFAIL.
	DNS dns.Handler
	// Nameserver is written to /etc/resolv.conf; any address but 127.0.0.1 and
	// IP reaches DNS. The default is 169.254.1.53.
	Nameserver netip.Addr
	// Search and DNSOptions go to /etc/resolv.conf ("svc.cluster.local",
	// "ndots:5").
	Search     []string
	DNSOptions []string
	// HostAliases are further lines of /etc/hosts.
	HostAliases []HostAlias
}

// HostAlias is a line of /etc/hosts.
type HostAlias struct {
	IP        netip.Addr
	Hostnames []string
}

// Mount is one volume of a container.
type Mount struct {
	// Source is a file or directory of the host; its sub-mounts come along.
	// It has to exist. Ignored for Tmpfs.
	Source string
	// Target is the absolute path in the container. It is made if the image
	// has none; symbolic links in it are resolved inside the container's root.
	// A mount on /etc/hosts, /etc/hostname or /etc/resolv.conf replaces the
	// generated file.
	Target string
	// ReadOnly makes this mount read-only, not the mounts below it.
	ReadOnly bool
	// Tmpfs mounts an empty memory file system (mode 1777), of SizeBytes at
	// most if that is not 0.
	Tmpfs     bool
	SizeBytes int64
}

// ContainerConfig says what StartContainer makes.
type ContainerConfig struct {
	// Name is unique among the running containers of the pod.
	Name string
	// Root is the unpacked image. It may be shared by any number of containers
	// and is never written to: a writable layer lies on top, which lasts as
	// long as the container.
	Root string
	// Args is the command with its arguments; a command without a slash is
	// looked up in the PATH of Env.
	Args []string
	// Env is the whole environment ("KEY=value"). PATH and HOME get the usual
	// defaults if it has none.
	Env []string
	// Dir is the working directory, made if the image has none; default "/".
	Dir string
	// UID and GID are the one user and group of the container. All files of the
	// image and of the volumes appear to belong to them.
	UID, GID int
	// ReadOnlyRoot makes the root file system read-only, mounts excepted.
	ReadOnlyRoot bool
	// Privileged leaves all capabilities in the container's own user namespace
	// to a container with UID 0, which gives it mounts and the like, but no
	// power over the pod's network or the host. Without it UID 0 has the usual
	// set of container runtimes; other users never have any.
	Privileged bool
	// NoNewPrivileges is allowPrivilegeEscalation: false.
	NoNewPrivileges bool
	// Mounts are done in the order of their targets' depth.
	Mounts []Mount
	// LogPath is the file that gets both streams in the format of the CRI
	// ("<RFC3339Nano> stdout F <line>"). It is appended to, and renamed to
	// LogPath.1 when it grows beyond MaxLogSize bytes (default 10 MiB).
	LogPath    string
	MaxLogSize int64
	// Stdout and Stderr get the raw streams besides. Stdin is /dev/null.
	Stdout, Stderr io.Writer
}

// Exit is how a container ended.
type Exit struct {
	// Code is the exit code, or 128 plus the signal's number.
	Code int
	// Signal is the signal that ended it, or 0.
	Signal syscall.Signal
	// StartedAt and FinishedAt are the times of the exec and of the end.
	StartedAt, FinishedAt time.Time
}
