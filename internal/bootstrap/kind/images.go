// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kind

import (
	"context"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"sigs.k8s.io/kind/pkg/cluster/nodes"
	"sigs.k8s.io/kind/pkg/cluster/nodeutils"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// loadImages puts the images of the sources into the nodes that lack them: a
// node's containerd asks registries for all else.
func loadImages(ctx context.Context, sources []string, found []nodes.Node, report progress.Reporter) error {
	for _, text := range sources {
		source, err := oci.ParseSource(text)
		if err != nil {
			return err
		}
		lister, ok := source.(oci.Lister)
		if !ok {
			continue
		}
		references, err := lister.References(ctx)
		if err != nil {
			return err
		}
		for _, node := range found {
			if err := loadInto(ctx, node, source, references, report); err != nil {
				return err
			}
		}
	}
	return nil
}

func loadInto(ctx context.Context, node nodes.Node, source oci.Source, references []string, report progress.Reporter) error {
	missing := map[name.Reference]v1.Image{}
	for _, text := range references {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if _, err := nodeutils.ImageID(node, text); err == nil {
			continue
		}
		reference, err := name.ParseReference(text)
		if err != nil {
			return fmt.Errorf("reading the image reference %q of %s: %w", text, source, err)
		}
		image, err := source.Image(ctx, text)
		if err != nil {
			return err
		}
		missing[reference] = image
	}
	if len(missing) == 0 {
		return nil
	}
	report.Report(ctx, "loading-images", fmt.Sprintf("loading %d images of %s into node %s", len(missing), source, node))
	reader, writer := io.Pipe()
	go func() { _ = writer.CloseWithError(tarball.MultiRefWrite(missing, writer)) }()
	err := nodeutils.LoadImageArchive(node, reader)
	// Ends the writer where the node has stopped reading.
	_ = reader.Close()
	if err != nil {
		return fmt.Errorf("loading the images of %s into node %s: %w", source, node, told(err))
	}
	return nil
}
