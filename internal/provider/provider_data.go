// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

// errConfigurationUnknown says that part of the provider block is not known
// yet, which is normal at plan time: the block may use values of resources of
// the same apply. Read answers it with the prior state and one warning.
var errConfigurationUnknown = errors.New("the provider's configuration is not known yet")

// providerData is what Configure hands to resources and data sources. Nothing
// in it was dialled yet.
type providerData struct {
	version  string
	proxmox  types.Object
	clusters map[string]clusterEntry
	// clustersUnknown says that the map itself is not known yet.
	clustersUnknown bool
	// registries are the credentials for chart registries and repositories.
	registries registries
	// backupPassphrase encrypts backups without recipients; empty means none.
	backupPassphrase string
	// backupPassphraseUnknown says that it is not known yet.
	backupPassphraseUnknown bool
	// stateDir is the folder of local ephemeral clusters; empty means the default.
	stateDir string
	// stateDirUnknown says that state_dir is not known yet.
	stateDirUnknown bool
	// ephemerals makes, finds and retires ephemeral clusters.
	ephemerals bootstrap.Manager
	// waking is held while one of them is started again.
	waking sync.Mutex

	connectOnce sync.Once
	connection  proxmoxConnection
	connectErr  error

	clientOnce sync.Once
	client     *proxmox.Client
	clientErr  error
}

func newProviderData(ctx context.Context, version string, model providerModel) (*providerData, diag.Diagnostics) {
	clusters, diags := clusterEntries(ctx, model.Clusters)
	data := &providerData{
		version:         version,
		proxmox:         model.Proxmox,
		clusters:        clusters,
		clustersUnknown: model.Clusters.IsUnknown(),
		stateDir:        model.StateDir.ValueString(),
		stateDirUnknown: model.StateDir.IsUnknown(),

		backupPassphraseUnknown: model.BackupPassphrase.IsUnknown(),
	}
	var err error
	if data.backupPassphrase, err = backupPassphrase(model.BackupPassphrase); err != nil {
		diags.AddError("Unable to use the passphrase of backups", sentence(err.Error()))
	}
	var found diag.Diagnostics
	data.registries, found = registriesFrom(ctx, model.Registries)
	diags.Append(found...)
	if data.stateDir == "" && !data.stateDirUnknown {
		data.stateDir = os.Getenv("CAPI_STATE_DIR")
	}
	return data, diags
}

// proxmoxConnection answers where Proxmox VE is and as whom to work there. It
// answers errConfigurationUnknown at a plan that does not know it yet.
func (d *providerData) proxmoxConnection(ctx context.Context) (proxmoxConnection, error) {
	d.connectOnce.Do(func() { d.connection, d.connectErr = newProxmoxConnection(ctx, d.proxmox) })
	return d.connection, d.connectErr
}

// resolveAccess replaces the name of an entry of the provider's clusters map by
// what the entry says; other access values pass unchanged.
func (d *providerData) resolveAccess(access kube.Access) (kube.Access, error) {
	if access.ClusterName == "" {
		return access, nil
	}
	if d.clustersUnknown {
		return kube.Access{}, errConfigurationUnknown
	}
	entry, ok := d.clusters[access.ClusterName]
	if !ok {
		return kube.Access{}, fmt.Errorf("the provider's clusters map has no entry %q", access.ClusterName)
	}
	if entry.unknown {
		return kube.Access{}, errConfigurationUnknown
	}
	resolved := entry.access
	resolved.UID = access.UID
	return resolved, nil
}

// configuredData takes the provider data out of a resource's Configure request.
// It answers nil while Terraform validates without a configured provider.
func configuredData(req resource.ConfigureRequest, resp *resource.ConfigureResponse) *providerData {
	data, err := providerDataOf(req.ProviderData)
	if err != nil {
		resp.Diagnostics.AddError("Unable to configure the resource", err.Error())
	}
	return data
}

// providerDataOf takes the provider data out of what a Configure request holds;
// nil stays nil.
func providerDataOf(given any) (*providerData, error) {
	if given == nil {
		return nil, nil // during a validation
	}
	data, ok := given.(*providerData)
	if !ok {
		return nil, fmt.Errorf("the provider handed over %T. This is a defect of the provider; please report it", given)
	}
	return data, nil
}
