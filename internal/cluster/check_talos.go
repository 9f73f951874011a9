// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/talos"
)

// checkTalos judges the machine configurations of Talos.
func (c *checker) checkTalos() {
	configs := c.talosConfigs()
	groups := c.machineGroups()
	for _, t := range configs {
		c.checkPatches(t)
		c.checkGenerateType(t)
		c.checkVirtualAddresses(t)
		c.checkCloudProvider(t)
		c.checkTalosVersion(t, groups)
	}
	c.checkNetworkPlugin(configs)
	c.checkTalosTemplates(configs, groups)
}

// checkPatches has Talos's own loader read the strategic patches: what it does not
// know, CABPT refuses when the first machine is made.
func (c *checker) checkPatches(t talosConfig) {
	for _, f := range t.spec.at("strategicPatches").items() {
		text, ok := f.value.(string)
		if !ok || !c.known(f) || c.isWrong(f) {
			continue
		}
		if err := talos.CheckPatch(text); err != nil {
			c.doubtful(f, "Talos %s does not take this patch: %v", talos.KnownVersion, err)
		}
	}
}

func (c *checker) checkGenerateType(t talosConfig) {
	f := t.spec.at("generateType")
	kind, ok := c.text(f)
	switch {
	case !ok || kind == "none":
	case t.controlPlane && kind != "controlplane" && kind != "init":
		c.wrong(f, "machines of a control plane need the type controlplane, not %s", kind)
	case !t.controlPlane && kind != "worker" && kind != "join":
		c.wrong(f, "workers need the type worker, not %s", kind)
	}
}

// checkVirtualAddresses wants the virtual address to be the control plane
// endpoint: with another one the first machine boots and nothing ever answers at
// the endpoint.
func (c *checker) checkVirtualAddresses(t talosConfig) {
	e, ok := c.endpoint()
	addresses := t.virtualAddresses()
	for _, f := range addresses {
		if !t.controlPlane {
			c.wrong(f, "a virtual address is for control planes: workers would compete for it")
			continue
		}
		vip, known := c.text(f)
		if known && ok && e.address.IsValid() && vip != e.host {
			c.wrong(f, "the virtual address is %s, but the control plane endpoint is %s (line %d)", vip, e.host, e.field.line())
		}
	}
	if t.controlPlane && len(addresses) == 0 && ok && e.address.IsValid() && c.options.New {
		c.doubtful(t.spec, "no patch gives a machine the virtual address %s: something outside the cluster must answer there", e.host)
	}
}

// checkCloudProvider wants an external cloud provider to come with all that it
// needs: without the kubelet's flag nodes do not wait for it, and without access
// to the Talos API the Talos cloud controller manager never finds their ids.
func (c *checker) checkCloudProvider(t talosConfig) {
	enabled, external := t.last("cluster.externalCloudProvider.enabled")
	external = external && enabled.value == true
	flag, flagged := t.last("machine.kubelet.extraArgs.cloud-provider")
	switch {
	case external && (!flagged || c.known(flag) && flag.value != "external"):
		c.doubtful(enabled, "the kubelets' flag is missing: machine.kubelet.extraArgs.cloud-provider must be external")
	case !external && flagged && flag.value == "external" && t.controlPlane:
		c.doubtful(flag, "the kubelets wait for an external cloud provider, but cluster.externalCloudProvider.enabled is not true")
	}
	if !external || !t.controlPlane {
		return
	}
	access, ok := t.last("machine.features.kubernetesTalosAPIAccess")
	if !ok || access.at("enabled").value != true {
		c.doubtful(enabled, "machine.features.kubernetesTalosAPIAccess is not enabled: the Talos cloud controller manager needs it, and without it no node gets its provider id")
		return
	}
	for member, want := range map[string]string{"allowedRoles": "os:reader", "allowedKubernetesNamespaces": "kube-system"} {
		list := access.at(member)
		if c.known(list) && !slices.ContainsFunc(list.items(), func(f field) bool { return f.value == want }) {
			c.doubtful(list, "%s is not among them: the Talos cloud controller manager runs with it", want)
		}
	}
}

// checkTalosVersion wants a Talos version that runs the machines' Kubernetes.
func (c *checker) checkTalosVersion(t talosConfig, groups []machineGroup) {
	f := t.spec.at("talosVersion")
	text, ok := c.text(f)
	if !ok {
		return
	}
	if err := talos.CheckVersionContract(text); err != nil {
		c.wrong(f, "%q is not a Talos version such as v1.13", text)
		return
	}
	for _, g := range groups {
		uses := g.object.Document == t.spec.object.Document || g.bootstrap.kind == talosTemplateKind && g.bootstrap.name == t.spec.object.GetName()
		if !uses || g.version == nil {
			continue
		}
		if err := talos.SupportsKubernetes(text, g.version.String()); err != nil {
			c.doubtful(g.versionField(), "Talos %s (line %d) and Kubernetes v%s do not go together: %v", text, f.line(), g.version, err)
		}
	}
}

// addonKinds install what a cluster needs from objects of the manifest.
var addonKinds = []schema.GroupKind{
	{Group: "addons.cluster.x-k8s.io", Kind: "ClusterResourceSet"},
	{Group: "addons.cluster.x-k8s.io", Kind: "HelmChartProxy"},
}

// checkNetworkPlugin tells a creation without a network plugin: nodes stay
// NotReady until one is installed.
func (c *checker) checkNetworkPlugin(configs []talosConfig) {
	if !c.options.New || slices.ContainsFunc(addonKinds, func(kind schema.GroupKind) bool { return len(c.objects(kind)) > 0 }) {
		return
	}
	for _, t := range configs {
		f, ok := t.last("cluster.network.cni.name")
		if !ok || f.value != "none" {
			continue
		}
		_, inline := t.last("cluster.inlineManifests")
		_, extra := t.last("cluster.extraManifests")
		if !inline && !extra {
			c.doubtful(f, "nothing in the manifest installs a network plugin: nodes stay NotReady until one comes, for instance by a capi_helm_release that depends on this cluster")
			return
		}
	}
}

// checkTalosTemplates wants CAPMOX not to wait for cloud-init, which Talos has
// not.
func (c *checker) checkTalosTemplates(configs []talosConfig, groups []machineGroup) {
	for _, g := range groups {
		ofTalos := g.object.GroupVersionKind().GroupKind() == talosPlaneKind || g.bootstrap.kind == talosTemplateKind
		if !ofTalos || len(configs) == 0 {
			continue
		}
		for _, o := range c.objects(proxmoxMachineKind) {
			f := o.at("spec.template.spec.checks.skipCloudInitStatus")
			if g.infrastructure.kind == proxmoxMachineKind && o.GetName() == g.infrastructure.name && c.known(f) && f.value != true {
				c.doubtful(f, "Talos has no cloud-init, so CAPMOX would wait for its word in vain: set skipCloudInitStatus to true")
			}
		}
	}
}
