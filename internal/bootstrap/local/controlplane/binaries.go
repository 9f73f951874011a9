// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Binaries are the paths of the four programs.
type Binaries struct {
	Etcd, APIServer, ControllerManager, Scheduler string
}

func (b Binaries) check() error {
	var errs []error
	for name, path := range map[string]string{
		"etcd": b.Etcd, "kube-apiserver": b.APIServer,
		"kube-controller-manager": b.ControllerManager, "kube-scheduler": b.Scheduler,
	} {
		info, err := os.Stat(path)
		switch {
		case path == "":
			errs = append(errs, fmt.Errorf("no path of %s given", name))
		case err != nil:
			errs = append(errs, fmt.Errorf("looking for %s: %w", name, err))
		case info.IsDir() || info.Mode()&0o111 == 0:
			errs = append(errs, fmt.Errorf("%s: %s is not a program", name, path))
		}
	}
	return errors.Join(errs...)
}

// Images are the references of the images that hold the four programs.
type Images struct {
	Etcd, APIServer, ControllerManager, Scheduler string
}

// etcdTag is the tag of registry.k8s.io/etcd that kubeadm uses for Kubernetes
// 1.34 to 1.36 (SupportedEtcdVersion in cmd/kubeadm/app/constants of
// k8s.io/kubernetes v1.36.2).
const etcdTag = "3.6.8-0"

// ImagesOf answers the images of a Kubernetes version ("v1.36.2"), named as
// kubeadm names them.
func ImagesOf(version string) Images {
	const registry = "registry.k8s.io/"
	return Images{
		Etcd:              registry + "etcd:" + etcdTag,
		APIServer:         registry + "kube-apiserver:" + version,
		ControllerManager: registry + "kube-controller-manager:" + version,
		Scheduler:         registry + "kube-scheduler:" + version,
	}
}

// Unpacker answers an image's root file system on disk.
type Unpacker func(ctx context.Context, ref string) (root string, err error)

// Binaries finds the four programs inside the images. They run on the host, so
// they have to be static ones, as the projects' own images have them.
func (i Images) Binaries(ctx context.Context, unpack Unpacker) (Binaries, error) {
	var b Binaries
	for _, want := range []struct {
		ref, name string
		path      *string
	}{
		{i.Etcd, "etcd", &b.Etcd},
		{i.APIServer, "kube-apiserver", &b.APIServer},
		{i.ControllerManager, "kube-controller-manager", &b.ControllerManager},
		{i.Scheduler, "kube-scheduler", &b.Scheduler},
	} {
		root, err := unpack(ctx, want.ref)
		if err != nil {
			return Binaries{}, fmt.Errorf("unpacking %s: %w", want.ref, err)
		}
		if *want.path, err = findProgram(root, want.name); err != nil {
			return Binaries{}, fmt.Errorf("image %s: %w", want.ref, err)
		}
	}
	return b, nil
}

// programDirs are the folders in which the upstream images, distributions'
// rebuilds of them and other builders keep programs.
var programDirs = []string{"usr/local/bin", "usr/bin", "bin", "usr/local/sbin", "usr/sbin", "sbin", ""}

func findProgram(root, name string) (string, error) {
	for _, dir := range programDirs {
		path := filepath.Join(root, dir, name)
		resolved, err := filepath.EvalSymlinks(path)
		if err != nil || !strings.HasPrefix(resolved, filepath.Clean(root)+string(filepath.Separator)) {
			continue // absent, or a link that leads out of the image
		}
		if info, err := os.Stat(resolved); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return resolved, nil
		}
	}
	return "", fmt.Errorf("no program %s in %s", name, strings.Join(programDirs, ", "))
}
