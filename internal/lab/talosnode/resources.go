// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

// resources is what a node shows through the COSI state API (`talosctl get`):
// those resources of a real node that say something about a simulated one.
type resources struct {
	state state.State
}

// newResources makes the empty state with its namespaces and resource
// definitions, which the access policy and `talosctl get` read.
func newResources(ctx context.Context) (*resources, error) {
	st := state.WrapCore(namespaced.NewState(inmem.Build))
	namespaces := registry.NewNamespaceRegistry(st)
	if err := namespaces.RegisterDefault(ctx); err != nil {
		return nil, fmt.Errorf("register the default namespaces: %w", err)
	}
	for _, ns := range []resource.Namespace{
		v1alpha1.NamespaceName, config.NamespaceName, network.NamespaceName, cluster.NamespaceName, k8s.NamespaceName, etcd.NamespaceName,
	} {
		if err := namespaces.Register(ctx, ns, ns); err != nil {
			return nil, fmt.Errorf("register namespace %s: %w", ns, err)
		}
	}
	definitions := registry.NewResourceRegistry(st)
	if err := definitions.RegisterDefault(ctx); err != nil {
		return nil, fmt.Errorf("register the default resources: %w", err)
	}
	for _, r := range []meta.ResourceWithRD{
		&runtime.PlatformMetadata{}, &runtime.MachineStatus{}, &runtime.Version{}, &v1alpha1.Service{},
		&config.MachineConfig{}, &config.MachineType{},
		&network.HostnameStatus{}, &network.NodeAddress{}, &network.AddressStatus{}, &network.Status{}, &timeres.Status{},
		&cluster.Identity{}, &cluster.Member{},
		&k8s.Nodename{}, &k8s.NodeIP{}, &k8s.NodeStatus{}, &etcd.Member{},
	} {
		if err := definitions.Register(ctx, r); err != nil {
			return nil, fmt.Errorf("register resource %s: %w", r.ResourceDefinition().Type, err)
		}
	}
	return &resources{state: st}, nil
}

// accessPolicy is Talos's (internal/app/resources/access.go): nothing may be
// written, and what is sensitive asks for os:admin.
func (r *resources) accessPolicy(ctx context.Context, access state.Access) error {
	if !access.Verb.Readonly() {
		return status.Error(codes.PermissionDenied, "write access is not allowed")
	}
	rd, err := safe.StateGet[*meta.ResourceDefinition](ctx, r.state, resource.NewMetadata(
		meta.NamespaceName, meta.ResourceDefinitionType, strings.ToLower(access.ResourceType), resource.VersionUndefined))
	if err != nil {
		if state.IsNotFoundError(err) {
			return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", access.ResourceType)
		}
		return err
	}
	if rd.TypedSpec().Sensitivity == meta.Sensitive && !rolesOf(ctx).Includes(role.Admin) {
		return errNotAuthorized
	}
	return nil
}

// put creates a resource or replaces what is there.
func (r *resources) put(ctx context.Context, res resource.Resource) error {
	err := r.state.Create(ctx, res)
	if state.IsConflictError(err) {
		var old resource.Resource
		if old, err = r.state.Get(ctx, res.Metadata()); err == nil {
			res.Metadata().SetVersion(old.Metadata().Version())
			err = r.state.Update(ctx, res)
		}
	}
	if err != nil {
		return fmt.Errorf("set resource %s: %w", res.Metadata(), err)
	}
	return nil
}

// remove drops a resource that may not be there.
func (r *resources) remove(ctx context.Context, res resource.Resource) error {
	if err := r.state.Destroy(ctx, res.Metadata()); err != nil && !state.IsNotFoundError(err) {
		return fmt.Errorf("drop resource %s: %w", res.Metadata(), err)
	}
	return nil
}

// describe fills in everything that is known when a node boots.
func (r *resources) describe(ctx context.Context, n *node) error {
	md := runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID)
	*md.TypedSpec() = runtime.PlatformMetadataSpec{
		Platform:     "nocloud",
		Hostname:     n.seed.MetaData.hostname(),
		InstanceID:   n.seed.MetaData.InstanceID,
		InstanceType: n.seed.MetaData.InstanceType,
		ProviderID:   n.seed.MetaData.ProviderID,
		Region:       n.seed.MetaData.Region,
		Zone:         n.seed.MetaData.Zone,
		InternalDNS:  n.seed.MetaData.InternalDNS,
		ExternalDNS:  n.seed.MetaData.ExternalDNS,
	}
	host := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
	short, domain, _ := strings.Cut(n.hostname, ".")
	*host.TypedSpec() = network.HostnameStatusSpec{Hostname: short, Domainname: domain}
	version := runtime.NewVersion()
	*version.TypedSpec() = runtime.VersionSpec{Name: "Talos", Version: n.talosVersion()}
	kind := config.NewMachineType()
	kind.SetMachineType(n.cfg.Machine().Type())
	ready := network.NewStatus(network.NamespaceName, network.StatusID)
	*ready.TypedSpec() = network.StatusSpec{AddressReady: true, ConnectivityReady: true, HostnameReady: true, EtcFilesReady: true}
	clock := timeres.NewStatus()
	*clock.TypedSpec() = timeres.StatusSpec{Synced: true}
	identity := cluster.NewIdentity(cluster.NamespaceName, cluster.LocalIdentity)
	*identity.TypedSpec() = cluster.IdentitySpec{NodeID: n.identity}
	nodename := k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID)
	*nodename.TypedSpec() = k8s.NodenameSpec{Nodename: n.nodeName()}
	nodeIP := k8s.NewNodeIP(k8s.NamespaceName, k8s.KubeletID)
	nodeIP.TypedSpec().Addresses = []netip.Addr{n.address()}
	all := []resource.Resource{md, host, version, kind, ready, clock, identity, nodename, nodeIP, config.NewMachineConfig(n.cfg)}
	for _, id := range []string{network.NodeAddressDefaultID, network.NodeAddressCurrentID, network.NodeAddressAccumulativeID, network.NodeAddressRoutedID} {
		a := network.NewNodeAddress(network.NamespaceName, id)
		a.TypedSpec().Addresses = n.addrs
		if id == network.NodeAddressDefaultID {
			a.TypedSpec().Addresses = n.addrs[:1]
		}
		all = append(all, a)
	}
	for _, p := range n.addrs {
		a := network.NewAddressStatus(network.NamespaceName, network.AddressID("eth0", p))
		*a.TypedSpec() = network.AddressStatusSpec{Address: p, LinkName: "eth0"}
		all = append(all, a)
	}
	var errs []error
	for _, res := range all {
		errs = append(errs, r.put(ctx, res))
	}
	return errors.Join(errs...)
}

// setStage publishes how far the machine is.
func (r *resources) setStage(ctx context.Context, stage runtime.MachineStage, ready bool) error {
	s := runtime.NewMachineStatus()
	s.TypedSpec().Stage = stage
	s.TypedSpec().Status.Ready = ready
	return r.put(ctx, s)
}

// setService mirrors a service's state.
func (r *resources) setService(ctx context.Context, id string, s service) error {
	svc := v1alpha1.NewService(id)
	*svc.TypedSpec() = v1alpha1.ServiceSpec{Running: s.state == stateRunning, Healthy: s.healthy, Unknown: s.unknown}
	if s.state != stateRunning {
		return r.remove(ctx, svc)
	}
	return r.put(ctx, svc)
}

// setEtcdMember publishes this node's etcd member id; 0 drops it.
func (r *resources) setEtcdMember(ctx context.Context, id uint64) error {
	m := etcd.NewMember(etcd.NamespaceName, etcd.LocalMemberID)
	if id == 0 {
		return r.remove(ctx, m)
	}
	m.TypedSpec().MemberID = etcd.FormatMemberID(id)
	return r.put(ctx, m)
}

// setMembers publishes the nodes of the cluster as Talos's discovery would.
func (r *resources) setMembers(ctx context.Context, nodes []*node) error {
	wanted := map[string]bool{}
	var errs []error
	for _, n := range nodes {
		m := cluster.NewMember(cluster.NamespaceName, shortHostname(n.hostname))
		*m.TypedSpec() = cluster.MemberSpec{
			NodeID: n.identity, Hostname: n.hostname, MachineType: n.cfg.Machine().Type(),
			OperatingSystem: "Talos (" + n.talosVersion() + ")", Addresses: []netip.Addr{n.address()},
		}
		if m.TypedSpec().MachineType.IsControlPlane() {
			m.TypedSpec().ControlPlane = &cluster.ControlPlane{APIServerPort: n.cfg.Cluster().LocalAPIServerPort()}
		}
		wanted[m.Metadata().ID()] = true
		errs = append(errs, r.put(ctx, m))
	}
	have, err := safe.StateListAll[*cluster.Member](ctx, r.state)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("list the members: %w", err))...)
	}
	for m := range have.All() {
		if !wanted[m.Metadata().ID()] {
			errs = append(errs, r.remove(ctx, m))
		}
	}
	return errors.Join(errs...)
}
