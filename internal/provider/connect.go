// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
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
