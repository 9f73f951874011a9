// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/repository"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// Published is what a mirror must hold for one release.
type Published struct {
	// Label is the provider's, or cert-manager.
	Label   string
	Version string
	// Contract is the version of Cluster API's contract; empty for cert-manager.
	Contract string
	// Files are the addresses that the release's files are read from, by the path
	// at which a repository folder holds them.
	Files map[string]string
	// Images are the references of the container images that the release runs.
	Images []string
}

// Publications reads what releases consist of. The providers' variables play no
// part, so none need be given. certManager may be nil.
func Publications(ctx context.Context, providers []Provider, certManager *CertManager, source Source) ([]Published, error) {
	var all []Published
	var faults []error
	for _, p := range providers {
		published, err := publication(ctx, p, source)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all = append(all, *published)
	}
	if certManager != nil && !certManager.External {
		published, err := certManagerPublication(ctx, *certManager, source)
		if err != nil {
			faults = append(faults, err)
		} else {
			all = append(all, *published)
		}
	}
	return all, errors.Join(faults...)
}

func publication(ctx context.Context, p Provider, source Source) (*Published, error) {
	found, err := openRelease(ctx, p, source, nil)
	if err != nil {
		return nil, err
	}
	components, err := found.Components().Get(ctx, repository.ComponentsOptions{Version: p.Version, SkipTemplateProcess: true})
	if err != nil {
		return nil, fmt.Errorf("reading the components of %s: %w", p, err)
	}
	contract, err := found.contract(ctx, p, "")
	if err != nil {
		return nil, fmt.Errorf("reading the contract of %s: %w", p, err)
	}
	published := &Published{Label: p.Label(), Version: p.Version, Contract: contract.Version, Files: map[string]string{}, Images: components.Images()}
	for _, name := range []string{found.componentsFile(), metadataFile} {
		published.add(found.location, name)
	}
	return published, nil
}

func (p *Published) add(components *url.URL, name string) {
	location := *components
	location.Path = path.Join(path.Dir(location.Path), name)
	p.Files[path.Join(p.Label, p.Version, name)] = releaseAsset(&location)
}

func certManagerPublication(ctx context.Context, c CertManager, source Source) (*Published, error) {
	text, err := c.location(ctx, source)
	if err != nil {
		return nil, err
	}
	location, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the URL of cert-manager is not valid: %w", err)
	}
	content, err := read(ctx, location)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest of cert-manager %s: %w", c.Version, err)
	}
	objects, err := kube.ParseDocuments(content)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest of cert-manager %s: %w", c.Version, err)
	}
	published := &Published{Label: "cert-manager", Version: c.Version, Files: map[string]string{}}
	published.add(location, path.Base(location.Path))
	for _, object := range objects {
		published.Images = append(published.Images, imagesOf(object)...)
	}
	slices.Sort(published.Images)
	published.Images = slices.Compact(published.Images)
	return published, nil
}

// imagesOf answers the images of an object that holds a pod's template.
func imagesOf(object *unstructured.Unstructured) []string {
	var images []string
	for _, list := range []string{"initContainers", "containers"} {
		containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", list)
		for _, item := range containers {
			container, _ := item.(map[string]any)
			if image, ok := container["image"].(string); ok && image != "" {
				images = append(images, image)
			}
		}
	}
	return images
}
