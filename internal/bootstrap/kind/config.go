// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kind

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/kind/pkg/apis/config/defaults"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/yaml"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
)

const (
	configVersion = "kind.x-k8s.io/v1alpha4"
	// madeHere is a label on the nodes of the clusters that this runtime makes. It
	// is in kind's files on the node from before the cluster comes up.
	madeHere = "terraform-provider-capi/ephemeral-cluster"
)

// ParseConfig reads a kind configuration (kind: Cluster, apiVersion:
// kind.x-k8s.io/v1alpha4). Empty text is a configuration of one node. A field
// that kind does not know is an error, and so is a name, which the resource has.
func ParseConfig(text string) (*v1alpha4.Cluster, error) {
	config := &v1alpha4.Cluster{TypeMeta: v1alpha4.TypeMeta{Kind: "Cluster", APIVersion: configVersion}}
	if err := yaml.UnmarshalStrict([]byte(text), config); err != nil {
		return nil, fmt.Errorf("reading the kind configuration: %w", err)
	}
	switch {
	case config.Kind != "Cluster" || config.APIVersion != configVersion:
		return nil, fmt.Errorf("the kind configuration is a %s of %s: it must be a Cluster of %s", config.Kind, config.APIVersion, configVersion)
	case config.Name != "":
		return nil, errors.New("the kind configuration has a name: leave it out, the cluster gets that of the resource")
	}
	return config, nil
}

// configOf answers the configuration of a cluster, with the mark on its nodes.
func configOf(c bootstrap.Cluster) (*v1alpha4.Cluster, error) {
	config, err := ParseConfig(c.Kind.Config)
	if err != nil {
		return nil, err
	}
	config.Name = c.Name
	if len(config.Nodes) == 0 {
		config.Nodes = []v1alpha4.Node{{Role: v1alpha4.ControlPlaneRole}}
	}
	for i := range config.Nodes {
		node := &config.Nodes[i]
		if node.Image == "" {
			node.Image = nodeImage(c)
		}
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		node.Labels[madeHere] = "true"
	}
	return config, nil
}

// nodeImage is the image of a node that the configuration gives none: the asked-for
// one, else the one that this release of kind was tested with, where that is of
// the right version, else that of the version.
func nodeImage(c bootstrap.Cluster) string {
	switch {
	case c.Kind.NodeImage != "":
		return c.Kind.NodeImage
	case strings.HasPrefix(defaults.Image, "kindest/node:"+c.KubernetesVersion+"@"):
		return defaults.Image
	}
	return "kindest/node:" + c.KubernetesVersion
}
