// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package bootstrap makes, finds and retires ephemeral clusters: small clusters
// on the machine that runs Terraform, which hold the providers that build the
// management cluster. How such a cluster runs is a [Runtime]'s matter.
package bootstrap

import (
	"context"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// Names of the runtimes.
const (
	// Local runs the cluster as processes, without a container engine.
	Local = "local"
	// Kind runs the cluster in a container engine, by kind.
	Kind = "kind"
)

// Cluster is what a runtime is told about an ephemeral cluster.
type Cluster struct {
	// Name is the cluster's name on this machine.
	Name string
	// KubernetesVersion is a release, with its v.
	KubernetesVersion string
	// Images are the places that container images are looked for before the
	// registries that their names say: oci-layout:/path, archive:/path.
	Images []string
	// Kind is for the runtime of that name.
	Kind KindOptions
}

// KindOptions are the settings that the runtime kind has alone.
type KindOptions struct {
	// Engine is docker, nerdctl or podman; empty means the first that answers.
	Engine string `json:"engine,omitempty"`
	// NodeImage is the image of the nodes that Config gives none; empty means
	// kind's own for the Kubernetes version.
	NodeImage string `json:"node_image,omitempty"`
	// Config is a kind configuration in YAML; empty means one node.
	Config string `json:"config,omitempty"`
}

// Status is what this machine sees of an ephemeral cluster.
type Status string

// The states of an ephemeral cluster. NotHere says nothing about whether it
// was retired or lost.
const (
	Running Status = "running"
	Stopped Status = "stopped"
	NotHere Status = "not_here"
)

// Runtime runs ephemeral clusters on this machine. All calls may be made at the
// same time, from several processes, for the same name.
type Runtime interface {
	// Ensure makes the cluster run: it creates it, starts it again from its data,
	// or joins whoever is at it. It answers a kubeconfig of an administrator,
	// which is a secret, once the API server answers.
	Ensure(ctx context.Context, cluster Cluster, report progress.Reporter) (kubeconfig []byte, err error)
	// Status says what is here. An error means that it is not known.
	Status(ctx context.Context, name string) (Status, error)
	// Kubeconfig answers the kubeconfig of a running cluster.
	// [kube.IsAbsent] holds for the error when it is not here at all.
	Kubeconfig(ctx context.Context, name string) ([]byte, error)
	// Delete stops the cluster and removes its data. That it is not here is no
	// error.
	Delete(ctx context.Context, name string) error
}

// Discarder is a [Runtime] that can tell a cluster which never ran, for want of
// an image for example, from one that may hold objects. The first cannot be
// asked for its Clusters, and has none.
type Discarder interface {
	// Discard removes what is here of a cluster that never ran, and says whether it
	// did. One that ran once is left as it is.
	Discard(ctx context.Context, name string) (bool, error)
}
