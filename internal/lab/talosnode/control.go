// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/controlplane"
)

// Control starts the programs of a node: its control plane and its kubelet.
type Control interface {
	// StartPlane starts etcd, API server, controller-manager and scheduler and
	// returns when they are ready.
	StartPlane(ctx context.Context, spec PlaneSpec) (Plane, error)
	// StartKubelet registers the node and runs its pods until the answer is
	// stopped.
	StartKubelet(ctx context.Context, spec KubeletSpec) (Kubelet, error)
}

// PlaneSpec is a control plane as the machine configuration asks for it.
type PlaneSpec struct {
	controlplane.Config
	// Version is the Kubernetes version, such as v1.36.2.
	Version string
}

// Plane is a running control plane.
type Plane interface {
	Endpoint() netip.AddrPort
	EtcdClientURL() string
	// Done is closed when a program ended by itself; Err then says which.
	Done() <-chan struct{}
	Err() error
	Stop(ctx context.Context) error
}

// KubeletSpec is a kubelet as the machine configuration asks for it.
type KubeletSpec struct {
	// Cluster identifies the node's cluster: nodes of one cluster share a network.
	Cluster string
	// Name is the Node's name, Address its InternalIP, PodAddress what its
	// hostNetwork pods have in their network namespace.
	Name                string
	Address, PodAddress netip.Addr
	// Version is the Kubernetes version that the Node reports.
	Version string
	// OSImage is the operating system that the Node reports.
	OSImage string
	// Root is the node's root file system: hostPath volumes lie below it, and the
	// node is ready when its etc/cni/net.d has a configuration.
	Root string
	// Dir is for the kubelet's own files.
	Dir string
	// Client is the identity system:node:<name>.
	Client *rest.Config
	// Annotations and Taints are those that the Node registers with.
	Annotations map[string]string
	Taints      []corev1.Taint
	// DialAPI opens a connection to an API server of the cluster, whichever
	// answers: what KubePrism does on localhost.
	DialAPI func(ctx context.Context) (net.Conn, error)
	// KubePrismPort is the port on 127.0.0.1, in the network of hostNetwork pods,
	// that leads to DialAPI; 0 means none.
	KubePrismPort int
	// Translate maps an address that only exists inside the lab's cluster (the
	// endpoints of Service default/talos) to the real one.
	Translate func(netip.AddrPort) netip.AddrPort
	// ServingBySigning has the kubelet ask the cluster for its serving certificate
	// (rotate-server-certificates) instead of signing it itself.
	ServingBySigning bool
	// Egress is the path of the unix socket on which the API server's connections
	// to pods are served; empty on workers.
	Egress string
	// PodCIDR is the cluster's range of pod addresses.
	PodCIDR netip.Prefix
	// Domain is the cluster's DNS domain.
	Domain string
	// Logf writes to the node's console.
	Logf func(format string, args ...any)
}

// Kubelet is a running kubelet.
type Kubelet interface {
	// Stop ends all pods and the kubelet. An ended ctx means at once.
	Stop(ctx context.Context) error
}
