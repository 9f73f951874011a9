// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"context"
	"fmt"
)

// ports are the control plane's; those that were not asked for by number are
// held until the programs have bound them.
type ports struct {
	api, etcdClient, etcdPeer, controllerManager, scheduler port
}

func (c *ControlPlane) choosePorts(ctx context.Context) (_ *ports, err error) {
	p := &ports{}
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	for _, want := range []struct {
		what   string
		number int
		port   *port
	}{
		{"the API server", c.cfg.Port, &p.api},
		{"etcd's clients", c.cfg.Etcd.ClientPort, &p.etcdClient},
		{"etcd's peers", c.cfg.Etcd.PeerPort, &p.etcdPeer},
		{"kube-controller-manager", 0, &p.controllerManager},
		{"kube-scheduler", 0, &p.scheduler},
	} {
		want.port.addr = c.cfg.Address
		if want.number != 0 {
			if err := checkFree(ctx, c.cfg.Address, want.number); err != nil {
				return nil, fmt.Errorf("the port for %s: %w", want.what, err)
			}
			want.port.number = want.number
			continue
		}
		held, err := reserve(c.cfg.Address)
		if err != nil {
			return nil, fmt.Errorf("the port for %s: %w", want.what, err)
		}
		want.port.number, want.port.held = held.port, held
	}
	return p, nil
}

func (p *ports) release() {
	for _, port := range []port{p.api, p.etcdClient, p.etcdPeer, p.controllerManager, p.scheduler} {
		port.held.release()
	}
}
