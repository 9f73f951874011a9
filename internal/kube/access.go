// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package kube makes Kubernetes clients from an access object and holds what
// every engine needs of an API server: server-side apply, waits, identity.
package kube

import "context"

// Access says how a cluster is reached. Exactly one of Kubeconfig,
// KubeconfigPath, ClusterName and Ephemeral is set; it is the engine's side of
// the Terraform access object.
type Access struct {
	// Kubeconfig is the content of a kubeconfig file. It is a secret.
	Kubeconfig []byte
	// KubeconfigPath is the path of a kubeconfig file on this machine.
	KubeconfigPath string
	// Context chooses a context of the kubeconfig; empty means its current one.
	Context string
	// ClusterName is an entry of the provider's clusters map.
	ClusterName string
	// Ephemeral is an ephemeral cluster that is resolved, and if it was retired
	// made again, at the time of use.
	Ephemeral *Ephemeral
	// UID is the UID of the cluster's namespace kube-system: its identity. Empty
	// where nobody has seen it yet.
	UID string
}

// Ephemeral names an ephemeral cluster and holds all that is needed to make it
// again. It has no certificate: it stays the same when the cluster is retired.
type Ephemeral struct {
	Name    string
	Runtime string
	// Spec is the JSON of the ephemeral cluster's specification. It is a secret,
	// since it holds provider credentials.
	Spec []byte
}

// Resolver turns an ephemeral cluster's reference into a kubeconfig.
type Resolver interface {
	// Kubeconfig answers the kubeconfig of the running cluster. It answers an
	// error for which [IsAbsent] holds when the cluster is proven not to be here.
	Kubeconfig(ctx context.Context, e Ephemeral) ([]byte, error)
}
