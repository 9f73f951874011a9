// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/controlplane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/network"
	kubelet "github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/node"
)

var _ Control = (*LocalControl)(nil)

// LocalControl runs control planes as processes of this host and pods as its
// sandboxes. The programs come out of the images that a control plane is made of
// anywhere; etcd's is that of the Kubernetes version, whatever tag the machine
// configuration names, since the lab has one.
//
// Programs that use it call sandbox.ReexecMain first in main.
type LocalControl struct {
	images kubelet.Images

	mu       sync.Mutex
	networks map[string]*sharedNetwork
}

// NewLocalControl makes a control over a store of images.
func NewLocalControl(images kubelet.Images) *LocalControl {
	return &LocalControl{images: images, networks: map[string]*sharedNetwork{}}
}

// StartPlane starts a control plane.
func (l *LocalControl) StartPlane(ctx context.Context, spec PlaneSpec) (Plane, error) {
	cfg := spec.Config
	var err error
	cfg.Binaries, err = controlplane.ImagesOf(spec.Version).Binaries(ctx, func(ctx context.Context, ref string) (string, error) {
		image, err := l.images.Unpack(ctx, ref)
		if err != nil {
			return "", err
		}
		return image.Root, nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the programs of Kubernetes %s: %w", spec.Version, err)
	}
	plane, err := controlplane.Start(ctx, cfg, nil)
	if err != nil {
		return nil, err
	}
	return plane, nil
}

// sharedNetwork is the network of a cluster's nodes. It lives as long as one of
// them runs.
type sharedNetwork struct {
	*network.Network
	users int
}

// network answers the network of a cluster, started by the first node of it.
func (l *LocalControl) network(ctx context.Context, spec KubeletSpec) (*sharedNetwork, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n, ok := l.networks[spec.Cluster]; ok {
		n.users++
		return n, nil
	}
	started, err := network.Start(ctx, network.Config{
		Client:    spec.Client,
		APIServer: func() netip.AddrPort { return kubernetesAlias },
		PodCIDR:   spec.PodCIDR, Domain: spec.Domain,
		Host: func(ctx context.Context, network, address string) (net.Conn, error) {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return nil, fmt.Errorf("dial %s: %w", address, err)
			}
			if to == kubernetesAlias {
				return spec.DialAPI(ctx)
			}
			return (&net.Dialer{}).DialContext(ctx, network, spec.Translate(to).String())
		},
	})
	if err != nil {
		return nil, fmt.Errorf("start the network of the cluster's pods: %w", err)
	}
	n := &sharedNetwork{Network: started, users: 1}
	l.networks[spec.Cluster] = n
	return n, nil
}

func (l *LocalControl) releaseNetwork(cluster string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.networks[cluster]
	if n.users--; n.users == 0 {
		n.Stop()
		delete(l.networks, cluster)
	}
}

// StartKubelet starts a node of the local runtime as the kubelet.
func (l *LocalControl) StartKubelet(ctx context.Context, spec KubeletSpec) (Kubelet, error) {
	k := &localKubelet{control: l, spec: spec}
	k.ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := k.start(ctx); err != nil {
		return nil, errors.Join(err, k.Stop(ctx))
	}
	return k, nil
}

// localKubelet is a node of the local runtime with what Talos puts around it.
type localKubelet struct {
	control *LocalControl
	spec    KubeletSpec
	network *sharedNetwork
	node    *kubelet.Node

	ctx       context.Context //nolint:containedctx // ended by Stop
	cancel    context.CancelFunc
	running   sync.WaitGroup
	listeners []net.Listener
}

func (k *localKubelet) start(ctx context.Context) (err error) {
	spec := k.spec
	if k.network, err = k.control.network(ctx, spec); err != nil {
		return err
	}
	if spec.Egress != "" {
		if err := k.serveEgress(); err != nil {
			return err
		}
	}
	serving, err := k.serving()
	if err != nil {
		return err
	}
	k.node, err = kubelet.Start(ctx, kubelet.Config{
		Name: spec.Name, Dir: spec.Dir, Root: spec.Root, Client: spec.Client, Network: k.network.Network, Images: k.control.images,
		Address: spec.Address, SandboxAddress: spec.PodAddress, Annotations: spec.Annotations, Taints: spec.Taints,
		KubernetesVersion: spec.Version, OSImage: spec.OSImage, Ready: kubelet.CNIConfigured(spec.Root), Domain: spec.Domain,
		Serving: serving,
	})
	if err != nil {
		return err
	}
	if spec.KubePrismPort != 0 {
		return k.serveKubePrism(ctx)
	}
	return nil
}

// serveEgress lets the API server reach pods: its egress selector dials this
// socket. One that an earlier boot left is removed.
func (k *localKubelet) serveEgress() error {
	if err := os.Remove(k.spec.Egress); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old egress socket: %w", err)
	}
	l, err := net.Listen("unix", k.spec.Egress)
	if err != nil {
		return fmt.Errorf("listen for the API server's connections to pods: %w", err)
	}
	k.listeners = append(k.listeners, l)
	k.running.Go(func() {
		if err := k.network.ServeEgress(k.ctx, l); err != nil && k.ctx.Err() == nil {
			k.spec.Logf("the API server's connections to pods: %v", err)
		}
	})
	return nil
}

// serveKubePrism listens where hostNetwork pods expect KubePrism.
func (k *localKubelet) serveKubePrism(ctx context.Context) error {
	l, err := k.node.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(k.spec.KubePrismPort)))
	if err != nil {
		return fmt.Errorf("listen for KubePrism: %w", err)
	}
	k.listeners = append(k.listeners, l)
	k.running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			k.running.Go(func() { k.forward(in) })
		}
	})
	return nil
}

// forward joins a connection with an API server's until one ends or the kubelet
// stops.
func (k *localKubelet) forward(in net.Conn) {
	defer func() { _ = in.Close() }()
	out, err := k.spec.DialAPI(k.ctx)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	stop := context.AfterFunc(k.ctx, func() { _, _ = in.Close(), out.Close() })
	defer stop()
	relay(in, out)
}

// Stop ends the pods and everything around them. An ended ctx means at once.
func (k *localKubelet) Stop(ctx context.Context) error {
	var err error
	if k.node != nil {
		err = k.node.Stop(ctx)
	}
	k.cancel()
	for _, l := range k.listeners {
		_ = l.Close()
	}
	k.running.Wait()
	if k.network != nil {
		k.control.releaseNetwork(k.spec.Cluster)
	}
	if err != nil {
		return fmt.Errorf("stop the kubelet of %s: %w", k.spec.Name, err)
	}
	return nil
}
