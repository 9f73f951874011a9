// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/siderolabs/grpc-proxy/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// apid is the network face of a node's API, as on a real node a proxy of its
// own: it checks the client's certificate and passes the call on, to the machined
// of this node or, on a control plane node, to the apid of the nodes that the
// call names in its metadata. It is built on the library that Talos's apid uses.
type apid struct {
	server *grpc.Server
	pki    *apiPKI
	local  *localBackend
	// forwards says whether calls for other nodes are passed on, which only
	// control plane nodes do.
	forwards bool

	mu      sync.Mutex
	remotes map[string]*remoteBackend
}

// startAPID listens on the node's address and serves until stop.
func startAPID(addr netip.Addr, pki *apiPKI, machined *bufconn.Listener, forwards bool) (*apid, error) {
	conn, err := grpc.NewClient("passthrough:///machined",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return machined.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(constants.GRPCMaxMessageSize), grpc.ForceCodecV2(proxy.Codec())))
	if err != nil {
		return nil, fmt.Errorf("connect apid to machined: %w", err)
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(addr, constants.ApidPort).String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the Talos API: %w", err), conn.Close())
	}
	a := &apid{pki: pki, local: &localBackend{conn: conn}, forwards: forwards, remotes: map[string]*remoteBackend{}}
	a.server = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(pki.serverTLS())),
		grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize),
		grpc.ForceServerCodecV2(proxy.Codec()),
		grpc.StreamInterceptor(apidRoles),
		grpc.UnknownServiceHandler(proxy.TransparentHandler(a.direct, proxy.WithStreamedDetector(isStreamed))))
	go func() {
		// Serve ends with ErrServerStopped when stop is called
		_ = a.server.Serve(listener)
	}()
	return a, nil
}

// stop ends every call at once, as a machine that loses power does.
func (a *apid) stop() {
	a.server.Stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.remotes {
		_ = r.conn.Close()
	}
	_ = a.local.conn.Close()
}

// direct decides where a call goes; the rules are those of Talos's apid
// (internal/app/apid/pkg/director).
func (a *apid) direct(ctx context.Context, method string) (proxy.Mode, []proxy.Backend, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if _, proxied := md["proxyfrom"]; proxied {
		return proxy.One2One, []proxy.Backend{a.local}, nil
	}
	nodes, node := md.Get("nodes"), md.Get("node")
	if len(nodes) == 0 && len(node) == 0 {
		return proxy.One2One, []proxy.Backend{a.local}, nil
	}
	if !a.forwards {
		return proxy.One2One, nil, status.Error(codes.PermissionDenied, "no request forwarding")
	}
	if len(nodes) == 0 {
		if len(node) != 1 {
			return proxy.One2One, nil, status.Error(codes.InvalidArgument, "node metadata must be single-valued")
		}
		b, err := a.remote(node[0])
		if err != nil {
			return proxy.One2One, nil, status.Error(codes.Internal, err.Error())
		}
		return proxy.One2One, []proxy.Backend{b}, nil
	}
	if !slices.ContainsFunc(aggregated, func(prefix string) bool { return strings.HasPrefix(method, prefix) }) {
		return proxy.One2One, nil, status.Errorf(codes.InvalidArgument, "one-2-many proxying is not supported for method %s", method)
	}
	backends := make([]proxy.Backend, 0, len(nodes))
	for _, n := range nodes {
		b, err := a.remote(n)
		if err != nil {
			return proxy.One2Many, nil, status.Error(codes.Internal, err.Error())
		}
		backends = append(backends, b)
	}
	return proxy.One2Many, backends, nil
}

// aggregated are the services whose answers from several nodes can be joined.
var aggregated = []string{
	"/machine.MachineService/", "/cluster.ClusterService/", "/inspect.InspectService/", "/storage.StorageService/", "/time.TimeService/",
}

// streamed are the methods that answer with a stream (internal/app/apid/main.go).
var streamed = []string{
	"/machine.MachineService/Copy", "/machine.MachineService/DiskUsage", "/machine.MachineService/Dmesg",
	"/machine.MachineService/EtcdSnapshot", "/machine.MachineService/Events", "/machine.MachineService/ImageList",
	"/machine.MachineService/Kubeconfig", "/machine.MachineService/List", "/machine.MachineService/Logs",
	"/machine.MachineService/PacketCapture", "/machine.MachineService/Read", "/cluster.ClusterService/HealthCheck",
}

func isStreamed(method string) bool {
	return slices.Contains(streamed, method) || strings.HasSuffix(method, "Stream")
}

// remote is the backend for another node's apid, or for this one's own: a real
// apid too goes over the network to itself when a call names it.
func (a *apid) remote(target string) (*remoteBackend, error) {
	if _, _, err := net.SplitHostPort(target); target == "" || err == nil {
		return nil, fmt.Errorf("invalid target %q", target)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if b, ok := a.remotes[target]; ok {
		return b, nil
	}
	conn, err := grpc.NewClient(net.JoinHostPort(target, strconv.Itoa(constants.ApidPort)),
		grpc.WithTransportCredentials(credentials.NewTLS(a.pki.clientTLS())),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(constants.GRPCMaxMessageSize), grpc.ForceCodecV2(proxy.Codec())))
	if err != nil {
		return nil, fmt.Errorf("connect to the Talos API of %s: %w", target, err)
	}
	b := &remoteBackend{target: target, conn: conn}
	a.remotes[target] = b
	return b, nil
}

// forwardedContext is the context of the outgoing call: the caller's metadata
// with its roles added.
func forwardedContext(ctx context.Context) (context.Context, metadata.MD) {
	md, _ := metadata.FromIncomingContext(ctx)
	md = md.Copy()
	md.Set(constants.APIAuthzRoleMetadataKey, rolesOf(ctx).Strings()...)
	delete(md, ":authority")
	return ctx, md
}

// localBackend is this node's machined.
type localBackend struct{ conn *grpc.ClientConn }

func (b *localBackend) String() string { return "machined" }

func (b *localBackend) GetConnection(ctx context.Context, _ string) (context.Context, *grpc.ClientConn, error) {
	ctx, md := forwardedContext(ctx)
	return metadata.NewOutgoingContext(ctx, md), b.conn, nil
}

func (b *localBackend) AppendInfo(_ bool, resp []byte) ([]byte, error) { return resp, nil }
func (b *localBackend) BuildError(bool, error) ([]byte, error)         { return nil, nil }

// remoteBackend is an apid that is reached over the network.
type remoteBackend struct {
	target string
	conn   *grpc.ClientConn
}

func (b *remoteBackend) String() string { return b.target }

func (b *remoteBackend) GetConnection(ctx context.Context, _ string) (context.Context, *grpc.ClientConn, error) {
	from := "unknown"
	if in, ok := metadata.FromIncomingContext(ctx); ok && len(in.Get(":authority")) > 0 {
		from = in.Get(":authority")[0]
	}
	ctx, md := forwardedContext(ctx)
	md.Set("proxyfrom", from)
	delete(md, "nodes")
	delete(md, "node")
	return metadata.NewOutgoingContext(ctx, md), b.conn, nil
}

// AppendInfo writes the node's name into the metadata of its answer. A unary
// answer is a message with one repeated field (number 1) of replies, whose own
// field 1 is the metadata; a streamed one is the reply itself. Appending bytes of
// a field to an encoded message sets that field, so the reply's bytes are taken
// out, lengthened and put back (internal/app/apid/pkg/backend/apid.go).
func (b *remoteBackend) AppendInfo(streaming bool, resp []byte) ([]byte, error) {
	payload, err := proto.Marshal(&common.Empty{Metadata: &common.Metadata{Hostname: b.target}})
	if err != nil {
		return nil, fmt.Errorf("encode the metadata of an answer: %w", err)
	}
	if streaming {
		return append(resp, payload...), nil
	}
	number, kind, n := protowire.ConsumeTag(resp)
	if n < 0 {
		return nil, protowire.ParseError(n)
	}
	if number != 1 || kind != protowire.BytesType {
		return nil, fmt.Errorf("unexpected message format: field %d", number)
	}
	reply, m := protowire.ConsumeBytes(resp[n:])
	if m < 0 {
		return nil, protowire.ParseError(m)
	}
	out := protowire.AppendTag(nil, 1, protowire.BytesType)
	out = protowire.AppendBytes(out, slices.Concat(reply, payload))
	return append(out, resp[n+m:]...), nil
}

// BuildError makes a node's error part of the joint answer: any reply message
// can be read from one that holds metadata alone.
func (b *remoteBackend) BuildError(streaming bool, err error) ([]byte, error) {
	reply := &common.Empty{Metadata: &common.Metadata{Hostname: b.target, Error: err.Error(), Status: status.Convert(err).Proto()}}
	if streaming {
		return proto.Marshal(reply)
	}
	return proto.Marshal(&common.EmptyResponse{Messages: []*common.Empty{reply}})
}
