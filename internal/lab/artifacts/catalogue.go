// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"context"
	"strings"
)

// The versions that the lab runs. Each is pinned by the go.mod of a nested
// module under internal/lab/images (a test compares them), except for the two
// that no module proxy serves and that stand-ins take the place of.
const (
	KubernetesVersion = "v1.36.2"
	// EtcdVersion is the tag of kubeadm's etcd image for KubernetesVersion
	// (k8s.io/kubernetes v1.36.2, cmd/kubeadm/app/constants, DefaultEtcdVersion).
	EtcdVersion        = "3.6.8-0"
	ClusterAPIVersion  = "v1.14.2"
	ProxmoxVersion     = "v0.9.0"
	CABPTVersion       = "v0.6.12"
	CACPPTVersion      = "v0.5.13"
	IPAMVersion        = "v1.1.0"
	CertManagerVersion = "v1.21.0"
	OperatorVersion    = "v0.28.0"
)

// Names of the images that programs outside of pods are taken from, and where
// in these the programs lie.
const (
	EtcdImage              = "registry.k8s.io/etcd:" + EtcdVersion
	APIServerImage         = "registry.k8s.io/kube-apiserver:" + KubernetesVersion
	ControllerManagerImage = "registry.k8s.io/kube-controller-manager:" + KubernetesVersion
	SchedulerImage         = "registry.k8s.io/kube-scheduler:" + KubernetesVersion

	// ProgramDir is the folder of etcd and of Kubernetes' programs in their images.
	ProgramDir = "/usr/local/bin"
)

// Users of the real images.
const (
	root    = "0"
	nonroot = "65532" // gcr.io/distroless/static:nonroot
)

// program is one Go program that is built from a nested module.
type program struct {
	Name    string // unique among all programs
	Module  string // folder under internal/lab/images
	Package string // import path of the main package
	LDFlags string // beyond "-s -w"
	Path    string // where it lies in images
	Host    bool   // runs on this machine's system instead of in an image
}

// image is an OCI image with one program in it.
type image struct {
	Names      []string // references under which it is found; the first one is its name
	Program    string
	User       string
	Entrypoint []string
	// Files lists what else the image holds.
	Files func(ctx context.Context, b *builder) ([]entry, error) `json:"-"`
}

// stamp renders linker flags that set a version as the projects' own releases
// do, in package pkg. There is no commit: module zips carry none.
func stamp(version string, packages ...string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	var flags []string
	for _, p := range packages {
		for _, pair := range [][2]string{
			{"gitMajor", major},
			{"gitMinor", minor},
			{"gitVersion", version},
			{"gitCommit", ""},
			{"gitTreeState", "clean"},
			{"buildDate", "1970-01-01T00:00:00Z"},
		} {
			flags = append(flags, "-X "+p+"."+pair[0]+"="+pair[1])
		}
	}
	return strings.Join(flags, " ")
}

func kubernetes(name string) program {
	return program{
		Name:    name,
		Module:  "kubernetes",
		Package: "k8s.io/kubernetes/cmd/" + name,
		LDFlags: stamp(KubernetesVersion, "k8s.io/component-base/version", "k8s.io/client-go/pkg/version"),
		Path:    ProgramDir + "/" + name,
	}
}

func clusterAPI(name, pkg string) program {
	return program{
		Name:    name,
		Module:  "cluster-api",
		Package: "sigs.k8s.io/cluster-api/" + pkg,
		LDFlags: stamp(ClusterAPIVersion, "sigs.k8s.io/cluster-api/version"),
		Path:    "/manager",
	}
}

// programs returns all that is built, those first that most else waits for.
func programs() []program {
	return []program{
		kubernetes("kube-apiserver"),
		kubernetes("kube-controller-manager"),
		kubernetes("kube-scheduler"),
		{Name: "etcd", Module: "etcd", Package: "go.etcd.io/etcd/server/v3", Path: ProgramDir + "/etcd"},
		clusterAPI("cluster-api-controller", "core"),
		clusterAPI("kubeadm-bootstrap-controller", "bootstrap/kubeadm"),
		clusterAPI("kubeadm-control-plane-controller", "controlplane/kubeadm"),
		{Name: "capmox", Module: "capmox", Package: "github.com/ionos-cloud/cluster-api-provider-proxmox/cmd", Path: "/manager"},
		{Name: "cabpt", Module: "cabpt", Package: "github.com/siderolabs/cluster-api-bootstrap-provider-talos", Path: "/manager"},
		{Name: "cacppt", Module: "cacppt", Package: "github.com/siderolabs/cluster-api-control-plane-provider-talos", Path: "/manager"},
		{
			Name: "ipam", Module: "ipam", Package: "sigs.k8s.io/cluster-api-ipam-provider-in-cluster", Path: "/manager",
			LDFlags: stamp(IPAMVersion, "sigs.k8s.io/cluster-api-ipam-provider-in-cluster/version"),
		},
		{
			Name: "operator", Module: "operator", Package: "sigs.k8s.io/cluster-api-operator/cmd", Path: "/manager",
			LDFlags: stamp(OperatorVersion, "sigs.k8s.io/cluster-api-operator/version"),
		},
		{
			Name: "cert-manager", Module: "cert-manager", Package: ".", Path: "/app/cert-manager",
			LDFlags: "-X github.com/cert-manager/cert-manager/pkg/util.AppVersion=" + CertManagerVersion,
		},
		{Name: "talos-ccm", Module: "talos-ccm", Package: ".", Path: "/talos-cloud-controller-manager"},
		{Name: "cilium-standin", Module: "cilium-standin", Package: ".", Path: standinPath},
	}
}

// Images of the providers, named as their releases name them.
const (
	clusterAPIImages    = "registry.k8s.io/cluster-api/"
	coreImage           = clusterAPIImages + "cluster-api-controller"
	kubeadmImage        = clusterAPIImages + "kubeadm-bootstrap-controller"
	kubeadmControlImage = clusterAPIImages + "kubeadm-control-plane-controller"
	proxmoxImage        = "ghcr.io/ionos-cloud/cluster-api-provider-proxmox"
	cabptImage          = "ghcr.io/siderolabs/cluster-api-talos-controller"
	cacpptImage         = "ghcr.io/siderolabs/cluster-api-control-plane-talos-controller"
	ipamImage           = "registry.k8s.io/capi-ipam-ic/cluster-api-ipam-in-cluster-controller"
	certManagerImages   = "quay.io/jetstack/cert-manager-"
	operatorImage       = "registry.k8s.io/capi-operator/cluster-api-operator"
)

func manager(name, version, program, user string) image {
	return image{Names: []string{name + ":" + version}, Program: program, User: user, Entrypoint: []string{"/manager"}}
}

func component(name, program string) image {
	return image{Names: []string{name}, Program: program, User: root, Entrypoint: []string{ProgramDir + "/" + program}}
}

// certManager is an image with one of the commands of the multi-call program.
func certManager(command string) image {
	return image{
		Names:   []string{certManagerImages + command + ":" + CertManagerVersion},
		Program: "cert-manager", User: "1000",
		Entrypoint: []string{"/app/cert-manager", command},
	}
}

// images returns everything that is packed into the layout.
func images() []image {
	return []image{
		component(APIServerImage, "kube-apiserver"),
		component(ControllerManagerImage, "kube-controller-manager"),
		component(SchedulerImage, "kube-scheduler"),
		component(EtcdImage, "etcd"),
		manager(coreImage, ClusterAPIVersion, "cluster-api-controller", nonroot),
		manager(kubeadmImage, ClusterAPIVersion, "kubeadm-bootstrap-controller", nonroot),
		manager(kubeadmControlImage, ClusterAPIVersion, "kubeadm-control-plane-controller", nonroot),
		manager(proxmoxImage, ProxmoxVersion, "capmox", nonroot),
		// The images of Sidero Labs' two providers are made from scratch and name no user.
		manager(cabptImage, CABPTVersion, "cabpt", root),
		manager(cacpptImage, CACPPTVersion, "cacppt", root),
		manager(ipamImage, IPAMVersion, "ipam", nonroot),
		manager(operatorImage, OperatorVersion, "operator", nonroot),
		certManager("controller"),
		certManager("webhook"),
		certManager("cainjector"),
		certManager("startupapicheck"),
		{
			Names: []string{talosCCMImage}, Program: "talos-ccm", User: "10258",
			Entrypoint: []string{"/talos-cloud-controller-manager"},
		},
		{Names: []string{ciliumImage}, Program: "cilium-standin", User: root, Entrypoint: []string{standinPath}, Files: agentFiles},
		{Names: []string{ciliumOperatorImage}, Program: "cilium-standin", User: root, Entrypoint: []string{standinPath}, Files: operatorFiles},
		{Names: []string{ciliumEnvoyImage}, Program: "cilium-standin", User: root, Entrypoint: []string{standinPath}, Files: envoyFiles},
	}
}
