// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package network is the network of a cluster whose pods are processes: it
// dials what a pod dials (Services, other pods, the world), answers its DNS
// queries, and is the proxy through which the API server reaches pods.
//
// Pod addresses are invented. They exist in each pod's own network namespace
// and in this package; no interface, route or firewall rule of the host knows
// them. Services are followed to the endpoints that the cluster's own
// EndpointSlice controller publishes.
package network

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Dialer opens a connection. It has the shape of sandbox.Dialer and of
// (*sandbox.Pod).Dial.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// Config says what cluster the network is of.
type Config struct {
	// Client reads Services and EndpointSlices. The default role
	// system:node-proxier (user system:kube-proxy) has all that it needs.
	Client *rest.Config
	// APIServer answers where the API server is now. The Service
	// default/kubernetes leads there, since the API server cannot publish a
	// loopback address of its own.
	APIServer func() netip.AddrPort
	// PodCIDR is the range of the invented addresses. What lies in it and
	// belongs to no pod is unreachable; nothing of it is ever dialled on the
	// host.
	PodCIDR netip.Prefix
	// Domain is the cluster's DNS domain; empty means "cluster.local".
	Domain string
	// Host dials what lies outside the cluster; nil means the host's own network.
	Host Dialer
	// Resolver resolves names outside the cluster; nil means the host's.
	Resolver *net.Resolver
}

// Network is a cluster's network.
type Network struct {
	cfg      Config
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	byIP     cache.Indexer
	stop     context.CancelFunc
	factory  informers.SharedInformerFactory

	mu        sync.Mutex
	addresses map[netip.Addr]Dialer // nil for an address that is taken but not attached
}

const byClusterIP = "clusterIP"

// Start reads the cluster's Services and endpoints, and follows them until
// [Network.Stop]. ctx bounds the first reading only.
func Start(ctx context.Context, cfg Config) (*Network, error) {
	client, err := kubernetes.NewForConfig(cfg.Client)
	if err != nil {
		return nil, fmt.Errorf("making the client of the cluster's network: %w", err)
	}
	return start(ctx, cfg, client)
}

func start(ctx context.Context, cfg Config, client kubernetes.Interface) (*Network, error) {
	if cfg.Domain == "" {
		cfg.Domain = "cluster.local"
	}
	if cfg.Host == nil {
		cfg.Host = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services()
	slices := factory.Discovery().V1().EndpointSlices()
	if err := services.Informer().AddIndexers(cache.Indexers{byClusterIP: clusterIPs}); err != nil {
		return nil, fmt.Errorf("indexing Services: %w", err)
	}
	n := &Network{
		cfg: cfg, factory: factory,
		services: services.Lister(), slices: slices.Lister(), byIP: services.Informer().GetIndexer(),
		addresses: map[netip.Addr]Dialer{},
	}
	slices.Informer() // has the factory start it
	var run context.Context
	run, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	factory.Start(run.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			n.Stop()
			return nil, fmt.Errorf("reading the cluster's %s: %w", kind, context.Cause(ctx))
		}
	}
	return n, nil
}

// Stop ends the following of Services. Connections live on.
func (n *Network) Stop() {
	n.stop()
	n.factory.Shutdown()
}

func clusterIPs(obj any) ([]string, error) {
	service, ok := obj.(*corev1.Service)
	if !ok {
		return nil, nil
	}
	var ips []string
	for _, ip := range service.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone && ip != "" {
			ips = append(ips, ip)
		}
	}
	return ips, nil
}

// Allocate takes a free address of the prefix for a pod. The network's, the
// first and the last address stay free. [Network.Release] gives it back.
func (n *Network) Allocate(prefix netip.Prefix) (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	first := prefix.Masked().Addr().Next().Next()
	for ip := first; prefix.Contains(ip) && prefix.Contains(ip.Next()); ip = ip.Next() {
		if _, taken := n.addresses[ip]; !taken {
			n.addresses[ip] = nil
			return ip, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no free address in %s", prefix)
}

// Attach says that connections to ip go to dial. It takes the address if it was
// not taken.
func (n *Network) Attach(ip netip.Addr, dial Dialer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses[ip] = dial
}

// Release frees an address.
func (n *Network) Release(ip netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.addresses, ip)
}

// dialTimeout bounds a dial; a pod's own connect has a longer patience.
const dialTimeout = 30 * time.Second

// Dial opens a connection to what address means inside the cluster: a Service's
// address, a pod's, a node's, or anything outside it. Its errors hold the errno
// that a pod's connect should get.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dialling %s: %w", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if service := n.serviceOf(target.Addr()); service != nil {
		return n.dialService(ctx, network, service, target.Port())
	}
	return n.dialAddress(ctx, network, target)
}

func (n *Network) dialAddress(ctx context.Context, network string, target netip.AddrPort) (net.Conn, error) {
	n.mu.Lock()
	dial, known := n.addresses[target.Addr()]
	n.mu.Unlock()
	switch {
	case dial != nil:
		return dial(ctx, network, target.String())
	case known || n.cfg.PodCIDR.Contains(target.Addr()):
		return nil, fmt.Errorf("dialling %s: no pod has this address: %w", target, syscall.EHOSTUNREACH)
	}
	return n.cfg.Host(ctx, network, target.String())
}

func (n *Network) serviceOf(ip netip.Addr) *corev1.Service {
	found, err := n.byIP.ByIndex(byClusterIP, ip.String())
	if err != nil || len(found) == 0 {
		return nil
	}
	service, _ := found[0].(*corev1.Service)
	return service
}

func isKubernetes(service *corev1.Service) bool {
	return service.Namespace == corev1.NamespaceDefault && service.Name == "kubernetes"
}

func (n *Network) dialService(ctx context.Context, network string, service *corev1.Service, port uint16) (net.Conn, error) {
	name := service.Namespace + "/" + service.Name
	if isKubernetes(service) {
		conn, err := n.cfg.Host(ctx, network, n.cfg.APIServer().String())
		if err != nil {
			return nil, fmt.Errorf("dialling the API server: %w", err)
		}
		return conn, nil
	}
	endpoints, err := n.endpoints(service, port)
	if err != nil {
		return nil, fmt.Errorf("looking for the endpoints of service %s: %w", name, err)
	}
	// In any order, and the next one when a pod has just gone.
	rand.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
	errs := make([]error, 0, len(endpoints))
	for _, endpoint := range endpoints {
		conn, err := n.dialAddress(ctx, network, endpoint)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 { // as kube-proxy rejects it
		return nil, fmt.Errorf("service %s has no ready endpoint for port %d: %w", name, port, syscall.ECONNREFUSED)
	}
	return nil, fmt.Errorf("dialling service %s port %d: %w", name, port, errors.Join(errs...))
}

// endpoints answers the ready endpoints behind a port of a Service, or the
// serving ones that are about to end when there are no others, as kube-proxy
// does.
func (n *Network) endpoints(service *corev1.Service, port uint16) ([]netip.AddrPort, error) {
	var portName string
	known := false
	for _, p := range service.Spec.Ports {
		if uint16(p.Port) == port && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") {
			portName, known = p.Name, true
		}
	}
	if !known {
		return nil, nil
	}
	all, err := n.slicesOf(service)
	if err != nil {
		return nil, err
	}
	var ready, ending []netip.AddrPort
	for _, slice := range all {
		number, ok := portOf(slice, portName)
		if !ok {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			into := &ready
			switch c := endpoint.Conditions; {
			case c.Ready == nil || *c.Ready || service.Spec.PublishNotReadyAddresses:
			case c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating:
				into = &ending
			default:
				continue
			}
			for _, address := range endpoint.Addresses {
				if ip, err := netip.ParseAddr(address); err == nil {
					*into = append(*into, netip.AddrPortFrom(ip, number))
				}
			}
		}
	}
	if len(ready) == 0 {
		return ending, nil
	}
	return ready, nil
}

func (n *Network) slicesOf(service *corev1.Service) ([]*discoveryv1.EndpointSlice, error) {
	return n.slices.EndpointSlices(service.Namespace).List(
		labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
}

func portOf(slice *discoveryv1.EndpointSlice, name string) (uint16, bool) {
	for _, p := range slice.Ports {
		if p.Port != nil && (p.Name == nil && name == "" || p.Name != nil && *p.Name == name) {
			return uint16(*p.Port), true
		}
	}
	return 0, false
}

// Services answers the Services of a namespace that have an address of their
// own, and default/kubernetes: those that a pod gets environment variables for.
func (n *Network) Services(namespace string) ([]*corev1.Service, error) {
	all, err := n.services.Services(namespace).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing services of %s: %w", namespace, err)
	}
	if namespace != corev1.NamespaceDefault {
		kubernetes, err := n.services.Services(corev1.NamespaceDefault).Get("kubernetes")
		if err != nil {
			return nil, fmt.Errorf("looking for the service default/kubernetes: %w", err)
		}
		all = append(all, kubernetes)
	}
	return all, nil
}
