// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

// proxmoxPoll is the time between two looks at a running task of Proxmox VE.
// Tests shorten it.
var proxmoxPoll = time.Second

// proxmoxLease is how long what another run has begun is left to it; zero means
// the engine's default. Tests shorten it.
var proxmoxLease time.Duration

// keepAfter is how long after a Create its objects are marked as kept, where
// no refresh has done so before. By then Terraform has long written its state;
// a provider that is killed earlier leaves them to the next Create.
const keepAfter = 20 * time.Second

// refreshFailure tells a refresh that could not find out how things stand: an
// error where the login or a privilege is missing, which only the user can
// change, else a warning, and the state stays as it was.
func refreshFailure(f failure, diags *diag.Diagnostics) {
	if errors.Is(f.cause, proxmox.ErrDenied) {
		f.addTo(diags)
		return
	}
	f.exists = "unknown; the state keeps what was known before"
	f.warn(diags)
}

// lookAheadClient answers the client for what a plan asks beforehand, with a
// context of as much time as it has for that. The client is nil where there is
// none yet, and where the login takes a one-time password, which is for the apply.
func lookAheadClient(ctx context.Context, data *providerData) (*proxmox.Client, context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, lookAheadTimeout)
	if data == nil {
		return nil, ctx, cancel
	}
	connection, err := data.proxmoxConnection(ctx)
	if err != nil || connection.OTP != "" {
		return nil, ctx, cancel
	}
	client, err := data.proxmoxClient(ctx)
	if err != nil {
		return nil, ctx, cancel
	}
	return client, ctx, cancel
}

// foreseen tells what a plan has found out will go wrong, as a warning: something
// else in the same apply may put it right. What could not be found out is not
// told.
func foreseen(ctx context.Context, what string, err error) (diags diag.Diagnostics) {
	switch {
	case err == nil:
	case ctx.Err() != nil || errors.Is(err, proxmox.ErrUnreachable):
		tflog.Debug(ctx, "how things stand on Proxmox VE is not known", map[string]any{"error": err.Error()})
	default:
		diags.AddWarning(strings.TrimSuffix(sentence(what), "."), sentence(err.Error())+"\n\nThe apply will fail unless something in it puts that right first.")
	}
	return diags
}

// notOurs tells that something in the state bears the mark of another resource, or
// none, in a text of its own.
func notOurs(thing, where, instance string) failure {
	f := failure{
		verb: "tell whose it is:", thing: thing, exists: "it is read and changed here, but not deleted",
		cause: errors.New(where + " bears no mark of this resource"),
		next:  "where it is this resource's, change something of it here, which marks it again; else take it out of the state (terraform state rm)",
	}
	if instance != "" {
		f.cause = errors.New(where + " bears the mark of another resource: another state has taken it over or imported it")
		f.next = "where it is the other's, take it out of this state (terraform state rm) and give this resource another name"
	}
	return f
}

// keepLater runs keep some time after a Create, on a context of its own.
func keepLater(ctx context.Context, what string, keep func(context.Context) error) {
	ctx = context.WithoutCancel(ctx)
	time.AfterFunc(keepAfter, func() {
		ctx, cancel := context.WithTimeout(ctx, keepAfter)
		defer cancel()
		if err := keep(ctx); err != nil {
			tflog.Debug(ctx, "the mark of "+what+" was not changed to kept; the next refresh will do so", map[string]any{"error": err.Error()})
		}
	})
}
