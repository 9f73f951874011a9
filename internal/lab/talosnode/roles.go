// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

var errNotAuthorized = status.Error(codes.PermissionDenied, "not authorized")

var (
	readers   = role.MakeSet(role.Admin, role.Operator, role.Reader)
	operators = role.MakeSet(role.Admin, role.Operator)
	backups   = role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup)
)

// rules say who may call what: the part of machined's table that the simulated
// node answers (internal/app/machined/pkg/system/services/machined.go of Talos).
// What is not named here asks for os:admin.
var rules = map[string]role.Set{
	machineapi.MachineService_EtcdMemberList_FullMethodName: backups,
	machineapi.MachineService_EtcdStatus_FullMethodName:     backups,
	machineapi.MachineService_EtcdSnapshot_FullMethodName:   role.MakeSet(role.Admin, role.Operator, role.EtcdBackup),
	machineapi.MachineService_Events_FullMethodName:         readers,
	machineapi.MachineService_Hostname_FullMethodName:       readers,
	machineapi.MachineService_List_FullMethodName:           readers,
	machineapi.MachineService_Logs_FullMethodName:           readers,
	machineapi.MachineService_Dmesg_FullMethodName:          readers,
	machineapi.MachineService_ServiceList_FullMethodName:    readers,
	machineapi.MachineService_Version_FullMethodName:        readers,
	machineapi.MachineService_Reboot_FullMethodName:         operators,
	machineapi.MachineService_Shutdown_FullMethodName:       operators,
	"/cosi.resource.State/Get":                              readers,
	"/cosi.resource.State/List":                             readers,
	"/cosi.resource.State/Watch":                            readers,
	"/time.TimeService/Time":                                readers,
}

type rolesKey struct{}

// rolesOf are the roles of a call's maker.
func rolesOf(ctx context.Context) role.Set {
	if r, ok := ctx.Value(rolesKey{}).(role.Set); ok {
		return r
	}
	return role.Zero
}

// rolesFromMetadata reads the roles that an apid passes on.
func rolesFromMetadata(ctx context.Context) (role.Set, bool) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get(constants.APIAuthzRoleMetadataKey)
	if len(values) == 0 {
		return role.Zero, false
	}
	roles, _ := role.Parse(values)
	return roles, true
}

// rolesFromCertificate reads the roles out of the organisation of the caller's
// certificate. An impersonator, which is what another node's apid is, speaks for
// the roles in its metadata.
func rolesFromCertificate(ctx context.Context) (role.Set, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return role.Zero, status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return role.Zero, status.Error(codes.Unauthenticated, "no client certificate")
	}
	roles, _ := role.Parse(info.State.PeerCertificates[0].Subject.Organization)
	if roles.Includes(role.Impersonator) {
		if others, ok := rolesFromMetadata(ctx); ok {
			return others, nil
		}
	}
	return roles, nil
}

// apidRoles puts the caller's roles into the context of everything that apid
// forwards.
func apidRoles(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	roles, err := rolesFromCertificate(stream.Context())
	if err != nil {
		return err
	}
	return handler(srv, &streamWithContext{ServerStream: stream, ctx: context.WithValue(stream.Context(), rolesKey{}, roles)})
}

// authorize is machined's check, by the roles that apid passed on.
func authorize(ctx context.Context, method string) (context.Context, error) {
	roles, _ := rolesFromMetadata(ctx)
	allowed, ok := rules[method]
	if !ok {
		allowed = role.MakeSet(role.Admin)
	}
	if !allowed.IncludesAny(roles) {
		return nil, errNotAuthorized
	}
	return context.WithValue(ctx, rolesKey{}, roles), nil
}

func authorizeUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := authorize(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func authorizeStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := authorize(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handler(srv, &streamWithContext{ServerStream: stream, ctx: ctx})
}

// streamWithContext is a stream whose handlers see more in the context.
type streamWithContext struct {
	grpc.ServerStream
	//nolint:containedctx // a gRPC stream is the context's carrier
	ctx context.Context
}

func (s *streamWithContext) Context() context.Context { return s.ctx }
