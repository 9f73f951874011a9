// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Talos applies these to every cluster (internal/app/machined/pkg/controllers/
// k8s/internal/k8stemplates of Talos): what a kubelet needs to get its
// certificate, and what nodes may read.
const bootstrapManifests = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system-bootstrap-node-bootstrapper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:nodes"}
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system-bootstrap-approve-node-client-csr}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:nodes"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system-bootstrap-node-renewal}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:talos-nodes", labels: {kubernetes.io/bootstrapping: rbac-defaults}}
rules:
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: "system:talos-nodes"
  annotations: {rbac.authorization.kubernetes.io/autoupdate: "true"}
  labels: {kubernetes.io/bootstrapping: rbac-defaults}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:talos-nodes"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kubeconfig-in-cluster, namespace: kube-system}
data:
  kubeconfig: |
    apiVersion: v1
    kind: Config
    clusters:
    - name: local
      cluster: {certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt, server: %q}
    users:
    - name: service-account
      user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}
    contexts:
    - name: local
      context: {cluster: local, user: service-account}
    current-context: local
`

// serviceAccountCRD is installed only when the Talos API is open to Kubernetes.
const serviceAccountCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: serviceaccounts.talos.dev}
spec:
  conversion: {strategy: None}
  group: talos.dev
  names: {kind: ServiceAccount, listKind: ServiceAccountList, plural: serviceaccounts, singular: serviceaccount, shortNames: [tsa]}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {roles: {type: array, items: {type: string}}}
          status:
            type: object
            properties: {failureReason: {type: string}}
`

// manifestManager owns what Talos applies.
const manifestManager = "talos"

// clusterManifests are the objects that this node brings into a cluster.
// CoreDNS, flannel and kube-proxy are left out: the lab has no images of them
// and pods need none of them (see the package's description). Inline manifests
// of the configuration are applied, remote ones are not: nothing is fetched.
func (n *node) clusterManifests() ([]*unstructured.Unstructured, error) {
	c := n.cfg.Cluster()
	texts := []string{fmt.Sprintf(bootstrapManifests, c.Endpoint().String())}
	if n.kubernetesAccess() != nil {
		texts = append(texts, serviceAccountCRD)
	}
	for _, m := range c.InlineManifests() {
		texts = append(texts, m.Contents())
	}
	var objects []*unstructured.Unstructured
	for _, text := range texts {
		parsed, err := kube.ParseDocuments([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("read the manifests of cluster %s: %w", c.Name(), err)
		}
		objects = append(objects, parsed...)
	}
	return append(objects, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
		"metadata": map[string]any{"name": "bootstrap-token-" + c.Token().ID(), "namespace": "kube-system"},
		"stringData": map[string]any{
			"auth-extra-groups": "system:bootstrappers:nodes", "usage-bootstrap-authentication": "true",
			"token-id": c.Token().ID(), "token-secret": c.Token().Secret(),
		},
	}}), nil
}

// applyManifests brings the manifests into the cluster. A fresh API server may
// not know every kind or namespace yet, so it tries until all are in.
func (n *node) applyManifests(ctx context.Context) error {
	objects, err := n.clusterManifests()
	if err != nil {
		return err
	}
	config, err := n.adminConfig()
	if err != nil {
		return err
	}
	client, err := kube.NewClient(config)
	if err != nil {
		return fmt.Errorf("make Talos's client of the cluster: %w", err)
	}
	return poll(ctx, 500*time.Millisecond, func(ctx context.Context) (bool, error) {
		for len(objects) > 0 {
			if _, err := client.ApplyObject(ctx, objects[0], kube.ApplyOptions{Manager: manifestManager, Force: true}); err != nil {
				return false, fmt.Errorf("apply the manifests of Talos: %w", err)
			}
			objects = objects[1:]
		}
		return true, nil
	})
}
