// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Provider is a Cluster API provider in the set's repository.
type Provider struct {
	// Label is the provider's folder and the value of its objects' label
	// cluster.x-k8s.io/provider, such as infrastructure-proxmox.
	Label string
	// Name and Type are clusterctl's, such as proxmox and InfrastructureProvider.
	Name, Type string
	// Version is the release's, with its v.
	Version string
	// Components is the file's name in a release, such as infrastructure-components.yaml.
	Components string
}

// CertManagerLabel is the folder of cert-manager's static manifest in the repository.
const CertManagerLabel = "cert-manager"

// certManagerManifest is the manifest's name in cert-manager's releases.
const certManagerManifest = "cert-manager.yaml"

// release says how a provider's release files come about from its module.
type release struct {
	Provider
	Module   string // folder under internal/lab/images
	Path     string // the Go module's path
	Config   string // folder in the module that holds kustomize's config tree
	Metadata string // file in the module
	// Templates is a pattern of further release files in the module.
	Templates string
	// Edit does to a copy of the config tree what the project's Makefile does
	// to it for a release.
	Edit func(config string) error `json:"-"`
}

func coreRelease(label, name, kind, components, folder, image string) release {
	return release{
		Provider: Provider{Label: label, Name: name, Type: kind, Version: ClusterAPIVersion, Components: components},
		Module:   "cluster-api", Path: "sigs.k8s.io/cluster-api", Config: folder + "/config", Metadata: "metadata.yaml",
		Edit: func(config string) error {
			return errors.Join(
				substitute(filepath.Join(config, "default", "manager_image_patch.yaml"), imageLine, "image: "+image+":"+ClusterAPIVersion),
				substitute(filepath.Join(config, "default", "manager_pull_policy.yaml"), pullPolicyLine, pullIfNotPresent))
		},
	}
}

func talosRelease(label, kind, version, components, module, path, image string) release {
	return release{
		Provider: Provider{Label: label, Name: "talos", Type: kind, Version: version, Components: components},
		Module:   module, Path: path, Config: "config", Metadata: "config/metadata/metadata.yaml",
		Edit: func(config string) error { // Dockerfile, release-build
			return setImage(filepath.Join(config, "manager"), types.Image{Name: "controller", NewName: image, NewTag: version})
		},
	}
}

func releases() []release {
	return []release{
		coreRelease("cluster-api", "cluster-api", "CoreProvider", "core-components.yaml", "core", coreImage),
		coreRelease("bootstrap-kubeadm", "kubeadm", "BootstrapProvider", "bootstrap-components.yaml", "bootstrap/kubeadm", kubeadmImage),
		coreRelease("control-plane-kubeadm", "kubeadm", "ControlPlaneProvider", "control-plane-components.yaml", "controlplane/kubeadm", kubeadmControlImage),
		{
			Provider: Provider{Label: "infrastructure-proxmox", Name: "proxmox", Type: "InfrastructureProvider", Version: ProxmoxVersion, Components: "infrastructure-components.yaml"},
			Module:   "capmox", Path: "github.com/ionos-cloud/cluster-api-provider-proxmox", Config: "config", Metadata: "metadata.yaml",
			Templates: "templates/cluster-template*.yaml",
			Edit: func(config string) error { // Makefile, release-manifests
				return setImage(filepath.Join(config, "default"), types.Image{Name: proxmoxImage, NewName: proxmoxImage, NewTag: ProxmoxVersion})
			},
		},
		talosRelease("bootstrap-talos", "BootstrapProvider", CABPTVersion, "bootstrap-components.yaml",
			"cabpt", "github.com/siderolabs/cluster-api-bootstrap-provider-talos", cabptImage),
		talosRelease("control-plane-talos", "ControlPlaneProvider", CACPPTVersion, "control-plane-components.yaml",
			"cacppt", "github.com/siderolabs/cluster-api-control-plane-provider-talos", cacpptImage),
		{
			Provider: Provider{Label: "ipam-in-cluster", Name: "in-cluster", Type: "IPAMProvider", Version: IPAMVersion, Components: "ipam-components.yaml"},
			Module:   "ipam", Path: "sigs.k8s.io/cluster-api-ipam-provider-in-cluster", Config: "config", Metadata: "metadata.yaml",
			Edit: func(config string) error { // Makefile, manifest-modification
				patch := filepath.Join(config, "default", "manager_image_patch.yaml")
				return errors.Join(
					substitute(patch, imageLine, "image: "+ipamImage+":"+IPAMVersion),
					substitute(patch, pullPolicyLine, pullIfNotPresent))
			},
		},
	}
}

// Providers returns what is in every set's repository.
func Providers() []Provider {
	var providers []Provider
	for _, r := range releases() {
		providers = append(providers, r.Provider)
	}
	return providers
}

// ComponentsURL returns the file:// URL of the components of the provider with
// this label (or of cert-manager's manifest for CertManagerLabel) at the set's
// version, and an empty string for a label that is not in the repository.
func (s *Set) ComponentsURL(label string) string {
	if label == CertManagerLabel {
		return s.repositoryURL(CertManagerLabel, CertManagerVersion, certManagerManifest)
	}
	for _, p := range Providers() {
		if p.Label == label {
			return s.repositoryURL(p.Label, p.Version, p.Components)
		}
	}
	return ""
}

func (s *Set) repositoryURL(elements ...string) string {
	path := filepath.Join(append([]string{s.Repository}, elements...)...)
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
}

// writeRepository renders the providers' release files into clusterctl's layout
// for local repositories: <label>/<version>/<file>.
func (b *builder) writeRepository(ctx context.Context, dir, scratch string) error {
	for _, r := range b.releases {
		b.report(ctx, "rendering", "rendering "+r.Label+" "+r.Version)
		if err := b.writeRelease(ctx, r, filepath.Join(dir, r.Label, r.Version), filepath.Join(scratch, r.Label)); err != nil {
			return fmt.Errorf("rendering the release files of %s %s: %w", r.Label, r.Version, err)
		}
	}
	return nil
}

func (b *builder) writeRelease(ctx context.Context, r release, dir, scratch string) error {
	module, err := b.moduleFiles(ctx, r.Module, r.Path)
	if err != nil {
		return err
	}
	config := filepath.Join(scratch, "config")
	if err := copyTree(filepath.Join(module, filepath.FromSlash(r.Config)), config); err != nil {
		return err
	}
	if err := r.Edit(config); err != nil {
		return err
	}
	components, err := kustomize(filepath.Join(config, "default"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, r.Components), components, 0o644); err != nil {
		return err
	}
	files := map[string]string{filepath.Join(module, filepath.FromSlash(r.Metadata)): "metadata.yaml"}
	templates, err := filepath.Glob(filepath.Join(module, filepath.FromSlash(r.Templates)))
	if err != nil {
		return err
	}
	for _, template := range templates {
		if r.Templates != "" {
			files[template] = filepath.Base(template)
		}
	}
	for from, to := range files {
		if err := copyFile(from, filepath.Join(dir, to)); err != nil {
			return err
		}
	}
	return nil
}

// moduleFiles returns the folder of a module's files, at the version that the
// nested module pins, after downloading it where need be.
func (b *builder) moduleFiles(ctx context.Context, nested, path string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path)
	cmd.Dir = filepath.Join(b.modulesDir(), nested)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	var answer struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &answer); jsonErr == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	if err == nil && answer.Dir == "" {
		err = errors.New("the Go command names no folder")
	}
	if err != nil {
		return "", fmt.Errorf("downloading module %s: %w", path, err)
	}
	return answer.Dir, nil
}

// kustomize builds a kustomization as the kustomize command does. The order is
// the one of kustomize up to version 4, which all of these projects' releases
// have: namespaces and CRDs first. It prints warnings about deprecated fields
// of the projects' files to standard error, which cannot be kept from it.
func kustomize(dir string) ([]byte, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy
	resources, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	return resources.AsYaml()
}

var (
	imageLine      = regexp.MustCompile(`image: .*`)
	pullPolicyLine = regexp.MustCompile(`imagePullPolicy: .*`)
)

const pullIfNotPresent = "imagePullPolicy: IfNotPresent"

// substitute replaces a pattern in a file that is meant to hold it.
func substitute(file string, pattern *regexp.Regexp, with string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !pattern.Match(content) {
		return fmt.Errorf("%s has no line %s", file, pattern)
	}
	return os.WriteFile(file, pattern.ReplaceAllLiteral(content, []byte(with)), 0o644)
}

// setImage does what `kustomize edit set image` does to the kustomization in dir.
func setImage(dir string, image types.Image) error {
	file := filepath.Join(dir, "kustomization.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var kustomization map[string]any
	if err := yaml.Unmarshal(content, &kustomization); err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	kustomization["images"] = []types.Image{image}
	content, err = yaml.Marshal(kustomization)
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

// copyTree copies a folder. The copy can be written to, which the module
// cache's files cannot.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		return copyFile(path, filepath.Join(to, name))
	})
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}
