// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// runKubelet brings the cluster's manifests in (on a control plane node), gets
// the kubelet its identity and starts it.
func (n *node) runKubelet(ctx context.Context) error {
	if n.booter.opts.Control == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	var admin *rest.Config
	if n.isControlPlane() {
		var err error
		if err = n.applyManifests(ctx); err != nil {
			return err
		}
		if admin, err = n.adminConfig(); err != nil {
			return err
		}
		if n.kubernetesAccess() != nil {
			n.spawn(n.runKubernetesAccess)
		}
	}
	identity, err := n.awaitIdentity(ctx)
	if err != nil {
		return err
	}
	spec, err := n.kubeletSpec(identity)
	if err != nil {
		return err
	}
	var k Kubelet
	said := ""
	err = poll(ctx, time.Second, func(ctx context.Context) (bool, error) {
		if k, err = n.booter.opts.Control.StartKubelet(ctx, spec); err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			n.logf("kubelet: %v", err)
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("start the kubelet of %s: %w", n.hostname, err)
	}
	n.mu.Lock()
	stopping := ctx.Err() != nil
	if !stopping {
		n.kubelet = k
	}
	n.mu.Unlock()
	if stopping {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return k.Stop(stopCtx)
	}
	n.services.set("kubelet", stateRunning, "Started")
	n.services.health("kubelet", nil)
	if admin != nil {
		return n.applyToNode(ctx, admin)
	}
	return nil
}

// awaitIdentity gets the kubelet's certificate; a worker may have to wait for
// the control plane.
func (n *node) awaitIdentity(ctx context.Context) (*rest.Config, error) {
	var identity *rest.Config
	err := poll(ctx, time.Second, func(ctx context.Context) (bool, error) {
		try, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		var err error
		identity, err = n.kubeletConfig(try)
		return err == nil, err
	})
	return identity, err
}

// kubeletSpec reads the machine configuration.
func (n *node) kubeletSpec(identity *rest.Config) (KubeletSpec, error) {
	m, c := n.cfg.Machine(), n.cfg.Cluster()
	pods, err := firstPrefix(c.Network().PodCIDRs())
	if err != nil {
		return KubeletSpec{}, err
	}
	name := n.nodeName()
	spec := KubeletSpec{
		Cluster: clusterKey(n), Name: name, Address: n.address(), PodAddress: n.booter.fabric.podAlias(n.address()),
		Version: imageVersion(m.Kubelet().Image()), OSImage: "Talos (" + n.talosVersion() + ")",
		Root: n.root(), Dir: n.path("kubelet"), Client: identity,
		Annotations: map[string]string{},
		Taints:      n.taints(),
		DialAPI:     n.dialAPI, Translate: n.booter.fabric.translate,
		ServingBySigning: lastValue(m.Kubelet().ExtraArgs()["rotate-server-certificates"]) == "true",
		PodCIDR:          pods, Domain: c.Network().DNSDomain(), Logf: n.logf,
	}
	if n.isControlPlane() {
		spec.Egress = n.egressSocket()
	}
	if p := m.Features().KubePrism(); p != nil && p.Enabled() {
		spec.KubePrismPort = p.Port()
	}
	if n.externalCloudProvider() {
		// the kubelet notes the address it was given for the cloud provider to check
		spec.Annotations["alpha.kubernetes.io/provided-node-ip"] = n.address().String()
		spec.Taints = append(spec.Taints, corev1.Taint{
			Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule,
		})
	}
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return KubeletSpec{}, fmt.Errorf("make the kubelet's folder: %w", err)
	}
	return spec, nil
}

// nodeName is the name of the Node object.
func (n *node) nodeName() string {
	if n.cfg.Machine().Kubelet().RegisterWithFQDN() {
		return strings.ToLower(n.hostname)
	}
	return shortHostname(n.hostname)
}

// externalCloudProvider says whether the kubelet runs with
// --cloud-provider=external, by the cluster's setting or by its own argument.
func (n *node) externalCloudProvider() bool {
	return n.cfg.Cluster().ExternalCloudProvider().Enabled() ||
		lastValue(n.cfg.Machine().Kubelet().ExtraArgs()["cloud-provider"]) == "external"
}

// taints are those that the node registers with.
func (n *node) taints() []corev1.Taint {
	var out []corev1.Taint
	if n.isControlPlane() && !n.cfg.Cluster().ScheduleOnControlPlanes() {
		out = append(out, corev1.Taint{Key: constants.LabelNodeRoleControlPlane, Effect: corev1.TaintEffectNoSchedule})
	}
	configured := n.cfg.Machine().NodeTaints()
	for _, key := range slices.Sorted(maps.Keys(configured)) {
		value, effect, both := strings.Cut(configured[key], ":") // "value:effect", or the effect alone
		if !both {
			value, effect = "", value
		}
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return out
}

// applyToNode sets what a kubelet may not set on itself: the role and the
// configured labels and annotations, with Talos's own access.
func (n *node) applyToNode(ctx context.Context, admin *rest.Config) error {
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return fmt.Errorf("make Talos's client of the cluster: %w", err)
	}
	name := n.nodeName()
	err = poll(ctx, 500*time.Millisecond, func(ctx context.Context) (bool, error) {
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			obj, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if obj.Labels == nil {
				obj.Labels = map[string]string{}
			}
			if obj.Annotations == nil {
				obj.Annotations = map[string]string{}
			}
			obj.Labels[constants.LabelNodeRoleControlPlane] = ""
			maps.Copy(obj.Labels, n.cfg.Machine().NodeLabels())
			maps.Copy(obj.Annotations, n.cfg.Machine().NodeAnnotations())
			_, err = client.CoreV1().Nodes().Update(ctx, obj, metav1.UpdateOptions{})
			return err
		})
		return err == nil || apierrors.IsForbidden(err) || apierrors.IsInvalid(err), err
	})
	if err != nil {
		return fmt.Errorf("set labels and annotations of Node %s: %w", name, err)
	}
	return nil
}

// lastValue is the effective one of a flag that is given several times.
func lastValue(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}
