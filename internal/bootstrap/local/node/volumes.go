// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volumes are a pod's volumes on disk.
type volumes struct {
	w       *worker
	running sync.WaitGroup

	mu     sync.Mutex
	tokens map[string]token // by volume, source and audience
}

type token struct {
	value   string
	refresh time.Time
}

func newVolumes(w *worker) *volumes { return &volumes{w: w, tokens: map[string]token{}} }

// refreshInterval is how often volumes with content from the API are looked at;
// the kubelet does so about once a minute.
const refreshInterval = 10 * time.Second

// prepare makes all volumes, and fails while what one of them needs is not
// there.
func (v *volumes) prepare(ctx context.Context) error {
	pod := v.w.object()
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if err := v.make(ctx, pod, volume); err != nil {
			return fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", volume.Name, err)
		}
	}
	return nil
}

// follow keeps the content up to date until ctx ends.
func (v *volumes) follow(ctx context.Context) {
	v.running.Go(func() {
		for sleep(ctx, refreshInterval) {
			pod := v.w.object()
			for i := range pod.Spec.Volumes {
				volume := &pod.Spec.Volumes[i]
				if content(volume) == nil {
					continue
				}
				if err := v.make(ctx, pod, volume); err != nil && ctx.Err() == nil {
					v.w.event(corev1.EventTypeWarning, "FailedMount", fmt.Sprintf("updating volume %q: %v", volume.Name, err))
				}
			}
		}
	})
}

// wait waits until follow is over.
func (v *volumes) wait() { v.running.Wait() }

func (v *volumes) dir(name string) string { return filepath.Join(v.w.dir, "volumes", name) }

func (v *volumes) make(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) error {
	if sources := content(volume); sources != nil {
		files, err := v.files(ctx, pod, volume.Name, sources)
		if err != nil {
			return err
		}
		return writeVolume(v.dir(volume.Name), files)
	}
	switch {
	case volume.EmptyDir != nil:
		// World-writable as the kubelet makes it; the pod's folder is closed to
		// others.
		return makeDir(v.dir(volume.Name), 0o777)
	case volume.HostPath != nil:
		return v.makeHostPath(volume.HostPath)
	}
	return errors.New("this node has emptyDir, hostPath, configMap, secret, downwardAPI and projected volumes only")
}

func makeDir(path string, mode os.FileMode) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// source answers where a volume lies on the host, and whether it is read-only by
// its nature.
func (v *volumes) source(name string) (path string, readOnly bool, err error) {
	pod := v.w.object()
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if volume.Name != name {
			continue
		}
		if volume.HostPath != nil {
			return v.hostPath(volume.HostPath), false, nil
		}
		return v.dir(name), content(volume) != nil, nil
	}
	return "", false, fmt.Errorf("pod has no volume %q", name)
}

func (v *volumes) hostPath(h *corev1.HostPathVolumeSource) string {
	return filepath.Join(v.w.node.cfg.Root, filepath.Clean("/"+h.Path))
}

// makeHostPath checks or makes a path below the node's root folder.
func (v *volumes) makeHostPath(h *corev1.HostPathVolumeSource) error {
	path := v.hostPath(h)
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	info, err := os.Stat(path)
	switch {
	case err == nil:
		folder := kind == corev1.HostPathDirectory || kind == corev1.HostPathDirectoryOrCreate
		file := kind == corev1.HostPathFile || kind == corev1.HostPathFileOrCreate
		if folder && !info.IsDir() || file && !info.Mode().IsRegular() {
			return fmt.Errorf("hostPath type check failed: %s is not a %s", h.Path, kind)
		}
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return err
	case kind == corev1.HostPathUnset || kind == corev1.HostPathDirectoryOrCreate: // container runtimes make the former
		return os.MkdirAll(path, 0o755)
	case kind == corev1.HostPathFileOrCreate:
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return file.Close()
	}
	return fmt.Errorf("hostPath type check failed: %s is not a %s", h.Path, kind)
}

// source is one source of a volume's files.
type source struct {
	corev1.VolumeProjection
	mode int32
}

// defaultMode is the mode of files whose volume names none (core/v1's default).
const defaultMode = 0o644

// content answers the sources of a volume whose files come from the API; nil for
// other volumes.
func content(volume *corev1.Volume) []source {
	mode := func(m *int32) int32 {
		if m == nil {
			return defaultMode
		}
		return *m
	}
	switch {
	case volume.Secret != nil:
		s := volume.Secret
		return []source{{mode: mode(s.DefaultMode), VolumeProjection: corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: s.SecretName}, Items: s.Items, Optional: s.Optional,
		}}}}
	case volume.ConfigMap != nil:
		s := volume.ConfigMap
		return []source{{mode: mode(s.DefaultMode), VolumeProjection: corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: s.LocalObjectReference, Items: s.Items, Optional: s.Optional,
		}}}}
	case volume.DownwardAPI != nil:
		s := volume.DownwardAPI
		return []source{{mode: mode(s.DefaultMode), VolumeProjection: corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: s.Items}}}}
	case volume.Projected != nil:
		sources := make([]source, 0, len(volume.Projected.Sources))
		for _, s := range volume.Projected.Sources {
			sources = append(sources, source{VolumeProjection: s, mode: mode(volume.Projected.DefaultMode)})
		}
		return sources
	}
	return nil
}

// files answers what lies in a volume, by path.
func (v *volumes) files(ctx context.Context, pod *corev1.Pod, volume string, sources []source) (map[string]file, error) {
	all := map[string]file{}
	for _, s := range sources {
		var files map[string]file
		var err error
		switch {
		case s.Secret != nil:
			files, err = v.keys(ctx, pod, "secret", s.Secret.Name, s.Secret.Items, isTrue(s.Secret.Optional), s.mode)
		case s.ConfigMap != nil:
			files, err = v.keys(ctx, pod, "configmap", s.ConfigMap.Name, s.ConfigMap.Items, isTrue(s.ConfigMap.Optional), s.mode)
		case s.DownwardAPI != nil:
			files, err = v.fields(pod, s.DownwardAPI.Items, s.mode)
		case s.ServiceAccountToken != nil:
			files, err = v.token(ctx, pod, volume, s.ServiceAccountToken)
		default:
			err = errors.New("a projected source is not known here")
		}
		if err != nil {
			return nil, err
		}
		maps.Copy(all, files)
	}
	return all, nil
}

func (v *volumes) keys(ctx context.Context, pod *corev1.Pod, kind, name string, items []corev1.KeyToPath, optional bool, mode int32) (map[string]file, error) {
	data, err := v.w.node.read(ctx, kind, pod.Namespace, name)
	if err != nil {
		return nil, err
	}
	if data == nil && !optional {
		return nil, fmt.Errorf("%s %q not found", kind, name)
	}
	files := map[string]file{}
	if len(items) == 0 {
		for key, value := range data {
			files[key] = file{data: value, mode: mode}
		}
		return files, nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok && optional {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("%s %q has no key %q", kind, name, item.Key)
		}
		own := mode
		if item.Mode != nil {
			own = *item.Mode
		}
		files[item.Path] = file{data: value, mode: own}
	}
	return files, nil
}

func (v *volumes) fields(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, mode int32) (map[string]file, error) {
	files := map[string]file{}
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = v.w.field(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = v.w.resource(nil, item.ResourceFieldRef)
		}
		if err != nil {
			return nil, err
		}
		own := mode
		if item.Mode != nil {
			own = *item.Mode
		}
		files[item.Path] = file{data: []byte(value), mode: own}
	}
	return files, nil
}

// token answers a service account token that is bound to the pod. It is asked
// for again when a fifth of its life is left, or after a day, as the kubelet
// does (pkg/kubelet/token).
func (v *volumes) token(ctx context.Context, pod *corev1.Pod, volume string, s *corev1.ServiceAccountTokenProjection) (map[string]file, error) {
	// 0600 as the kubelet has it; the one user of the container owns it.
	const mode = 0o600
	id := volume + "\x00" + s.Path + "\x00" + s.Audience
	v.mu.Lock()
	known, ok := v.tokens[id]
	v.mu.Unlock()
	if ok && time.Now().Before(known.refresh) {
		return map[string]file{s.Path: {data: []byte(known.value), mode: mode}}, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: s.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if s.Audience != "" {
		request.Spec.Audiences = []string{s.Audience}
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	answer, err := v.w.node.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking for a token of service account %s/%s: %w", pod.Namespace, account, err)
	}
	life := time.Until(answer.Status.ExpirationTimestamp.Time)
	if asked := s.ExpirationSeconds; asked != nil { // the API server may grant more than it wants to be used
		life = min(life, time.Duration(*asked)*time.Second)
	}
	fresh := token{value: answer.Status.Token, refresh: time.Now().Add(min(life*4/5, 24*time.Hour))}
	v.mu.Lock()
	v.tokens[id] = fresh
	v.mu.Unlock()
	return map[string]file{s.Path: {data: []byte(fresh.value), mode: mode}}, nil
}
