// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

// machined answers the calls of the machine API. apid alone talks to it. Calls
// that nobody in this project makes answer Unimplemented.
type machined struct {
	machineapi.UnimplementedMachineServiceServer
	node   *node
	server *grpc.Server
	listen *bufconn.Listener
}

// startMachined serves the machine API of a node on an in-memory connection.
func startMachined(n *node) *machined {
	m := &machined{node: n, listen: bufconn.Listen(1 << 20)}
	m.server = grpc.NewServer(
		grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize),
		grpc.UnaryInterceptor(authorizeUnary),
		grpc.StreamInterceptor(authorizeStream))
	machineapi.RegisterMachineServiceServer(m.server, m)
	filtered := state.WrapCore(state.Filter(n.resources.state, n.resources.accessPolicy))
	cosiv1alpha1.RegisterStateServer(m.server, cosiserver.NewState(filtered))
	go func() {
		// Serve ends with ErrServerStopped when stop is called
		_ = m.server.Serve(m.listen)
	}()
	return m
}

func (m *machined) stop() { m.server.Stop() }

// controlPlaneOnly is Talos's answer on a worker (machinehelper.CheckControlplane).
func (m *machined) controlPlaneOnly(call string) error {
	if !m.node.isControlPlane() {
		return status.Errorf(codes.Unimplemented, "%s is only available on control plane nodes", call)
	}
	return nil
}

// Version answers the Talos version of the boot disk's image.
func (m *machined) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{{
		Version:  &machineapi.VersionInfo{Tag: m.node.talosVersion(), Os: "linux", Arch: "amd64"},
		Platform: &machineapi.PlatformInfo{Name: "nocloud", Mode: cloudMode{}.String()},
		Features: &machineapi.FeaturesInfo{Rbac: true},
	}}}, nil
}

// Hostname answers the node's name.
func (m *machined) Hostname(context.Context, *emptypb.Empty) (*machineapi.HostnameResponse, error) {
	return &machineapi.HostnameResponse{Messages: []*machineapi.Hostname{{Hostname: m.node.hostname}}}, nil
}

// ServiceList answers every system service with its state and health.
func (m *machined) ServiceList(context.Context, *emptypb.Empty) (*machineapi.ServiceListResponse, error) {
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{{Services: m.node.services.list()}}}, nil
}

// Events sends an empty event as a greeting, then what the request asks for.
func (m *machined) Events(req *machineapi.EventsRequest, stream machineapi.MachineService_EventsServer) error {
	hello, err := newEvent("", req.GetWithActorId(), nil)
	if err != nil {
		return err
	}
	if err := stream.Send(hello); err != nil {
		return err
	}
	return m.node.events.follow(stream.Context(), req, stream.Send)
}

// List lists files below the node's root folder. A missing root is the call's
// error, which CACPPT reads as "not bootstrapped" for /var/lib/etcd/member.
func (m *machined) List(req *machineapi.ListRequest, stream machineapi.MachineService_ListServer) error {
	root, err := os.OpenRoot(m.node.root())
	if err != nil {
		return fmt.Errorf("open the node's root: %w", err)
	}
	defer func() { _ = root.Close() }()
	start := path.Clean("/" + req.GetRoot())
	name := strings.TrimPrefix(start, "/")
	if name == "" {
		name = "."
	}
	if _, err := root.Stat(name); err != nil {
		return fmt.Errorf("stat %s: %w", start, innerError(err))
	}
	depth := 1
	if req.GetRecurse() {
		depth = int(req.GetRecursionDepth())
	}
	return fs.WalkDir(root.FS(), name, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(name, p)
		info := &machineapi.FileInfo{Name: path.Join("/", p), RelativeName: rel}
		if err != nil {
			info.Error = innerError(err).Error()
			return stream.Send(info)
		}
		if fi, err := d.Info(); err == nil {
			info.Size, info.Mode, info.Modified, info.IsDir = fi.Size(), uint32(fi.Mode()), fi.ModTime().Unix(), fi.IsDir()
		}
		if err := stream.Send(info); err != nil {
			return err
		}
		if d.IsDir() && rel != "." && depth > 0 && strings.Count(rel, "/")+1 >= depth {
			return fs.SkipDir
		}
		return nil
	})
}

// innerError drops the path of the simulating host from an error.
func innerError(err error) error {
	if pe, ok := err.(*fs.PathError); ok { //nolint:errorlint // only the outermost names the path
		return pe.Err
	}
	return err
}

// Bootstrap makes this node the first member of a new etcd cluster.
func (m *machined) Bootstrap(_ context.Context, req *machineapi.BootstrapRequest) (*machineapi.BootstrapResponse, error) {
	if err := m.controlPlaneOnly("bootstrap"); err != nil {
		return nil, err
	}
	if req.GetRecoverEtcd() {
		return nil, status.Error(codes.Unimplemented, "the simulated node does not recover etcd from a snapshot")
	}
	if err := m.node.bootstrap(); err != nil {
		return nil, err
	}
	return &machineapi.BootstrapResponse{Messages: []*machineapi.Bootstrap{{}}}, nil
}

// Reboot, Shutdown and Reset answer at once and act afterwards, as Talos does.

// Reboot starts the node again with what is on its disk.
func (m *machined) Reboot(context.Context, *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	actor := uuid.NewString()
	go m.node.restart("reboot", nil)
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{ActorId: actor}}}, nil
}

// Shutdown powers the node off.
func (m *machined) Shutdown(context.Context, *machineapi.ShutdownRequest) (*machineapi.ShutdownResponse, error) {
	actor := uuid.NewString()
	go m.node.powerOff("shutdown", nil)
	return &machineapi.ShutdownResponse{Messages: []*machineapi.Shutdown{{ActorId: actor}}}, nil
}

// Reset leaves etcd when asked to be graceful, wipes the node's disk and powers
// off or starts again.
func (m *machined) Reset(ctx context.Context, req *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	actor := uuid.NewString()
	if req.GetGraceful() && m.node.isControlPlane() && m.node.services.running("etcd") {
		if err := m.node.etcdLeave(ctx); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "leave etcd before the reset: %v", err)
		}
	}
	if req.GetReboot() {
		go m.node.restart("reset", m.node.wipe)
	} else {
		go m.node.powerOff("reset", m.node.wipe)
	}
	return &machineapi.ResetResponse{Messages: []*machineapi.Reset{{ActorId: actor}}}, nil
}

// Kubeconfig answers a gzipped tar archive with an administrator's kubeconfig.
func (m *machined) Kubeconfig(_ *emptypb.Empty, stream machineapi.MachineService_KubeconfigServer) error {
	if err := m.controlPlaneOnly("kubeconfig"); err != nil {
		return err
	}
	kubeconfig, err := m.node.adminKubeconfig()
	if err != nil {
		return fmt.Errorf("make the administrator's kubeconfig: %w", err)
	}
	var archive bytes.Buffer
	zw := gzip.NewWriter(&archive)
	tw := tar.NewWriter(zw)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "kubeconfig", Size: int64(len(kubeconfig)), ModTime: time.Now(), Mode: 0o600}); err != nil {
		return err
	}
	if _, err := tw.Write(kubeconfig); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	if err := zw.Close(); err != nil {
		return err
	}
	return stream.Send(&common.Data{Bytes: archive.Bytes()})
}

// GenerateClientConfiguration makes a talosconfig with the roles asked for.
func (m *machined) GenerateClientConfiguration(_ context.Context, req *machineapi.GenerateClientConfigurationRequest) (*machineapi.GenerateClientConfigurationResponse, error) {
	if err := m.controlPlaneOnly("generate client configuration"); err != nil {
		return nil, err
	}
	ttl := req.GetCrtTtl().AsDuration()
	if ttl <= 0 {
		return nil, status.Error(codes.InvalidArgument, "crt_ttl should be positive")
	}
	roles, _ := role.Parse(req.GetRoles())
	ca := m.node.cfg.Machine().Security().IssuingCA()
	cert, err := secrets.NewAdminCertificateAndKey(time.Now(), ca, roles, ttl)
	if err != nil {
		return nil, fmt.Errorf("make a client certificate: %w", err)
	}
	name := m.node.cfg.Cluster().Name()
	if r := roles.Strings(); len(r) == 1 {
		name = strings.TrimPrefix(r[0], role.Prefix) + "@" + name
	}
	raw, err := clientconfig.NewConfig(name, nil, ca.Crt, cert).Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode a talosconfig: %w", err)
	}
	return &machineapi.GenerateClientConfigurationResponse{Messages: []*machineapi.GenerateClientConfiguration{
		{Ca: ca.Crt, Crt: cert.Crt, Key: cert.Key, Talosconfig: raw},
	}}, nil
}
