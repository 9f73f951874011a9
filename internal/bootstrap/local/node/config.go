// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

// config answers how the container is started: its image's and its pod's word
// together.
func (c *container) config(ctx context.Context, image *oci.Image) (*sandbox.ContainerConfig, error) {
	pod := c.w.object()
	env, err := c.environment(ctx, pod)
	if err != nil {
		return nil, err
	}
	config := &sandbox.ContainerConfig{
		Name: c.spec.Name, Root: image.Root,
		Args:    c.command(image, env),
		Env:     withImageEnv(image.Config.Env, env),
		Dir:     c.spec.WorkingDir,
		LogPath: c.logPath(c.attemptNumber()),
	}
	if len(config.Args) == 0 {
		return nil, errors.New("no command specified")
	}
	if config.Dir == "" {
		config.Dir = image.Config.WorkingDir
	}
	if err := os.MkdirAll(filepath.Dir(config.LogPath), 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of logs: %w", err)
	}
	if err := c.secure(config, pod, image); err != nil {
		return nil, err
	}
	if config.Mounts, err = c.mounts(pod, env); err != nil {
		return nil, err
	}
	return config, nil
}

func (c *container) attemptNumber() int {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.attempt
}

// command answers what is executed: as Kubernetes has it, command replaces the
// image's entrypoint and drops its arguments, args replace these.
func (c *container) command(image *oci.Image, env []corev1.EnvVar) []string {
	expand := expander(env)
	if len(c.spec.Command) > 0 {
		return append(expandAll(c.spec.Command, expand), expandAll(c.spec.Args, expand)...)
	}
	args := image.Config.Cmd
	if len(c.spec.Args) > 0 {
		args = expandAll(c.spec.Args, expand)
	}
	return append(append([]string{}, image.Config.Entrypoint...), args...)
}

func expandAll(texts []string, expand func(string) string) []string {
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = expand(text)
	}
	return out
}

// withImageEnv answers the whole environment: the image's, then the pod's.
func withImageEnv(image []string, env []corev1.EnvVar) []string {
	out := make([]string, 0, len(image)+len(env))
	set := map[string]bool{}
	for _, v := range env {
		set[v.Name] = true
	}
	for _, text := range image {
		if name, _, _ := strings.Cut(text, "="); !set[name] {
			out = append(out, text)
		}
	}
	for _, v := range env {
		out = append(out, v.Name+"="+v.Value)
	}
	return out
}

// secure fills in what the security contexts say and this node can do.
func (c *container) secure(config *sandbox.ContainerConfig, pod *corev1.Pod, image *oci.Image) error {
	own := c.spec.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	all := pod.Spec.SecurityContext
	if all == nil {
		all = &corev1.PodSecurityContext{}
	}
	uid, gid, err := imageUser(image)
	if err != nil {
		return err
	}
	if v := first(own.RunAsUser, all.RunAsUser); v != nil {
		uid = int(*v)
	}
	if v := first(own.RunAsGroup, all.RunAsGroup); v != nil {
		gid = int(*v)
	}
	if nonRoot := first(own.RunAsNonRoot, all.RunAsNonRoot); nonRoot != nil && *nonRoot && uid == 0 {
		return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", pod.Namespace+"/"+pod.Name, c.spec.Name)
	}
	config.UID, config.GID = uid, gid
	config.ReadOnlyRoot = own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem
	config.Privileged = own.Privileged != nil && *own.Privileged
	config.NoNewPrivileges = own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation
	return nil
}

func first[T any](values ...*T) *T {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

// imageUser reads the image's user: "", "uid", "name", each with ":group".
func imageUser(image *oci.Image) (uid, gid int, err error) {
	user, group, hasGroup := strings.Cut(image.Config.User, ":")
	if user == "" {
		return 0, 0, nil
	}
	if uid, gid, err = lookup(image.Root, "etc/passwd", user); err != nil {
		return 0, 0, fmt.Errorf("image %s runs as user %q: %w", image.Ref, user, err)
	}
	if hasGroup {
		if gid, _, err = lookup(image.Root, "etc/group", group); err != nil {
			return 0, 0, fmt.Errorf("image %s runs as group %q: %w", image.Ref, group, err)
		}
	}
	return uid, gid, nil
}

// lookup finds a name or number in a file of the form of passwd(5) or group(5)
// and answers its third and fourth field. A number need not be there.
func lookup(root, file, name string) (third, fourth int, err error) {
	number, numberErr := strconv.Atoi(name)
	inside, err := os.OpenRoot(root)
	if err != nil {
		return 0, 0, err
	}
	defer inside.Close()
	opened, err := inside.Open(file)
	if err != nil {
		if numberErr == nil {
			return number, 0, nil
		}
		return 0, 0, err
	}
	defer opened.Close()
	scanner := bufio.NewScanner(opened)
	for scanner.Scan() {
		fields := strings.Split(scanner.Text(), ":")
		if len(fields) < 4 || fields[0] != name && fields[2] != name {
			continue
		}
		if third, err = strconv.Atoi(fields[2]); err != nil {
			return 0, 0, fmt.Errorf("%s: line of %s: %w", file, name, err)
		}
		fourth, _ = strconv.Atoi(fields[3]) // a group's members in group(5)
		return third, fourth, nil
	}
	if err := scanner.Err(); err != nil {
		return 0, 0, fmt.Errorf("reading %s: %w", file, err)
	}
	if numberErr == nil {
		return number, 0, nil
	}
	return 0, 0, fmt.Errorf("%s has no such entry", file)
}

// mounts answers the container's volumes and the file for its last word.
func (c *container) mounts(pod *corev1.Pod, env []corev1.EnvVar) ([]sandbox.Mount, error) {
	mounts := make([]sandbox.Mount, 0, len(c.spec.VolumeMounts)+1)
	for _, m := range c.spec.VolumeMounts {
		source, readOnly, err := c.w.volumes.source(m.Name)
		if err != nil {
			return nil, err
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			sub = expander(env)(m.SubPathExpr)
		}
		if sub != "" {
			if source, err = subPath(source, sub); err != nil {
				return nil, fmt.Errorf("subPath %q of volume %s: %w", sub, m.Name, err)
			}
		}
		mounts = append(mounts, sandbox.Mount{Source: source, Target: m.MountPath, ReadOnly: readOnly || m.ReadOnly})
	}
	target := c.spec.TerminationMessagePath
	if target == "" {
		target = corev1.TerminationMessagePathDefault
	}
	file := c.messageFile()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, fmt.Errorf("making the file for the termination message of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return nil, fmt.Errorf("making the file for the termination message of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	mounts = append(mounts, sandbox.Mount{Source: file, Target: target})
	if err := makeNested(mounts, c.w.dir); err != nil {
		return nil, fmt.Errorf("making the mount points inside the volumes of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return mounts, nil
}

// makeNested makes the folders and files on which mounts inside of a read-only
// volume are to lie, as long as the volume can be written to: those of the pod's
// own folder, as the kubelet does (MakeNestedMountpoints in pkg/volume/util of
// k8s.io/kubernetes).
func makeNested(mounts []sandbox.Mount, own string) error {
	for _, outer := range mounts {
		if !outer.ReadOnly || !strings.HasPrefix(outer.Source, own+string(filepath.Separator)) {
			continue
		}
		for _, inner := range mounts {
			point, err := filepath.Rel(outer.Target, inner.Target)
			if err != nil || point == "." || !filepath.IsLocal(point) {
				continue
			}
			if err := makePoint(outer.Source, point, inner.Source); err != nil {
				return err
			}
		}
	}
	return nil
}

// makePoint makes a mount point for source inside a volume.
func makePoint(volume, point, source string) error {
	inside, err := os.OpenRoot(volume)
	if err != nil {
		return err
	}
	defer inside.Close()
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return inside.MkdirAll(point, 0o755)
	}
	if err := inside.MkdirAll(filepath.Dir(point), 0o755); err != nil {
		return err
	}
	f, err := inside.OpenFile(point, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// subPath answers a path inside a volume, made as a folder where it is not
// there, and never one outside of it.
func subPath(volume, sub string) (string, error) {
	if filepath.IsAbs(sub) || !filepath.IsLocal(sub) {
		return "", errors.New("it leads out of the volume")
	}
	root, err := filepath.EvalSymlinks(volume)
	if err != nil {
		return "", err
	}
	inside, err := os.OpenRoot(root)
	if err != nil {
		return "", err
	}
	defer inside.Close()
	if _, err := inside.Stat(sub); errors.Is(err, os.ErrNotExist) {
		if err := inside.MkdirAll(sub, 0o755); err != nil {
			return "", err
		}
	} else if err != nil { // links that lead out of it, among others
		return "", err
	}
	return filepath.EvalSymlinks(filepath.Join(root, sub))
}
