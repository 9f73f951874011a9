// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// errEtcdNotRunning is the answer of the etcd calls before Bootstrap.
var errEtcdNotRunning = status.Error(codes.Unavailable, "etcd is not running on any control plane node")

// etcdPatience bounds a question to a single member.
const etcdPatience = 10 * time.Second

// etcdTLS is a client certificate of etcd's CA, as Talos makes for itself.
func (n *node) etcdTLS() (*tls.Config, error) {
	pair := n.cfg.Cluster().Etcd().CA()
	if pair == nil || len(pair.Key) == 0 {
		return nil, errors.New("the machine configuration has no key of the etcd CA")
	}
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(pair)
	if err != nil {
		return nil, fmt.Errorf("load the etcd CA: %w", err)
	}
	now := time.Now()
	client, err := x509.NewKeyPair(ca, x509.CommonName("talos"), x509.NotBefore(now.Add(-time.Minute)), x509.NotAfter(now.Add(apiCertTTL)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	if err != nil {
		return nil, fmt.Errorf("sign a client certificate with the etcd CA: %w", err)
	}
	pool := stdx509.NewCertPool()
	pool.AppendCertsFromPEM(pair.Crt)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{*client.Certificate}}, nil
}

// etcdClient connects to the given members, by default to all that run.
func (n *node) etcdClient(endpoints ...string) (*clientv3.Client, error) {
	if len(endpoints) == 0 {
		for _, m := range n.booter.fabric.controlPlane(n) {
			if url := m.etcdURL(); url != "" {
				endpoints = append(endpoints, url)
			}
		}
	}
	if len(endpoints) == 0 {
		return nil, errEtcdNotRunning
	}
	tlsConfig, err := n.etcdTLS()
	if err != nil {
		return nil, err
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: tlsConfig, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(endpoints, ", "), err)
	}
	return c, nil
}

// EtcdMemberList answers etcd's own list.
func (m *machined) EtcdMemberList(ctx context.Context, _ *machineapi.EtcdMemberListRequest) (*machineapi.EtcdMemberListResponse, error) {
	if err := m.controlPlaneOnly("member list"); err != nil {
		return nil, err
	}
	c, err := m.node.etcdClient()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	resp, err := c.MemberList(clientv3.WithRequireLeader(ctx))
	if err != nil {
		return nil, fmt.Errorf("list the etcd members: %w", err)
	}
	out := &machineapi.EtcdMembers{}
	for _, e := range resp.Members {
		out.LegacyMembers = append(out.LegacyMembers, e.Name)
		out.Members = append(out.Members, &machineapi.EtcdMember{
			Id: e.ID, Hostname: e.Name, PeerUrls: e.PeerURLs, ClientUrls: e.ClientURLs, IsLearner: e.IsLearner,
		})
	}
	return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{out}}, nil
}

// EtcdForfeitLeadership hands the leadership to another member if this node's
// has it.
func (m *machined) EtcdForfeitLeadership(ctx context.Context, _ *machineapi.EtcdForfeitLeadershipRequest) (*machineapi.EtcdForfeitLeadershipResponse, error) {
	if err := m.controlPlaneOnly("etcd forfeit leadership"); err != nil {
		return nil, err
	}
	to, err := m.node.etcdForfeit(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to forfeit leadership: %w", err)
	}
	return &machineapi.EtcdForfeitLeadershipResponse{Messages: []*machineapi.EtcdForfeitLeadership{{Member: to}}}, nil
}

// EtcdLeaveCluster takes this node's member out of the cluster and stops etcd.
func (m *machined) EtcdLeaveCluster(ctx context.Context, _ *machineapi.EtcdLeaveClusterRequest) (*machineapi.EtcdLeaveClusterResponse, error) {
	if err := m.controlPlaneOnly("etcd leave"); err != nil {
		return nil, err
	}
	if err := m.node.etcdLeave(ctx); err != nil {
		return nil, fmt.Errorf("failed to leave cluster: %w", err)
	}
	return &machineapi.EtcdLeaveClusterResponse{Messages: []*machineapi.EtcdLeaveCluster{{}}}, nil
}

// EtcdRemoveMemberByID takes any member out of the cluster.
func (m *machined) EtcdRemoveMemberByID(ctx context.Context, req *machineapi.EtcdRemoveMemberByIDRequest) (*machineapi.EtcdRemoveMemberByIDResponse, error) {
	if err := m.controlPlaneOnly("etcd remove member"); err != nil {
		return nil, err
	}
	c, err := m.node.etcdClient()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.MemberRemove(clientv3.WithRequireLeader(ctx), req.GetMemberId()); err != nil {
		if errors.Is(err, rpctypes.ErrMemberNotFound) {
			return nil, status.Error(codes.NotFound, err.Error())
		}
		return nil, fmt.Errorf("failed to remove member: %w", err)
	}
	return &machineapi.EtcdRemoveMemberByIDResponse{Messages: []*machineapi.EtcdRemoveMemberByID{{}}}, nil
}

// EtcdStatus answers the state of this node's member.
func (m *machined) EtcdStatus(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdStatusResponse, error) {
	if err := m.controlPlaneOnly("etcd status"); err != nil {
		return nil, err
	}
	url := m.node.etcdURL()
	if url == "" {
		return nil, errEtcdNotRunning
	}
	c, err := m.node.etcdClient(url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	s, err := c.Status(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("read the etcd status: %w", err)
	}
	return &machineapi.EtcdStatusResponse{Messages: []*machineapi.EtcdStatus{{MemberStatus: &machineapi.EtcdMemberStatus{
		ProtocolVersion: s.Version, StorageVersion: s.StorageVersion, DbSize: s.DbSize, DbSizeInUse: s.DbSizeInUse,
		Leader: s.Leader, RaftIndex: s.RaftIndex, RaftTerm: s.RaftTerm, RaftAppliedIndex: s.RaftAppliedIndex,
		Errors: s.Errors, IsLearner: s.IsLearner, MemberId: s.Header.GetMemberId(),
	}}}}, nil
}

// etcdForfeit moves the leadership away from this node and answers to whom; ""
// means that it was not here.
func (n *node) etcdForfeit(ctx context.Context) (string, error) {
	url := n.etcdURL()
	if url == "" {
		return "", errEtcdNotRunning
	}
	c, err := n.etcdClient(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	members, err := c.MemberList(clientv3.WithRequireLeader(ctx))
	if err != nil {
		return "", fmt.Errorf("list the etcd members: %w", err)
	}
	if len(members.Members) == 1 {
		return "", errors.New("cannot forfeit leadership, only one member")
	}
	s, err := c.Status(ctx, url)
	if err != nil {
		return "", fmt.Errorf("read the etcd status: %w", err)
	}
	self := s.Header.GetMemberId()
	if s.Leader != self {
		return "", nil
	}
	for _, other := range members.Members {
		if other.ID == self || other.IsLearner {
			continue
		}
		// the client talks to the leader alone, which is where MoveLeader has to go
		if _, err := c.MoveLeader(ctx, other.ID); err != nil {
			return "", fmt.Errorf("move the leadership to %s: %w", other.Name, err)
		}
		return other.Name, nil
	}
	return "", errors.New("no other voting member")
}

// etcdLeave removes this node's member, then ends the control plane here and
// drops the member's data, which is of no use any more.
func (n *node) etcdLeave(ctx context.Context) error {
	url := n.etcdURL()
	if url == "" {
		return errEtcdNotRunning
	}
	self, err := n.etcdMemberID(ctx, url)
	if err != nil {
		return err
	}
	var others []string
	for _, m := range n.booter.fabric.controlPlane(n) {
		if u := m.etcdURL(); m != n && u != "" {
			others = append(others, u)
		}
	}
	if len(others) == 0 {
		return errors.New("this is the last etcd member")
	}
	c, err := n.etcdClient(others...)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	// from here on the end of etcd is no failure of the control plane
	plane := n.detachPlane()
	if err := removeMember(ctx, c, self); err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
		n.attachPlane(plane)
		return fmt.Errorf("remove the etcd member %x: %w", self, err)
	}
	n.services.set("etcd", stateFinished, "Service finished successfully")
	// the caller's patience is a few seconds: the rest goes on behind the answer
	n.spawn(func(ctx context.Context) {
		if err := plane.Stop(ctx); err != nil {
			n.logf("stop the control plane after leaving etcd: %v", err)
		}
		if err := os.RemoveAll(filepath.Join(n.root(), etcdMemberPath)); err != nil {
			n.logf("remove the data of the etcd member: %v", err)
		}
	})
	return nil
}

// etcdMemberID asks this node's own member for its id.
func (n *node) etcdMemberID(ctx context.Context, url string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdPatience)
	defer cancel()
	c, err := n.etcdClient(url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	s, err := c.Status(ctx, url)
	if err != nil {
		return 0, fmt.Errorf("read the etcd status: %w", err)
	}
	return s.Header.GetMemberId(), nil
}

// publishEtcdMember shows this node's member id as a resource.
func (n *node) publishEtcdMember(ctx context.Context, url string) error {
	id, err := n.etcdMemberID(ctx, url)
	if err != nil {
		return err
	}
	return n.resources.setEtcdMember(ctx, id)
}

// etcdJoin adds this node to the etcd cluster of the others as a learner and
// answers etcd's --initial-cluster. An entry with this node's peer address that
// an earlier, interrupted start left is taken over.
func (n *node) etcdJoin(ctx context.Context, peerURL string) (string, error) {
	c, err := n.etcdClient()
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	list, err := c.MemberList(clientv3.WithRequireLeader(ctx))
	if err != nil {
		return "", fmt.Errorf("list the etcd members: %w", err)
	}
	members := list.Members
	if !slices.ContainsFunc(members, func(e *etcdserverpb.Member) bool { return slices.Contains(e.PeerURLs, peerURL) }) {
		added, err := c.MemberAddAsLearner(clientv3.WithRequireLeader(ctx), []string{peerURL})
		if err != nil {
			return "", fmt.Errorf("add the etcd member %s: %w", peerURL, err)
		}
		members = added.Members
	}
	var initial []string
	for _, e := range members {
		name := e.Name
		if slices.Contains(e.PeerURLs, peerURL) {
			name = n.hostname
		}
		for _, u := range e.PeerURLs {
			initial = append(initial, name+"="+u)
		}
	}
	return strings.Join(initial, ","), nil
}

// etcdPromote makes this node's member a voting one as soon as it has caught up,
// which the leader decides.
func (n *node) etcdPromote(ctx context.Context, peerURL string) error {
	return poll(ctx, 500*time.Millisecond, func(ctx context.Context) (bool, error) {
		c, err := n.etcdClient()
		if err != nil {
			return false, err
		}
		defer func() { _ = c.Close() }()
		list, err := c.MemberList(clientv3.WithRequireLeader(ctx))
		if err != nil {
			return false, fmt.Errorf("list the etcd members: %w", err)
		}
		for _, e := range list.Members {
			if !slices.Contains(e.PeerURLs, peerURL) {
				continue
			}
			if !e.IsLearner {
				return true, nil
			}
			if _, err := c.MemberPromote(ctx, e.ID); err != nil {
				return false, fmt.Errorf("promote the etcd member %x: %w", e.ID, err)
			}
			return true, nil
		}
		return false, fmt.Errorf("the etcd cluster has no member at %s", peerURL)
	})
}

// removeMember removes a member and tries again while etcd calls itself unhealthy,
// which it does as long as its members have not been connected for some seconds.
// Talos does the same (v1.13, internal/pkg/etcd, LeaveCluster).
func removeMember(ctx context.Context, c *clientv3.Client, id uint64) error {
	for {
		_, err := c.MemberRemove(clientv3.WithRequireLeader(ctx), id)
		if !errors.Is(err, rpctypes.ErrUnhealthy) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}
