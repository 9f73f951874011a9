// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package controlplane runs a Kubernetes control plane (etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler) as plain processes of this host,
// without root and without a container engine.
//
// Everything listens on one address and on ports that are chosen when they are
// zero. All files lie below one folder; a control plane that is started again
// on the same folder has its objects again, at another address if need be. The
// processes die with the process that started them.
package controlplane

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"
)

// Config says what control plane to start.
type Config struct {
	// Name is the cluster's name in the kubeconfig. Empty means "kubernetes".
	Name string
	// Dir holds everything: pki, etcd's data, logs, configuration. It is made
	// with mode 0700.
	Dir string
	// Address is where kube-apiserver and etcd listen. A loopback address will
	// do: the API server publishes no Endpoints for itself (it refuses loopback
	// addresses there), so whoever connects pods must know that the Service
	// default/kubernetes means [ControlPlane.Endpoint].
	Address netip.Addr
	// Port is kube-apiserver's port; 0 means a free one.
	Port int
	// Binaries are the programs.
	Binaries Binaries
	// PKI holds the authorities. nil means those in Dir from an earlier start,
	// else new ones.
	PKI *PKI
	// ExtraSANs are further names and addresses of the API server's certificate.
	ExtraSANs []string
	// ServiceCIDR and PodCIDR are the cluster's ranges; invalid ones mean
	// [DefaultServiceCIDR] and [DefaultPodCIDR].
	ServiceCIDR, PodCIDR netip.Prefix
	// ServiceAccountIssuer is the issuer of service account tokens; empty means
	// https://kubernetes.default.svc.cluster.local, as kubeadm has it.
	ServiceAccountIssuer string
	// Etcd configures the data store.
	Etcd Etcd
	// EgressSocket is the path of the unix socket of an HTTP CONNECT proxy
	// through which the API server reaches pods and kubelets. Empty means that
	// it dials them itself.
	EgressSocket string
	// AuditLog is the path of an audit log; empty means none. Writes are logged
	// (those of Cluster API groups with their bodies), reads are not.
	AuditLog string
	// LeaderElect lets controller-manager and scheduler elect a leader, which
	// several control planes of one cluster need.
	LeaderElect bool
	// ExtraArgs are appended to a program's arguments.
	ExtraArgs ExtraArgs
	// StartTimeout is how long each program may take until it is ready; 0 means
	// [DefaultStartTimeout].
	StartTimeout time.Duration
}

// Etcd configures the etcd member of a control plane.
type Etcd struct {
	// Name is the member's name; empty means "default".
	Name string
	// ClientPort and PeerPort are etcd's ports on [Config.Address]; 0 means free
	// ones.
	ClientPort, PeerPort int
	// InitialCluster is etcd's --initial-cluster, for a member that joins
	// others; it includes the member itself. Empty means a cluster of one.
	InitialCluster string
	// Existing says that InitialCluster is there already (the member was added
	// to it beforehand).
	Existing bool
	// NoFsync has etcd not wait for the disk. A killed process loses nothing by
	// that (the page cache survives it), a crashed machine may. It makes sense
	// for clusters whose objects live a few minutes.
	NoFsync bool
}

// ExtraArgs are further arguments by program.
type ExtraArgs struct {
	Etcd, APIServer, ControllerManager, Scheduler []string
}

// DefaultStartTimeout is what [Config].StartTimeout is unless given.
const DefaultStartTimeout = 3 * time.Minute

// DefaultServiceCIDR and DefaultPodCIDR are kubeadm's and kind's usual ranges.
var (
	DefaultServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")
	DefaultPodCIDR     = netip.MustParsePrefix("10.244.0.0/16")
)

// withDefaults fills in what is empty and refuses what cannot work.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("no folder given")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, fmt.Errorf("making %s absolute: %w", c.Dir, err)
	}
	c.Dir = dir
	if !c.Address.IsValid() || c.Address.IsUnspecified() {
		return c, fmt.Errorf("address %q: one address of this host is needed", c.Address)
	}
	if err := c.Binaries.check(); err != nil {
		return c, err
	}
	if c.Name == "" {
		c.Name = "kubernetes"
	}
	if !c.ServiceCIDR.IsValid() {
		c.ServiceCIDR = DefaultServiceCIDR
	}
	if !c.PodCIDR.IsValid() {
		c.PodCIDR = DefaultPodCIDR
	}
	if c.ServiceAccountIssuer == "" {
		c.ServiceAccountIssuer = "https://kubernetes.default.svc.cluster.local"
	}
	if c.Etcd.Name == "" {
		c.Etcd.Name = "default"
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = DefaultStartTimeout
	}
	return c, nil
}

// serviceIP answers the address of the Service default/kubernetes, which the
// API server takes as the first of its range.
func (c Config) serviceIP() netip.Addr { return c.ServiceCIDR.Masked().Addr().Next() }

func (c Config) path(elem ...string) string {
	return filepath.Join(append([]string{c.Dir}, elem...)...)
}
