// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

// connect answers a client for the cluster that access means; nothing is dialled
// yet. It answers errConfigurationUnknown where the provider block is not known,
// and an error for which [kube.IsAbsent] holds for an ephemeral cluster that is
// proven not to be here.
func (d *providerData) connect(ctx context.Context, access kube.Access) (*kube.Client, error) {
	resolved, err := d.resolveAccess(access)
	if err != nil {
		return nil, err
	}
	connector := kube.Connector{Resolver: d.ephemerals}
	return connector.Client(ctx, resolved)
}

// reach answers a client for the cluster that an access object means, and the
// cluster's identity. It answers errConfigurationUnknown where the object is not
// known yet.
func (d *providerData) reach(ctx context.Context, cluster types.Object) (*kube.Client, string, error) {
	access, known, diags := accessFrom(ctx, cluster)
	if err := firstError(diags); err != nil {
		return nil, "", err
	}
	if !known {
		return nil, "", errConfigurationUnknown
	}
	client, err := d.connect(ctx, access)
	if err != nil {
		return nil, "", err
	}
	uid, err := client.UID(ctx)
	return client, uid, err
}

// reachSame is reach for a resource that worked on a cluster before: it is an error
// that another one answers than the one with the UID was. done says what was done
// there.
func (d *providerData) reachSame(ctx context.Context, cluster types.Object, was types.String, done string) (*kube.Client, string, error) {
	client, uid, err := d.reach(ctx, cluster)
	if err == nil && given(was) && was.ValueString() != uid {
		return nil, "", fmt.Errorf("another cluster (%s) answers at %s than the one that %s (%s)", uid, client.Config.Host, done, was.ValueString())
	}
	return client, uid, err
}

// awake starts a stopped ephemeral cluster again before something is changed in
// it or with it. A refresh does not: it tells what it sees, and starts nothing.
// The error proves nothing about what the cluster holds.
func (d *providerData) awake(ctx context.Context, cluster types.Object, report progress.Reporter) error {
	access, known, diags := accessFrom(ctx, cluster)
	if err := firstError(diags); err != nil || !known || access.Ephemeral == nil {
		return err
	}
	// Of several resources that need the same cluster the first one starts it.
	d.waking.Lock()
	defer d.waking.Unlock()
	err := d.ephemerals.Wake(ctx, *access.Ephemeral, report)
	if kube.IsAbsent(err) {
		return errors.New(err.Error())
	}
	return err
}

// proxmoxClient answers the client of the Proxmox VE that the provider block
// names, the same for all: it holds the connections, and the ticket of a login
// that may be possible only once. Nothing is dialled yet. It answers
// errConfigurationUnknown at a plan that does not know the block.
func (d *providerData) proxmoxClient(ctx context.Context) (*proxmox.Client, error) {
	connection, err := d.proxmoxConnection(ctx)
	if err != nil {
		return nil, err
	}
	d.clientOnce.Do(func() {
		d.client, d.clientErr = proxmox.New(proxmox.Config{
			Endpoint: connection.Endpoint,
			TokenID:  connection.TokenID, TokenSecret: connection.TokenSecret,
			Username: connection.Username, Password: connection.Password, OTP: connection.OTP,
			CAPEM: connection.CAPEM, Fingerprint: connection.Fingerprint, Insecure: connection.Insecure,
			Timeouts:     connection.Timeouts,
			UserAgent:    "terraform-provider-capi/" + d.version,
			PollInterval: proxmoxPoll,
			Lease:        proxmoxLease,
		})
	})
	return d.client, d.clientErr
}
