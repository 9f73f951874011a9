// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

// foundHome is where a cluster's objects are, and which of the homes that is.
type foundHome struct {
	home cluster.Home
	kind string
}

func (r *managementClusterResource) bootstrapHome(ctx context.Context, m *managementClusterModel) (cluster.Home, error) {
	access, known, diags := accessFrom(ctx, m.Bootstrap)
	if diags.HasError() || !known {
		return cluster.Home{}, errors.New("how the bootstrap cluster is reached is not known")
	}
	client, err := r.data.connect(ctx, access)
	if err != nil {
		return cluster.Home{}, fmt.Errorf("reaching the bootstrap cluster: %w", err)
	}
	return cluster.Home{Client: client, Namespace: m.Namespace.ValueString(), Name: m.Name.ValueString()}, nil
}

func (r *managementClusterResource) selfHome(ctx context.Context, m *managementClusterModel) (cluster.Home, error) {
	client, err := r.data.connect(ctx, kube.Access{Kubeconfig: []byte(m.Kubeconfig.ValueString())})
	if err != nil {
		return cluster.Home{}, fmt.Errorf("reaching the management cluster itself: %w", err)
	}
	return cluster.Home{Client: client, Namespace: m.Namespace.ValueString(), Name: m.Name.ValueString()}, nil
}

// findHome looks for the cluster's objects in the cluster itself and in the
// bootstrap cluster. A bootstrap cluster that is gone proves nothing by itself:
// it may have been lost before the pivot. So the answer is "absent" only when a
// home that is there says so and none other has it.
func (r *managementClusterResource) findHome(ctx context.Context, m *managementClusterModel) (foundHome, error) {
	var homes []cluster.Home
	var kinds []string
	var unknown []error
	add := func(kind string, home cluster.Home, err error) {
		if err != nil {
			unknown = append(unknown, err)
			return
		}
		homes, kinds = append(homes, home), append(kinds, kind)
	}
	if m.Kubeconfig.ValueString() != "" {
		home, err := r.selfHome(ctx, m)
		add(homeSelf, home, err)
	}
	home, err := r.bootstrapHome(ctx, m)
	add(homeBootstrap, home, err)
	found, _, err := cluster.FindHome(ctx, homes...)
	switch {
	case err == nil:
		for i := range homes {
			if found.Client == homes[i].Client {
				return foundHome{home: *found, kind: kinds[i]}, nil
			}
		}
	case kube.IsAbsent(err) && len(unknown) > 0:
		// errors.New drops the proof: what cannot be asked is unknown, not absent.
		return foundHome{}, errors.New(errors.Join(unknown...).Error())
	}
	return foundHome{}, err
}

// findHomeAwake is findHome for an apply, which starts a stopped bootstrap cluster
// again unless the cluster has left it.
func (r *managementClusterResource) findHomeAwake(ctx context.Context, m *managementClusterModel, report progress.Reporter) (foundHome, error) {
	if m.Home.ValueString() != homeSelf {
		if err := r.data.awake(ctx, m.Bootstrap, report); err != nil {
			return foundHome{}, err
		}
	}
	return r.findHome(ctx, m)
}

// Read refreshes what the cluster's home tells. It drops the resource only when
// the home proves that the Cluster is gone; a home that cannot be reached leaves
// the prior state with a warning.
func (r *managementClusterResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var state managementClusterModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	timeout, diags := state.Timeouts.Read(ctx, managementClusterTimes.Read)
	resp.Diagnostics.Append(diags...)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp.Diagnostics.Append(resp.Identity.Set(ctx, state.identity())...)
	found, err := r.findHome(ctx, &state)
	if err == nil {
		err = r.refresh(ctx, &state, found)
	}
	switch {
	case kube.IsAbsent(err):
		resp.State.RemoveResource(ctx)
		return
	case err != nil:
		failure{verb: "read", thing: state.thing(), cause: err, exists: "the state is kept as it was: what cannot be asked is unknown, not gone"}.warn(&resp.Diagnostics)
		return
	}
	resp.Diagnostics.Append(state.warnOfExpiry(time.Now())...)
	if moving, err := found.moving(ctx); err == nil && !moving {
		resp.Diagnostics.Append(state.refreshDrift(ctx, found.home)...)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
}

// moving says whether an interrupted pivot holds the cluster: what differs from
// the manifest meanwhile is the pivot's, and the apply finishes that first.
func (f foundHome) moving(ctx context.Context) (bool, error) {
	object, err := f.home.Cluster(ctx)
	return err == nil && cluster.Moving(object), err
}

func (r *managementClusterResource) refresh(ctx context.Context, state *managementClusterModel, found foundHome) error {
	object, err := found.home.Cluster(ctx)
	if err != nil {
		return err
	}
	state.Home = types.StringValue(found.kind)
	state.ControlPlaneEndpoint = endpointOf(object.Spec.ControlPlaneEndpoint.Host, object.Spec.ControlPlaneEndpoint.Port)
	machines, err := found.home.Machines(ctx)
	if err != nil {
		return err
	}
	if diags := state.setMachines(ctx, machines); diags.HasError() {
		return errors.New(diags[0].Detail())
	}
	if state.Phase.ValueString() != phaseReady {
		return nil
	}
	// The mark "finished" is written when the state holds the resource for sure:
	// until then a run that lost its state may take the cluster over.
	if object.Annotations[cluster.FinishedAnnotation] != "true" && object.Annotations[cluster.InstanceAnnotation] == state.Instance.ValueString() && !state.Instance.IsNull() {
		if err := found.home.Finish(ctx, state.Instance.ValueString()); err != nil {
			return err
		}
	}
	return r.refreshCredentials(ctx, state, found)
}

// refreshCredentials takes over what the providers rotated. Secrets that are
// missing for the moment change nothing.
func (r *managementClusterResource) refreshCredentials(ctx context.Context, state *managementClusterModel, found foundHome) error {
	credentials, err := found.home.Credentials(ctx)
	if kube.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	access, _, diags := accessFrom(ctx, state.Access)
	if diags.HasError() {
		return errors.New(diags[0].Detail())
	}
	if access.UID == "" {
		if access.UID, err = r.uid(ctx, credentials.Kubeconfig); err != nil {
			return err
		}
	}
	state.Kubeconfig = textOrNull(string(credentials.Kubeconfig))
	if !talos.TalosconfigStillGood([]byte(state.Talosconfig.ValueString()), credentials.Talosconfig, time.Now()) {
		state.Talosconfig = textOrNull(string(credentials.Talosconfig))
	}
	state.setExpiry()
	state.Access = accessObject(kube.Access{Kubeconfig: credentials.Kubeconfig, UID: access.UID})
	return nil
}

func (r *managementClusterResource) uid(ctx context.Context, kubeconfig []byte) (string, error) {
	client, err := r.data.connect(ctx, kube.Access{Kubeconfig: kubeconfig})
	if err != nil {
		return "", err
	}
	return client.UID(ctx)
}

// finish writes what a creation or an update came to into the model.
func (r *managementClusterResource) finish(ctx context.Context, m *managementClusterModel, home cluster.Home, created *cluster.Created) diag.Diagnostics {
	var diags diag.Diagnostics
	uid, err := r.uid(ctx, created.Credentials.Kubeconfig)
	if err == nil {
		diags.Append(m.set(ctx, created.Credentials, created.Machines, uid)...)
		var object, readErr = home.Cluster(ctx)
		err = readErr
		if err == nil {
			m.ControlPlaneEndpoint = endpointOf(object.Spec.ControlPlaneEndpoint.Host, object.Spec.ControlPlaneEndpoint.Port)
		}
	}
	if err != nil {
		failure{verb: "finish", thing: m.thing(), cause: err, next: untaintAdvice("capi_management_cluster")}.addTo(&diags)
		m.nothingMadeYet()
		return diags
	}
	m.Phase = types.StringValue(phaseReady)
	m.Drift = types.StringNull()
	m.SecretsWO = types.StringNull()
	return diags
}

func endpointOf(host string, port int32) types.String {
	if host == "" {
		return types.StringNull()
	}
	return types.StringValue(fmt.Sprintf("https://%s:%d", host, port))
}
