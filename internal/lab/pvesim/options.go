// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	"k8s.io/utils/clock"
)

// RootPassword is the password of root@pam unless [Options.RootPassword] says
// otherwise.
const RootPassword = "proxmox-lab"

// GiB is 2^30 bytes.
const GiB = int64(1) << 30

// Options describe the simulated cluster. The zero value is a cluster of one
// node, pve1, in the newest release, on a free port of 127.0.0.1, in memory.
type Options struct {
	// Address is where the API is served, "127.0.0.1:0" by default.
	Address string
	// Dir keeps the cluster over restarts. Empty keeps it in memory.
	Dir string
	// Release is "8.1", "8.2", "8.3", "8.4", "9.0", "9.1" or "9.2" (default).
	Release string
	// Nodes are the members of the cluster; default is one node pve1.
	Nodes []Node
	// Storages are the configured storages, DefaultStorages by default.
	Storages []Storage
	// RootPassword is the password of root@pam.
	RootPassword string
	// Timing says how long things take. The zero value takes no time at all.
	Timing Timing
	// Clock is the time that tasks run on; default is the machine's.
	Clock clock.WithTicker
	// Booter runs what is inside of started machines. It may be nil.
	Booter Booter
	// TrustedCAs are the roots that the nodes trust when they download from a
	// URL, besides the system's. It may be nil.
	TrustedCAs *x509.CertPool
	// HTTPTransport is what the nodes download with; default is a plain one.
	// Its TLS configuration is replaced.
	HTTPTransport *http.Transport
	// Middleware wraps the API's handler; tests inject faults with it.
	Middleware func(http.Handler) http.Handler
	// Observe is told of every call before its answer is sent, of several at once
	// from goroutines of their own. It may be nil.
	Observe func(Answer)
	// Log takes lines about what the hypervisor does by itself. It may be nil.
	Log func(format string, args ...any)
}

// Node is a member of the simulated cluster.
type Node struct {
	Name string
	// Memory in bytes; default 64 GiB.
	Memory int64
	// CPUs is the number of processors; default 16.
	CPUs int
	// Bridges that machines can be plugged into; default vmbr0.
	Bridges []string
	// Offline makes every call that the node must answer fail as an unreachable
	// node does.
	Offline bool
}

// Storage is an entry of the simulated storage configuration.
type Storage struct {
	ID string `json:"storage"`
	// Type is dir, nfs, cifs, cephfs, btrfs, lvm, lvmthin, zfspool or rbd.
	Type string `json:"type"`
	// Content lists what may lie there: images, iso, import, vztmpl, ...
	Content []string `json:"content"`
	// Shared says that all nodes see the same content. The network types are
	// always shared.
	Shared bool `json:"shared,omitempty"`
	// Nodes restricts the storage to some nodes; empty means all.
	Nodes []string `json:"nodes,omitempty"`
	// Disabled storages are listed and cannot be used.
	Disabled bool `json:"disable,omitempty"`
	// Total size in bytes; default 500 GiB.
	Total int64 `json:"total,omitempty"`
}

// DefaultStorages are those of an installation of release 9 on LVM: "local"
// (with content import) and "local-lvm".
func DefaultStorages() []Storage {
	return []Storage{
		{ID: "local", Type: "dir", Content: []string{"iso", "vztmpl", "backup", "import"}, Total: 100 * GiB},
		{ID: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}, Total: 400 * GiB},
	}
}

// Timing holds how long the parts of the simulated cluster take.
type Timing struct {
	Create, Clone, Config, Resize, Template time.Duration
	Start, Stop, Shutdown, Delete           time.Duration
	Download, Upload, DeleteVolume          time.Duration
	// Unauthorized is how long every 401 is held back.
	Unauthorized time.Duration
	// ResourceLag is how old /cluster/resources may be.
	ResourceLag time.Duration
}

// RealTiming is about what a small cluster on solid state disks shows. The 3 s
// of an unauthorized answer and the 10 s of the statistics daemon are Proxmox
// VE's own constants.
func RealTiming() Timing {
	return Timing{
		Create: 4 * time.Second, Clone: 6 * time.Second, Config: 300 * time.Millisecond,
		Resize: time.Second, Template: time.Second,
		Start: 2 * time.Second, Stop: 2 * time.Second, Shutdown: 5 * time.Second, Delete: 2 * time.Second,
		Download: time.Second, Upload: 500 * time.Millisecond, DeleteVolume: 300 * time.Millisecond,
		Unauthorized: 3 * time.Second, ResourceLag: 10 * time.Second,
	}
}

// Scale multiplies every duration by f.
func (t Timing) Scale(f float64) Timing {
	scale := func(d *time.Duration) { *d = time.Duration(float64(*d) * f) }
	for _, d := range []*time.Duration{
		&t.Create, &t.Clone, &t.Config, &t.Resize, &t.Template, &t.Start, &t.Stop, &t.Shutdown,
		&t.Delete, &t.Download, &t.Upload, &t.DeleteVolume, &t.Unauthorized, &t.ResourceLag,
	} {
		scale(d)
	}
	return t
}

// release is a Proxmox VE release that behaves in its own way.
type release struct {
	number  int // major*100 + minor
	version string
	short   string
}

var releases = map[string]release{
	"8.1": {801, "8.1.11", "8.1"},
	"8.2": {802, "8.2.10", "8.2"},
	"8.3": {803, "8.3.5", "8.3"},
	"8.4": {804, "8.4.14", "8.4"},
	"9.0": {900, "9.0.11", "9.0"},
	"9.1": {901, "9.1.9", "9.1"},
	"9.2": {902, "9.2.11", "9.2"},
}

func (r release) atLeast(major, minor int) bool { return r.number >= major*100+minor }

// complete fills in the defaults and refuses what cannot be simulated.
func (o Options) complete() (Options, release, error) {
	if o.Release == "" {
		o.Release = "9.2"
	}
	rel, ok := releases[o.Release]
	if !ok {
		return o, rel, fmt.Errorf("starting the Proxmox VE simulator: release %q is not simulated", o.Release)
	}
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	if o.RootPassword == "" {
		o.RootPassword = RootPassword
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if len(o.Nodes) == 0 {
		o.Nodes = []Node{{Name: "pve1"}}
	}
	if o.Storages == nil {
		o.Storages = DefaultStorages()
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	for i := range o.Nodes {
		n := &o.Nodes[i]
		if n.Memory == 0 {
			n.Memory = 64 * GiB
		}
		if n.CPUs == 0 {
			n.CPUs = 16
		}
		if len(n.Bridges) == 0 {
			n.Bridges = []string{"vmbr0"}
		}
	}
	for i := range o.Storages {
		st := &o.Storages[i]
		if storageTypes[st.Type].formats == nil {
			return o, rel, fmt.Errorf("starting the Proxmox VE simulator: storage %s has the unknown type %q", st.ID, st.Type)
		}
		if storageTypes[st.Type].network {
			st.Shared = true
		}
		if st.Total == 0 {
			st.Total = 500 * GiB
		}
	}
	return o, rel, nil
}
