// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// clusterObjectID is an import id that names an object on a cluster:
// <kubeconfig path or entry of the provider's clusters map>#namespace/name.
type clusterObjectID struct {
	Cluster, Namespace, Name string
}

func parseClusterObjectID(id string) (clusterObjectID, error) {
	cluster, object, ok := strings.Cut(id, "#")
	namespace, name, ok2 := strings.Cut(object, "/")
	if !ok || !ok2 || cluster == "" || namespace == "" || name == "" || strings.Contains(name, "/") {
		return clusterObjectID{}, fmt.Errorf("the import id %q is not of the form CLUSTER#NAMESPACE/NAME, where CLUSTER is the path of a kubeconfig file or an entry of the provider's clusters map", id)
	}
	return clusterObjectID{cluster, namespace, name}, nil
}

// access says how the id's cluster is reached: a file that exists or a text with
// a slash or dot is a path, anything else an entry of the clusters map.
func (i clusterObjectID) access() kube.Access {
	if _, err := os.Stat(i.Cluster); err == nil || strings.ContainsAny(i.Cluster, "/.~") {
		return kube.Access{KubeconfigPath: i.Cluster}
	}
	return kube.Access{ClusterName: i.Cluster}
}

// clusterObjectIdentity is the resource identity of an object on a cluster.
// Cluster is given in an import alone: how the cluster is reached later is not
// part of what the object is.
type clusterObjectIdentity struct {
	Cluster   types.String `tfsdk:"cluster"`
	Namespace types.String `tfsdk:"namespace"`
	Name      types.String `tfsdk:"name"`
}

func identityOf(namespace, name types.String) clusterObjectIdentity {
	return clusterObjectIdentity{Cluster: types.StringNull(), Namespace: namespace, Name: name}
}

// importedObject reads what an import names, by id or by identity.
func importedObject(ctx context.Context, req resource.ImportStateRequest) (clusterObjectID, error) {
	if req.ID != "" {
		return parseClusterObjectID(req.ID)
	}
	var identity clusterObjectIdentity
	if err := firstError(req.Identity.Get(ctx, &identity)); err != nil {
		return clusterObjectID{}, err
	}
	if identity.Cluster.ValueString() == "" {
		return clusterObjectID{}, errors.New("an import by identity needs its cluster: the path of a kubeconfig file or an entry of the provider's clusters map")
	}
	return clusterObjectID{Cluster: identity.Cluster.ValueString(), Namespace: identity.Namespace.ValueString(), Name: identity.Name.ValueString()}, nil
}
