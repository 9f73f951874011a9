// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/mod/modfile"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

// wholeSet builds or finds the set that the lab uses.
func wholeSet(t *testing.T) *Set {
	t.Helper()
	set, err := Ensure(t.Context(), func(_ context.Context, _, message string) { t.Log(message) })
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// layoutImages opens all images of a layout by their names.
func layoutImages(t *testing.T, dir string) map[string]v1.Image {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	images := map[string]v1.Image{}
	for _, d := range manifest.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		images[d.Annotations[refName]] = img
	}
	return images
}

func TestVersionsAreThoseOfTheNestedModules(t *testing.T) {
	source, err := sourceDir()
	if err != nil {
		t.Fatal(err)
	}
	etcd, _, _ := strings.Cut(EtcdVersion, "-")
	for _, test := range []struct{ module, path, version string }{
		{"kubernetes", "k8s.io/kubernetes", KubernetesVersion},
		{"etcd", "go.etcd.io/etcd/server/v3", "v" + etcd},
		{"cluster-api", "sigs.k8s.io/cluster-api", ClusterAPIVersion},
		{"capmox", "github.com/ionos-cloud/cluster-api-provider-proxmox", ProxmoxVersion},
		{"cabpt", "github.com/siderolabs/cluster-api-bootstrap-provider-talos", CABPTVersion},
		{"cacppt", "github.com/siderolabs/cluster-api-control-plane-provider-talos", CACPPTVersion},
		{"ipam", "sigs.k8s.io/cluster-api-ipam-provider-in-cluster", IPAMVersion},
		{"operator", "sigs.k8s.io/cluster-api-operator", OperatorVersion},
		{"cert-manager", "github.com/cert-manager/cert-manager", CertManagerVersion},
		{"cilium", "github.com/cilium/cilium", "v" + CiliumVersion},
		{"opentofu", "github.com/opentofu/opentofu", OpenTofuVersion},
	} {
		t.Run(test.module, func(t *testing.T) {
			name := filepath.Join(source, "internal", "lab", "images", test.module, "go.mod")
			content, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			file, err := modfile.Parse(name, content, nil)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(file.Require, func(r *modfile.Require) bool { return r.Mod.Path == test.path })
			if i < 0 || file.Require[i].Mod.Version != test.version {
				t.Errorf("%s does not require %s %s", name, test.path, test.version)
			}
		})
	}
}

var (
	imageField = regexp.MustCompile(`(?m)^\s*(?:- )?image: *"?([^"\s]+)"?\s*$`)
	digest     = regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
)

// wanted lists the images that a text of Kubernetes objects names, each by its tag.
func wanted(text string) []string {
	var names []string
	for _, match := range imageField.FindAllStringSubmatch(text, -1) {
		names = append(names, digest.ReplaceAllString(match[1], ""))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// rendered renders a chart as helm install would, with the values of the
// project's example where it has some.
func rendered(t *testing.T, file, values string) string {
	t.Helper()
	loaded, err := loader.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]any{}
	if values != "" {
		source, err := sourceDir()
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(source, "examples", "talos-proxmox", values))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(content, &given); err != nil {
			t.Fatal(err)
		}
	}
	install := action.NewInstall(&action.Configuration{})
	install.ReleaseName, install.Namespace = loaded.Metadata.Name, "kube-system"
	install.DryRun, install.ClientOnly = true, true
	install.KubeVersion = &chartutil.KubeVersion{Version: KubernetesVersion, Major: "1", Minor: "36"}
	release, err := install.RunWithContext(t.Context(), loaded, given)
	if err != nil {
		t.Fatal(err)
	}
	text := release.Manifest
	for _, hook := range release.Hooks {
		text += "\n---\n" + hook.Manifest
	}
	return text
}

func TestTheLayoutHoldsEveryImageThatIsAskedFor(t *testing.T) {
	set := wholeSet(t)
	have := layoutImages(t, set.ImageLayout)
	texts := map[string]string{
		"chart cilium":       rendered(t, set.Charts[CiliumChart], "cilium.yaml"),
		"chart cert-manager": rendered(t, set.Charts[CertManagerChart], ""),
		"chart operator":     rendered(t, set.Charts[OperatorChart], ""),
		"chart talos ccm":    rendered(t, set.Charts[TalosCCMChart], "cloud-controller-manager.yaml"),
	}
	for _, p := range Providers() {
		texts[p.Label] = componentsOf(t, set, p.Label)
	}
	texts[CertManagerLabel] = componentsOf(t, set, CertManagerLabel)
	for from, text := range texts {
		names := wanted(text)
		if len(names) == 0 {
			t.Errorf("%s names no image", from)
		}
		for _, name := range names {
			if have[name] == nil {
				t.Errorf("%s wants %s, which the layout does not have", from, name)
			}
		}
	}
	for _, name := range []string{EtcdImage, APIServerImage, ControllerManagerImage, SchedulerImage} {
		if have[name] == nil {
			t.Errorf("the layout does not have %s", name)
		}
	}
}

func componentsOf(t *testing.T, set *Set, label string) string {
	t.Helper()
	content, err := os.ReadFile(strings.TrimPrefix(set.ComponentsURL(label), "file://"))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestProvidersLiveInTheirReleasesNamespaces(t *testing.T) {
	set := wholeSet(t)
	for label, namespace := range map[string]string{
		"cluster-api":            "capi-system",
		"bootstrap-kubeadm":      "capi-kubeadm-bootstrap-system",
		"control-plane-kubeadm":  "capi-kubeadm-control-plane-system",
		"infrastructure-proxmox": "capmox-system",
		"bootstrap-talos":        "cabpt-system",
		"control-plane-talos":    "cacppt-system",
		"ipam-in-cluster":        "capi-ipam-in-cluster-system",
	} {
		text := componentsOf(t, set, label)
		if !strings.Contains(text, "kind: Namespace\nmetadata:\n  labels:\n") || !strings.Contains(text, "\n  name: "+namespace+"\n") {
			t.Errorf("%s has no namespace %s", label, namespace)
		}
		if !strings.Contains(text, "cluster.x-k8s.io/provider: "+label) {
			t.Errorf("%s does not label its objects", label)
		}
	}
}

func TestAnUnknownLabelHasNoURL(t *testing.T) {
	if got := (&Set{Repository: "/r"}).ComponentsURL("infrastructure-none"); got != "" {
		t.Errorf("got %s", got)
	}
}

// extract writes one file of an image, whose symbolic links are followed.
func extract(t *testing.T, img v1.Image, name, to string) {
	t.Helper()
	reader := mutate.Extract(img)
	defer func() { _ = reader.Close() }()
	archive := tar.NewReader(reader)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("the image has no %s", name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if "/"+header.Name != name {
			continue
		}
		file, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(file, archive)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		return
	}
}

func TestEveryProgramStartsOutOfItsImage(t *testing.T) {
	set := wholeSet(t)
	have := layoutImages(t, set.ImageLayout)
	controllers := "--health-addr|--health-probe-bind-address"
	for _, test := range []struct{ image, path, args, says string }{
		{APIServerImage, "/usr/local/bin/kube-apiserver", "--version", "Kubernetes " + KubernetesVersion},
		{ControllerManagerImage, "/usr/local/bin/kube-controller-manager", "--version", "Kubernetes " + KubernetesVersion},
		{SchedulerImage, "/usr/local/bin/kube-scheduler", "--version", "Kubernetes " + KubernetesVersion},
		{EtcdImage, "/usr/local/bin/etcd", "--version", "etcd Version: 3.6.8"},
		{coreImage + ":" + ClusterAPIVersion, "/manager", "--help", controllers},
		{kubeadmImage + ":" + ClusterAPIVersion, "/manager", "--help", controllers},
		{kubeadmControlImage + ":" + ClusterAPIVersion, "/manager", "--help", controllers},
		{proxmoxImage + ":" + ProxmoxVersion, "/manager", "--help", "--proxmox-root-cert-file"},
		{cabptImage + ":" + CABPTVersion, "/manager", "--help", "-health-addr"},
		{cacpptImage + ":" + CACPPTVersion, "/manager", "--help", "-health-addr"},
		{ipamImage + ":" + IPAMVersion, "/manager", "--help", controllers},
		{operatorImage + ":" + OperatorVersion, "/manager", "--help", controllers},
		{certManagerImages + "webhook:" + CertManagerVersion, "/app/cert-manager", "--version", "cert-manager " + CertManagerVersion},
		{talosCCMImage, "/talos-cloud-controller-manager", "--help", "--use-service-account-credentials"},
		{ciliumImage, standinPath, "bash -c 'echo shell'", "shell"},
	} {
		t.Run(test.image, func(t *testing.T) {
			img := have[test.image]
			if img == nil {
				t.Fatal("the layout does not have it")
			}
			binary := filepath.Join(t.TempDir(), "program")
			extract(t, img, test.path, binary)
			args := strings.SplitN(test.args, " ", 3)
			for i := range args {
				args[i] = strings.Trim(args[i], "'")
			}
			// Programs of controller-runtime's flag set end with a failure after --help.
			out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
			if !regexp.MustCompile(test.says).Match(out) {
				t.Errorf("%s %s (%v) does not say %s:\n%.600s", test.path, test.args, err, test.says, out)
			}
		})
	}
}

func TestImagesRunAsTheUsersOfTheRealOnes(t *testing.T) {
	set := wholeSet(t)
	have := layoutImages(t, set.ImageLayout)
	for name, want := range map[string]string{
		EtcdImage:                           root,
		coreImage + ":" + ClusterAPIVersion: nonroot,
		cabptImage + ":" + CABPTVersion:     root,
		certManagerImages + "controller:" + CertManagerVersion: "1000",
		talosCCMImage: "10258",
		fmt.Sprintf("%s:%s", operatorImage, OperatorVersion):                  nonroot,
		fmt.Sprintf("%scainjector:%s", certManagerImages, CertManagerVersion): "1000",
	} {
		config, err := have[name].ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != want || len(config.Config.Entrypoint) == 0 {
			t.Errorf("%s runs %v as %q, want %q", name, config.Config.Entrypoint, config.Config.User, want)
		}
	}
}

// The programs of this project's own among the nested modules have tests of
// their own, which go test ./... does not reach.
func TestTheStandInsOwnTests(t *testing.T) {
	source, err := sourceDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{"cilium-standin", "talos-ccm"} {
		t.Run(module, func(t *testing.T) {
			test := exec.CommandContext(t.Context(), "go", "test", "-mod=readonly", "./...")
			test.Dir = filepath.Join(source, "internal", "lab", "images", module)
			test.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-trimpath")
			if out, err := test.CombinedOutput(); err != nil || !strings.Contains(string(out), "ok") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
