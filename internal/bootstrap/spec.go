// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Spec is all that is needed to make an ephemeral cluster, and to make it again
// after it was retired. It is a secret: it holds the providers' credentials. It
// holds no certificate and no address, so it stays the same when that happens.
type Spec struct {
	Name              string           `json:"name"`
	Runtime           string           `json:"runtime"`
	KubernetesVersion string           `json:"kubernetes_version"`
	Images            []string         `json:"images,omitempty"`
	Kind              KindOptions      `json:"kind,omitzero"`
	Repository        string           `json:"repository,omitempty"`
	CertManager       capi.CertManager `json:"cert_manager"`
	Providers         []capi.Provider  `json:"providers"`
}

// Ephemeral answers the access object's part for the cluster. The same
// specification gives the same bytes.
func (s Spec) Ephemeral() (*kube.Ephemeral, error) {
	s.Providers = slices.Clone(s.Providers)
	slices.SortFunc(s.Providers, func(a, b capi.Provider) int { return strings.Compare(a.Label(), b.Label()) })
	content, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("writing the specification of the ephemeral cluster %q: %w", s.Name, err)
	}
	return &kube.Ephemeral{Name: s.Name, Runtime: s.Runtime, Spec: content}, nil
}

// SpecOf reads the specification out of an access object.
func SpecOf(e kube.Ephemeral) (Spec, error) {
	if len(e.Spec) == 0 {
		return Spec{}, fmt.Errorf("the access object of the ephemeral cluster %q holds no specification, so it cannot be made again", e.Name)
	}
	var spec Spec
	if err := json.Unmarshal(e.Spec, &spec); err != nil {
		// The cause could quote a secret.
		return Spec{}, fmt.Errorf("the specification of the ephemeral cluster %q cannot be read", e.Name)
	}
	if spec.Name != e.Name || spec.Runtime != e.Runtime {
		return Spec{}, fmt.Errorf("the access object of the ephemeral cluster %q holds the specification of another one, %q", e.Name, spec.Name)
	}
	return spec, nil
}

func (s Spec) cluster() Cluster {
	return Cluster{Name: s.Name, KubernetesVersion: s.KubernetesVersion, Images: s.Images, Kind: s.Kind}
}

func (s Spec) initOptions() capi.InitOptions {
	return capi.InitOptions{Providers: s.Providers, CertManager: s.CertManager, Source: capi.Source{Repository: s.Repository}}
}

var errNoRuntime = errors.New("no such runtime")
