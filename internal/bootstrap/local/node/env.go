// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// environment answers the container's variables with their values: those of
// Services, then envFrom, then env, each before the next so that the later wins.
func (c *container) environment(ctx context.Context, pod *corev1.Pod) ([]corev1.EnvVar, error) {
	env, err := c.w.serviceVariables(pod)
	if err != nil {
		return nil, err
	}
	reader := &keyReader{w: c.w, namespace: pod.Namespace}
	for _, from := range c.spec.EnvFrom {
		if env, err = reader.all(ctx, env, from); err != nil {
			return nil, err
		}
	}
	for _, v := range c.spec.Env {
		value, found, err := c.value(ctx, pod, reader, v, env)
		if err != nil {
			return nil, err
		}
		if found {
			env = setVariable(env, v.Name, value)
		}
	}
	return env, nil
}

func (c *container) value(ctx context.Context, pod *corev1.Pod, reader *keyReader, v corev1.EnvVar, before []corev1.EnvVar) (string, bool, error) {
	from := v.ValueFrom
	switch {
	case from == nil:
		return expander(before)(v.Value), true, nil
	case from.FieldRef != nil:
		value, err := c.w.field(pod, from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err := c.w.resource(c, from.ResourceFieldRef)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		return reader.key(ctx, "configmap", r.Name, r.Key, isTrue(r.Optional))
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		return reader.key(ctx, "secret", r.Name, r.Key, isTrue(r.Optional))
	}
	return "", false, fmt.Errorf("variable %s: its source is not known here", v.Name)
}

func isTrue(b *bool) bool { return b != nil && *b }

func setVariable(env []corev1.EnvVar, name, value string) []corev1.EnvVar {
	for i := range env {
		if env[i].Name == name {
			env[i].Value = value
			return env
		}
	}
	return append(env, corev1.EnvVar{Name: name, Value: value})
}

// keyReader reads ConfigMaps and Secrets for variables, each object once.
type keyReader struct {
	w         *worker
	namespace string
	data      map[string]map[string][]byte
}

// read answers an object's keys; nil when there is no such object.
func (r *keyReader) read(ctx context.Context, kind, name string) (map[string][]byte, error) {
	id := kind + "/" + name
	if data, ok := r.data[id]; ok {
		return data, nil
	}
	data, err := r.w.node.read(ctx, kind, r.namespace, name)
	if err != nil {
		return nil, err
	}
	if r.data == nil {
		r.data = map[string]map[string][]byte{}
	}
	r.data[id] = data
	return data, nil
}

func (r *keyReader) key(ctx context.Context, kind, name, key string, optional bool) (string, bool, error) {
	data, err := r.read(ctx, kind, name)
	if err != nil {
		return "", false, err
	}
	value, ok := data[key]
	switch {
	case ok:
		return string(value), true, nil
	case optional:
		return "", false, nil
	case data == nil:
		return "", false, fmt.Errorf("%s %q not found", kind, name)
	}
	return "", false, fmt.Errorf("couldn't find key %s in %s %s/%s", key, kind, r.namespace, name)
}

func (r *keyReader) all(ctx context.Context, env []corev1.EnvVar, from corev1.EnvFromSource) ([]corev1.EnvVar, error) {
	kind, name, optional := "configmap", "", false
	switch {
	case from.ConfigMapRef != nil:
		name, optional = from.ConfigMapRef.Name, isTrue(from.ConfigMapRef.Optional)
	case from.SecretRef != nil:
		kind, name, optional = "secret", from.SecretRef.Name, isTrue(from.SecretRef.Optional)
	}
	data, err := r.read(ctx, kind, name)
	if err != nil {
		return nil, err
	}
	if data == nil && !optional {
		return nil, fmt.Errorf("%s %q not found", kind, name)
	}
	for _, key := range sortedKeys(data) {
		env = setVariable(env, from.Prefix+key, string(data[key]))
	}
	return env, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// read answers the data of a "configmap" or "secret"; nil when there is no such
// object.
func (n *Node) read(ctx context.Context, kind, namespace, name string) (map[string][]byte, error) {
	data := map[string][]byte{}
	if kind == "secret" {
		secret, err := n.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading secret %s/%s: %w", namespace, name, err)
		}
		for key, value := range secret.Data {
			data[key] = value
		}
		return data, nil
	}
	configMap, err := n.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading configmap %s/%s: %w", namespace, name, err)
	}
	for key, value := range configMap.Data {
		data[key] = []byte(value)
	}
	for key, value := range configMap.BinaryData {
		data[key] = value
	}
	return data, nil
}

// serviceVariables answers KUBERNETES_SERVICE_HOST and its like: for the Service
// default/kubernetes always, for those of the pod's namespace unless it has
// enableServiceLinks: false.
func (w *worker) serviceVariables(pod *corev1.Pod) ([]corev1.EnvVar, error) {
	services, err := w.node.cfg.Network.Services(pod.Namespace)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(services, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	var env []corev1.EnvVar
	for _, s := range services {
		kubernetes := s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes"
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 || !links && !kubernetes {
			continue
		}
		for name, value := range variablesOf(s) {
			env = setVariable(env, name, value)
		}
	}
	return env, nil
}

// variablesOf follows pkg/kubelet/envvars of k8s.io/kubernetes.
func variablesOf(s *corev1.Service) map[string]string {
	prefix := strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
	ip := s.Spec.ClusterIP
	env := map[string]string{
		prefix + "_SERVICE_HOST": ip,
		prefix + "_SERVICE_PORT": strconv.Itoa(int(s.Spec.Ports[0].Port)),
	}
	for i, p := range s.Spec.Ports {
		number, protocol := strconv.Itoa(int(p.Port)), strings.ToLower(string(p.Protocol))
		if protocol == "" {
			protocol = "tcp"
		}
		url := protocol + "://" + net.JoinHostPort(ip, number)
		if i == 0 {
			env[prefix+"_PORT"] = url
		}
		if p.Name != "" {
			env[prefix+"_SERVICE_PORT_"+strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_"))] = number
		}
		own := prefix + "_PORT_" + number + "_" + strings.ToUpper(protocol)
		env[own], env[own+"_PROTO"], env[own+"_PORT"], env[own+"_ADDR"] = url, protocol, number, ip
	}
	return env
}

// field answers a field of the pod for variables and files.
func (w *worker) field(pod *corev1.Pod, path string) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return w.node.cfg.Address.String(), nil
	case "status.podIP", "status.podIPs":
		return w.address().String(), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

// subscript splits "metadata.labels['key']".
func subscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	if !ok {
		return "", "", false
	}
	key, ok = strings.CutSuffix(rest, "']")
	return name, key, ok
}

func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, key := range sortedKeys(m) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return strings.Join(lines, "\n")
}

// resource answers a container's request or limit; without a limit, what the
// node has.
func (w *worker) resource(own *container, ref *corev1.ResourceFieldSelector) (string, error) {
	c := own
	if ref.ContainerName != "" {
		if c = w.find(ref.ContainerName); c == nil {
			return "", fmt.Errorf("pod has no container %q", ref.ContainerName)
		}
	}
	if c == nil {
		return "", fmt.Errorf("%s: no container named", ref.Resource)
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	if !ok || kind != "limits" && kind != "requests" {
		return "", fmt.Errorf("unsupported resource %q", ref.Resource)
	}
	list := c.spec.Resources.Limits
	if kind == "requests" {
		list = c.spec.Resources.Requests
	}
	quantity, ok := list[corev1.ResourceName(name)]
	if !ok && kind == "limits" {
		quantity = w.node.status(nil).Allocatable[corev1.ResourceName(name)]
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == string(corev1.ResourceCPU) {
		return strconv.FormatInt(ceilDiv(quantity.MilliValue(), divisor.MilliValue()), 10), nil
	}
	return strconv.FormatInt(ceilDiv(quantity.Value(), divisor.Value()), 10), nil
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// expander answers a function that replaces $(NAME) by a variable's value, and
// $$ by $. What names no variable stays, as in Kubernetes.
func expander(env []corev1.EnvVar) func(string) string {
	values := make(map[string]string, len(env))
	for _, v := range env {
		values[v.Name] = v.Value
	}
	return func(text string) string {
		var out strings.Builder
		for i := 0; i < len(text); i++ {
			if text[i] != '$' || i+1 == len(text) {
				out.WriteByte(text[i])
				continue
			}
			if text[i+1] == '$' {
				out.WriteByte('$')
				i++
				continue
			}
			end := strings.IndexByte(text[i:], ')')
			if text[i+1] != '(' || end < 0 {
				out.WriteByte('$')
				continue
			}
			name := text[i+2 : i+end]
			if value, ok := values[name]; ok {
				out.WriteString(value)
			} else {
				out.WriteString(text[i : i+end+1])
			}
			i += end
		}
		return out.String()
	}
}
