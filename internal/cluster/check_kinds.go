// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	addonsv1beta1 "sigs.k8s.io/cluster-api/api/addons/v1beta1" //nolint:staticcheck // manifests may still use this version
	addonsv1 "sigs.k8s.io/cluster-api/api/addons/v1beta2"
	bootstrapv1beta1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta1" //nolint:staticcheck // manifests may still use this version
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1beta1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta1" //nolint:staticcheck // manifests may still use this version
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1beta1 "sigs.k8s.io/cluster-api/api/core/v1beta1" //nolint:staticcheck // manifests may still use this version
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1beta1 "sigs.k8s.io/cluster-api/api/ipam/v1beta1" //nolint:staticcheck // manifests may still use this version
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
)

// knownTypes holds the kinds whose Go types Cluster API and Kubernetes publish:
// their fields are checked as well.
var knownTypes = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, clusterv1beta1.AddToScheme, bootstrapv1.AddToScheme, bootstrapv1beta1.AddToScheme,
		controlplanev1.AddToScheme, controlplanev1beta1.AddToScheme, addonsv1.AddToScheme, addonsv1beta1.AddToScheme, ipamv1.AddToScheme, ipamv1beta1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	return scheme
}()

// knownVersions holds the kinds of providers that come without Go types here, in
// the versions that the definitions of these releases serve: CAPMOX v0.9.0, CABPT
// v0.6.12, CACPPT v0.5.13, in-cluster IPAM v1.1.0, RKE2 v0.25.0, Kamaji v0.20.0,
// Harvester v0.10.1, k3s v0.3.0, Docker (Cluster API v1.14.2).
var knownVersions = func() map[schema.GroupKind][]string {
	known := map[schema.GroupKind][]string{}
	add := func(group string, versions []string, kinds ...string) {
		for _, kind := range kinds {
			known[schema.GroupKind{Group: group, Kind: kind}] = versions
		}
	}
	add(infrastructureGroup, []string{"v1alpha1", "v1alpha2"}, "ProxmoxCluster", "ProxmoxClusterTemplate", "ProxmoxMachine", "ProxmoxMachineTemplate")
	add(infrastructureGroup, []string{"v1alpha1", "v1beta1"}, "HarvesterCluster", "HarvesterClusterTemplate", "HarvesterMachine", "HarvesterMachineTemplate")
	add(infrastructureGroup, []string{"v1beta1", "v1beta2"}, "DockerCluster", "DockerClusterTemplate", "DockerMachine", "DockerMachineTemplate", "DockerMachinePool",
		"DockerMachinePoolTemplate", "DevCluster", "DevClusterTemplate", "DevMachine", "DevMachineTemplate", "DevMachinePool", "DevMachinePoolTemplate")
	add(bootstrapGroup, []string{"v1alpha2", "v1alpha3"}, "TalosConfig", "TalosConfigTemplate")
	add(bootstrapGroup, []string{"v1beta1", "v1beta2"}, "RKE2Config", "RKE2ConfigTemplate")
	add(bootstrapGroup, []string{"v1beta1", "v1beta2"}, "KThreesConfig", "KThreesConfigTemplate")
	add(controlPlaneGroup, []string{"v1alpha3"}, "TalosControlPlane")
	add(controlPlaneGroup, []string{"v1beta1", "v1beta2"}, "RKE2ControlPlane", "RKE2ControlPlaneTemplate")
	add(controlPlaneGroup, []string{"v1beta1", "v1beta2"}, "KThreesControlPlane", "KThreesControlPlaneTemplate")
	add(controlPlaneGroup, []string{"v1alpha2"}, "KamajiControlPlane", "KamajiControlPlaneTemplate")
	add(ipamGroup, []string{"v1alpha1", "v1alpha2"}, "InClusterIPPool", "GlobalInClusterIPPool")
	add(ipamGroup, []string{"v1alpha2"}, "InClusterPrefixPool", "GlobalInClusterPrefixPool")
	return known
}()

func versionsOf(kind schema.GroupKind) []string {
	if versions, ok := knownVersions[kind]; ok {
		return versions
	}
	versions := sets.New[string]()
	for gvk := range knownTypes.AllKnownTypes() {
		if gvk.GroupKind() == kind && gvk.Version != runtime.APIVersionInternal {
			versions.Insert(gvk.Version)
		}
	}
	return sets.List(versions)
}

// checkKinds flags kinds and versions that are not known, which may be right for
// a provider that nobody here knows, and checks the fields of those that are.
func (c *checker) checkKinds() {
	for _, o := range c.manifest.Objects {
		if len(unknownIn(o.GetAPIVersion())) > 0 || len(unknownIn(o.GetKind())) > 0 {
			c.known(o.at("apiVersion"))
			c.known(o.at("kind"))
			continue
		}
		gvk := o.GroupVersionKind()
		versions := versionsOf(gvk.GroupKind())
		switch {
		case len(versions) == 0:
			c.doubtful(o.at("kind"), "the kind %s of %s is not known here, so it is taken unchecked%s", gvk.Kind, orCore(gvk.Group), didYouMean(gvk.GroupKind()))
		case !slices.Contains(versions, gvk.Version):
			c.doubtful(o.at("apiVersion"), "%s is known in %s, not in %s: the provider may not serve it", gvk.Kind, joinNames(versions), gvk.Version)
		case knownTypes.Recognizes(gvk):
			c.checkFields(o)
		}
	}
}

func orCore(group string) string {
	if group == "" {
		return "the core API group"
	}
	return group
}

// didYouMean finds a known kind that a misspelt one may mean.
func didYouMean(kind schema.GroupKind) string {
	known := sets.New[schema.GroupKind]()
	for gk := range knownVersions {
		known.Insert(gk)
	}
	for gvk := range knownTypes.AllKnownTypes() {
		if strings.HasSuffix(gvk.Group, groupSuffix) {
			known.Insert(gvk.GroupKind())
		}
	}
	for gk := range known {
		switch {
		case gk.Kind == kind.Kind:
			return fmt.Sprintf("; did you mean that of %s?", gk.Group)
		case gk.Group == kind.Group && distance(gk.Kind, kind.Kind) <= 2:
			return fmt.Sprintf("; did you mean %s?", gk.Kind)
		}
	}
	return ""
}

// distance is the number of letters to insert, drop or change to make one word
// of the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// fieldOfError finds the path in an error of the strict decoder.
var fieldOfError = regexp.MustCompile(`(?:unknown field "|Go struct field [A-Za-z0-9]*\.)([^"\s]+)`)

var strictDecoder = serializer.NewCodecFactory(knownTypes, serializer.EnableStrict).UniversalDeserializer()

// checkFields decodes an object as strictly as its Go type allows. A field of a
// newer release is not known here, so it is doubtful only.
func (c *checker) checkFields(o Object) {
	kept, _ := withoutUnknown(o.Object).(map[string]any)
	raw, err := json.Marshal(kept)
	if err != nil {
		c.wrong(o.at("kind"), "this cannot be written as JSON: %v", err)
		return
	}
	gvk := o.GroupVersionKind()
	_, _, err = strictDecoder.Decode(raw, &gvk, nil)
	if err == nil {
		return
	}
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		for _, e := range strict.Errors() {
			c.doubtful(o.atError(e), "%s %s has no such field, as far as it is known here: the API server refuses it", o.GetAPIVersion(), o.GetKind())
		}
		return
	}
	c.wrong(o.atError(err), "this is not a %s of %s: %s", o.GetKind(), o.GetAPIVersion(), plainDecodingError(err))
}

// atError answers the field that an error of the decoder speaks of.
func (o Object) atError(err error) field {
	match := fieldOfError.FindStringSubmatch(err.Error())
	if match == nil {
		return o.at("kind")
	}
	return field{object: o, path: strings.TrimSuffix(match[1], `"`)}
}

var goType = regexp.MustCompile(` into Go (struct field \S+|value) of type `)

// plainDecodingError drops the words about Go from a decoder's error.
func plainDecodingError(err error) string {
	message := err.Error()
	if _, after, ok := strings.Cut(message, "json: "); ok {
		message = after
	}
	return goType.ReplaceAllString(message, " as ")
}
