// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// exampleValues are the substitutions of the example, as a user's variables give
// them.
var exampleValues = map[string]string{
	"TEMPLATE_ID": "9000", "NODE": "pve1", "BRIDGE": "vmbr0", "VIP": "10.0.0.150", "ADDRESSES": "10.0.0.160-10.0.0.180", "PREFIX": "24",
	"GATEWAY": "10.0.0.1", "DNS_SERVER": "10.0.0.2",
}

// workers are added to the example where a test needs some.
const workers = `---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {name: workers, namespace: kmgt}
spec:
  clusterName: kmgt
  replicas: 2
  selector: {matchLabels: {}}
  template:
    spec:
      clusterName: kmgt
      version: v1.36.2
      bootstrap: {configRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: TalosConfigTemplate, name: workers}}
      infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: ProxmoxMachineTemplate, name: kmgtcp}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1alpha3
kind: TalosConfigTemplate
metadata: {name: workers, namespace: kmgt}
spec:
  template:
    spec:
      generateType: worker
      talosVersion: v1.13
      configPatches:
        - {op: add, path: /machine/kubelet/extraArgs, value: {cloud-provider: external}}
        - {op: add, path: /cluster/externalCloudProvider, value: {enabled: true}}
`

func exampleText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/talos-proxmox/kmgt.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func exampleSecrets(t *testing.T) *Manifest {
	t.Helper()
	secrets, err := ParseSecrets("apiVersion: v1\nkind: Secret\nmetadata: {name: proxmox-credentials, namespace: kmgt}\n")
	if err != nil {
		t.Fatal(err)
	}
	return secrets
}

// want is a problem that a test plants.
type want struct {
	severity Severity
	// says is in the message, line in the line of the text that it names; line may
	// be empty for a problem of the text as a whole.
	says, line string
}

func wrong(says, line string) []want    { return []want{{Wrong, says, line}} }
func doubtful(says, line string) []want { return []want{{Doubtful, says, line}} }

// expectProblems compares the problems with those wanted, one to one.
func expectProblems(t *testing.T, text string, problems []Problem, wanted []want) {
	t.Helper()
	lines := strings.Split(text, "\n")
	for _, w := range wanted {
		i := slices.IndexFunc(problems, func(p Problem) bool { return p.Severity == w.severity && strings.Contains(p.Error(), w.says) })
		if i < 0 {
			t.Errorf("no problem of severity %d says %q", w.severity, w.says)
			continue
		}
		p := problems[i]
		problems = slices.Delete(slices.Clone(problems), i, i+1)
		if w.line == "" {
			continue
		}
		if p.Line < 1 || p.Line > len(lines) || !strings.Contains(lines[p.Line-1], w.line) || p.Document == 0 {
			t.Errorf("%q names document %d, line %d, want the line with %q", p.Error(), p.Document, p.Line, w.line)
		}
	}
	for _, p := range problems {
		t.Errorf("a problem that was not planted (severity %d): %v", p.Severity, p)
	}
}

// badManifest is one row: the example, with workers if wanted, in which old became
// changed, or to which added was added.
type badManifest struct {
	workers      bool
	old, changed string
	added        string
	values       map[string]string
	options      func(*CheckOptions)
	want         []want
}

func (b badManifest) text(t *testing.T) string {
	t.Helper()
	text := exampleText(t)
	if b.workers {
		text += workers
	}
	if b.old != "" {
		if !strings.Contains(text, b.old) {
			t.Fatalf("the text has no %q", b.old)
		}
		text = strings.Replace(text, b.old, b.changed, 1)
	}
	return text + b.added
}

func runBadManifests(t *testing.T, tests map[string]badManifest) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text := test.text(t)
			values := maps.Clone(exampleValues)
			maps.Copy(values, test.values)
			maps.DeleteFunc(values, func(name, _ string) bool { return !slices.Contains(Placeholders(text), name) })
			manifest, err := Load(text, values)
			if err != nil {
				t.Fatal(err)
			}
			options := CheckOptions{Namespace: "kmgt", Name: "kmgt", Secrets: exampleSecrets(t)}
			if test.options != nil {
				test.options(&options)
			}
			expectProblems(t, text, manifest.Check(options), test.want)
		})
	}
}

func TestAGoodManifestHasNoProblems(t *testing.T) {
	runBadManifests(t, map[string]badManifest{
		"the example":              {},
		"the example with workers": {workers: true},
		"three control planes":     {old: "replicas: 1", changed: "replicas: 3"},
		"an endpoint by name, which no address can be compared with": {values: map[string]string{"VIP": "10.0.0.150"}, old: `host: "${VIP}"`, changed: "host: api.example.com"},
		"a virtual address on a VLAN":                                {old: `vip: {ip: "${VIP}"}`, changed: `vlans: [{vlanId: 7, vip: {ip: "${VIP}"}}]`},
		"a virtual address as a document of its own":                 {old: "        - |\n", changed: "        - |\n          apiVersion: v1alpha1\n          kind: Layer2VIPConfig\n          name: ${VIP}\n          link: eth0\n        - |\n"},
		"a patch of several documents":                               {old: "        - |\n", changed: "        - |\n          machine: {sysctls: {a: \"1\"}}\n          ---\n          apiVersion: v1alpha1\n          kind: HostnameConfig\n          auto: stable\n        - |\n"},
		"a core kind in an older version":                            {added: "---\napiVersion: cluster.x-k8s.io/v1beta1\nkind: MachineHealthCheck\nmetadata: {name: a, namespace: kmgt}\nspec: {clusterName: kmgt, selector: {matchLabels: {a: b}}, unhealthyConditions: [{type: Ready, status: Unknown, timeout: 300s}]}\n"},
		"a machine's own network of one address":                     {values: map[string]string{"PREFIX": "32"}},
		"a template chosen by tags":                                  {old: "templateID: ${TEMPLATE_ID}", changed: "templateSelector: {matchTags: [talos]}"},
		"an autoscaled MachineDeployment": {workers: true, old: "metadata: {name: workers, namespace: kmgt}\nspec:\n  clusterName: kmgt\n  replicas: 2",
			changed: "metadata: {name: workers, namespace: kmgt, annotations: {cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size: \"1\", cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size: \"5\"}}\nspec:\n  clusterName: kmgt"},
		"surge as a share of the machines":              {workers: true, old: "  replicas: 2", changed: "  replicas: 2\n  rollout: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 50%}}}"},
		"a topology where the gate is on":               {added: topology, options: func(o *CheckOptions) { o.Topology = ptr.To(true) }},
		"nothing is said of a Secret that is not known": {options: func(o *CheckOptions) { o.Secrets = nil }},
	})
}

// topology is a ClusterClass, which needs the feature gate.
const topology = `---
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {name: quick, namespace: kmgt}
spec:
  infrastructure: {templateRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1alpha2, kind: ProxmoxClusterTemplate, name: quick}}
  controlPlane: {templateRef: {apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: KubeadmControlPlaneTemplate, name: quick}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha2
kind: ProxmoxClusterTemplate
metadata: {name: quick, namespace: kmgt}
spec: {template: {spec: {}}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlaneTemplate
metadata: {name: quick, namespace: kmgt}
spec: {template: {spec: {kubeadmConfigSpec: {}}}}
`

func TestBadNamesKindsAndReferences(t *testing.T) {
	runBadManifests(t, map[string]badManifest{
		"a Secret belongs elsewhere": {added: "---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", want: wrong("secrets_wo", "kind: Secret")},
		"an object in another namespace": {old: "kind: ProxmoxMachineTemplate\nmetadata: {name: kmgtcp, namespace: kmgt}", changed: "kind: ProxmoxMachineTemplate\nmetadata: {name: kmgtcp, namespace: other}",
			want: wrong(`its namespace is "other"`, "namespace: other")},
		"a Cluster of another name": {old: "kind: Cluster\nmetadata: {name: kmgt,", changed: "kind: Cluster\nmetadata: {name: other,", want: wrong(`named "other"`, "name: other")},
		"two Clusters":              {added: "---\napiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: two, namespace: kmgt}\nspec: {paused: true}\n", want: wrong("more than one Cluster", "name: two")},
		"a name that the API server refuses": {old: "kind: ProxmoxCluster\nmetadata: {name: kmgt,", changed: "kind: ProxmoxCluster\nmetadata: {name: Kmgt,",
			want: []want{{Wrong, `the name "Kmgt" is not taken`, "name: Kmgt"}, {Wrong, `refers to ProxmoxCluster "kmgt"`, "infrastructureRef"}}},
		"a MachineDeployment of another cluster": {workers: true, old: "spec:\n  clusterName: kmgt", changed: "spec:\n  clusterName: other", want: wrong(`belongs to the Cluster "other"`, "clusterName: other")},
		"machines of another cluster":            {workers: true, old: "      clusterName: kmgt", changed: "      clusterName: other", want: wrong("spec.template.spec.clusterName", "clusterName: other")},
		"a label of another cluster": {workers: true, old: "kind: TalosConfigTemplate\nmetadata: {name: workers,", changed: "kind: TalosConfigTemplate\nmetadata: {labels: {cluster.x-k8s.io/cluster-name: other}, name: workers,",
			want: wrong(`belongs to the Cluster "other"`, "cluster-name: other")},
		"a control plane that is not there": {old: "kind: TalosControlPlane, name: kmgtcp", changed: "kind: TalosControlPlane, name: missing",
			want: wrong(`spec.controlPlaneRef: refers to TalosControlPlane "missing", which is not in the manifest; of that kind it has "kmgtcp"`, "name: missing")},
		"a machine template that is not there": {old: "kind: ProxmoxMachineTemplate, name: kmgtcp", changed: "kind: ProxmoxMachineTemplate, name: missing",
			want: wrong(`spec.infrastructureTemplate: refers to ProxmoxMachineTemplate "missing"`, "name: missing")},
		"an infrastructure cluster that is not there": {old: "kind: ProxmoxCluster, name: kmgt", changed: "kind: ProxmoxCluster, name: missing", want: wrong(`ProxmoxCluster "missing"`, "name: missing")},
		"a bootstrap template that is not there":      {workers: true, old: "kind: TalosConfigTemplate, name: workers", changed: "kind: TalosConfigTemplate, name: missing", want: wrong(`TalosConfigTemplate "missing"`, "name: missing")},
		"a reference into another namespace": {old: "name: kmgtcp, namespace: kmgt}\n  controlPlaneConfig", changed: "name: kmgtcp, namespace: other}\n  controlPlaneConfig",
			want: wrong(`it points into the namespace "other"`, "namespace: other")},
		"a pool that is not there": {old: "model: virtio}", changed: "model: virtio, ipPoolRef: [{apiGroup: ipam.cluster.x-k8s.io, kind: InClusterIPPool, name: missing}]}",
			want: doubtful(`InClusterIPPool "missing"`, "ipPoolRef")},
		"a class that is not there": {old: "spec:\n  clusterNetwork:", changed: "spec:\n  topology: {classRef: {name: missing}, version: v1.36.2}\n  clusterNetwork:",
			options: func(o *CheckOptions) { o.Topology = ptr.To(true) }, want: wrong(`ClusterClass "missing"`, "topology:")},
		"a class in another namespace": {old: "spec:\n  clusterNetwork:", changed: "spec:\n  topology: {classRef: {name: shared, namespace: classes}, version: v1.36.2}\n  clusterNetwork:",
			options: func(o *CheckOptions) { o.Topology = ptr.To(true) }, want: doubtful("does not move with the cluster", "topology:")},
		"a misspelt kind": {old: "kind: ProxmoxMachineTemplate\n", changed: "kind: ProxmoxMachineTemplat\n",
			want: []want{{Doubtful, "did you mean ProxmoxMachineTemplate?", "kind: ProxmoxMachineTemplat"}, {Wrong, `refers to ProxmoxMachineTemplate "kmgtcp"`, "infrastructureTemplate"}}},
		"a kind of another group": {added: "---\napiVersion: cluster.x-k8s.io/v1beta2\nkind: ClusterResourceSet\nmetadata: {name: a, namespace: kmgt}\n",
			want: doubtful("did you mean that of addons.cluster.x-k8s.io?", "kind: ClusterResourceSet")},
		"a kind that nobody knows": {added: "---\napiVersion: example.com/v1\nkind: Thing\nmetadata: {name: a, namespace: kmgt}\n", want: doubtful("taken unchecked", "kind: Thing")},
		"a version that is not served": {old: "infrastructure.cluster.x-k8s.io/v1alpha2\nkind: ProxmoxCluster", changed: "infrastructure.cluster.x-k8s.io/v1beta9\nkind: ProxmoxCluster",
			want: doubtful("known in v1alpha1 and v1alpha2, not in v1beta9", "v1beta9")},
		"a reference to a version that is not served": {old: "apiVersion: infrastructure.cluster.x-k8s.io/v1alpha2, kind: ProxmoxMachineTemplate", changed: "apiVersion: infrastructure.cluster.x-k8s.io/v1beta9, kind: ProxmoxMachineTemplate",
			want: doubtful("asks for version v1beta9", "v1beta9")},
		"a misspelt field of a Cluster":    {old: "pods: {cidrBlocks", changed: "podz: {cidrBlocks", want: doubtful("spec.clusterNetwork.podz: cluster.x-k8s.io/v1beta2 Cluster has no such field", "podz")},
		"a field of the wrong type":        {workers: true, old: "  replicas: 2", changed: "  replicas: two", want: wrong("cannot unmarshal string as int32", "two")},
		"a topology where the gate is off": {added: topology, options: func(o *CheckOptions) { o.Topology = ptr.To(false) }, want: wrong("CLUSTER_TOPOLOGY", "spec:")},
		"a topology where the gate is not known": {added: topology, options: func(o *CheckOptions) { o.New = true },
			want: []want{{Doubtful, "is not known yet: set CLUSTER_TOPOLOGY", "spec:"}, {Doubtful, "installs a network plugin", "cni:"}}},
	})
}

func TestBadNetworks(t *testing.T) {
	runBadManifests(t, map[string]badManifest{
		"services inside the pods' network": {old: "10.96.0.0/12", changed: "10.244.128.0/20", want: wrong("10.244.128.0/20 overlaps 10.244.0.0/16 of spec.clusterNetwork.pods", "10.244.128.0/20")},
		"pods that overlap each other":      {old: "[10.244.0.0/16]", changed: "[10.244.0.0/16, 10.244.7.0/24]", want: wrong("10.244.7.0/24 overlaps", "10.244.7.0/24")},
		"pods in the network of the machines": {old: "[10.244.0.0/16]", changed: "[10.0.0.0/16]",
			want: []want{{Wrong, "10.0.0.0/16 overlaps the network of the machines, 10.0.0.0/24", "10.0.0.0/16"}, {Wrong, "the control plane endpoint 10.0.0.150 lies in the Cluster's network", "controlPlaneEndpoint"}}},
		"services in the network of the machines": {values: map[string]string{"VIP": "10.0.0.150"}, old: "10.96.0.0/12", changed: "10.0.0.0/25",
			want: wrong("overlaps the network of the machines", "10.0.0.0/25")},
		"a network that is none":                  {old: "10.96.0.0/12", changed: "10.96.0.0", want: wrong("not a CIDR block", "10.96.0.0]")},
		"services too many for the API server":    {old: "10.96.0.0/12", changed: "11.0.0.0/8", want: wrong("takes /12 at most", "11.0.0.0/8")},
		"an address that is none":                 {values: map[string]string{"ADDRESSES": "10.0.0.160 to 180"}, want: wrong("neither an address nor a range", "ADDRESSES")},
		"a range that runs backwards":             {values: map[string]string{"ADDRESSES": "10.0.0.180-10.0.0.160"}, want: wrong("neither an address nor a range", "ADDRESSES")},
		"no addresses at all":                     {old: `addresses: ["${ADDRESSES}"]`, changed: "addresses: []", want: wrong("there are no addresses", "addresses: []")},
		"addresses outside the gateway's network": {values: map[string]string{"ADDRESSES": "10.0.1.160-10.0.1.180"}, want: wrong("lies outside the network 10.0.0.0/24", "ADDRESSES")},
		"a gateway that is no address":            {values: map[string]string{"GATEWAY": "router"}, want: wrong(`"router" is not an address`, "GATEWAY")},
		"a prefix that does not fit":              {values: map[string]string{"PREFIX": "33"}, want: wrong("a prefix of 33 bits does not fit", "PREFIX")},
		"IPv6 addresses as ipv4Config": {values: map[string]string{"ADDRESSES": "fd00::10-fd00::20", "GATEWAY": "fd00::1", "PREFIX": "64", "VIP": "fd00::5"},
			want: wrong("the addresses of ipv4Config are of the other family", "ipv4Config")},
		"an endpoint among the machines' addresses": {values: map[string]string{"VIP": "10.0.0.170"}, want: wrong("is one of the machines' addresses", "controlPlaneEndpoint")},
		"an endpoint that is the gateway":           {values: map[string]string{"VIP": "10.0.0.1"}, want: wrong("is the gateway", "controlPlaneEndpoint")},
		"an endpoint outside the network":           {values: map[string]string{"VIP": "10.9.0.150"}, want: doubtful("lies outside the machines' network", "controlPlaneEndpoint")},
		"an endpoint in the pods' network": {values: map[string]string{"VIP": "10.244.0.9"},
			want: []want{{Wrong, "lies in the Cluster's network 10.244.0.0/16", "controlPlaneEndpoint"}, {Doubtful, "lies outside the machines' network", "controlPlaneEndpoint"}}},
		"no endpoint":                      {old: `controlPlaneEndpoint: {host: "${VIP}", port: 6443}`, changed: "externalManagedControlPlane: false", want: wrong("the address of the API server is missing", "spec:")},
		"a pool of one address":            {values: map[string]string{"ADDRESSES": "10.0.0.160"}, want: wrong("too few addresses: the machines need 1, and a rollout 1 more", "ADDRESSES")},
		"a pool that the gateway shortens": {values: map[string]string{"ADDRESSES": "10.0.0.1-10.0.0.2", "DNS_SERVER": "10.0.0.9"}, want: wrong("too few addresses", "ADDRESSES")},
		"a pool too small for the workers": {workers: true, values: map[string]string{"ADDRESSES": "10.0.0.160-10.0.0.163"}, want: wrong("the machines need 3, and a rollout 2 more", "ADDRESSES")},
		"a DNS server that is no address":  {values: map[string]string{"DNS_SERVER": "dns.example.com"}, want: wrong(`"dns.example.com" is not an address`, "DNS_SERVER")},
		"no DNS server":                    {old: `dnsServers: ["${DNS_SERVER}"]`, changed: "dnsServers: []", want: wrong("no DNS server", "dnsServers")},
		"no addresses for CAPMOX": {old: `  ipv4Config: {addresses: ["${ADDRESSES}"], prefix: ${PREFIX}, gateway: "${GATEWAY}"}` + "\n", changed: "",
			want: wrong("neither an ipv4Config nor an ipv6Config", "spec:")},
	})
}

func TestBadMachines(t *testing.T) {
	runBadManifests(t, map[string]badManifest{
		"two control planes":                     {old: "replicas: 1", changed: "replicas: 2", want: wrong("use an odd number", "replicas: 2")},
		"no control plane":                       {old: "replicas: 1", changed: "replicas: 0", want: wrong("at least one machine", "replicas: 0")},
		"replicas that are no number":            {old: "replicas: 1", changed: "replicas: one", want: wrong("one is not a whole number", "replicas: one")},
		"one control plane without surge":        {old: "replicas: 1", changed: "replicas: 1\n  rolloutStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0}}", want: wrong("no rollout ever goes on", "maxSurge: 0")},
		"a surge that is no share":               {workers: true, old: "  replicas: 2", changed: "  replicas: 2\n  rollout: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: x%}}}", want: wrong("neither a number nor a percentage", "maxSurge: x%")},
		"no Kubernetes version":                  {old: "  version: v1.36.2\n", changed: "", want: wrong("the Kubernetes version is missing", "spec:")},
		"a version without its v":                {old: "version: v1.36.2", changed: "version: 1.36.2", want: wrong(`"1.36.2" is not a version`, "version: 1.36.2")},
		"a version of two numbers":               {old: "version: v1.36.2", changed: "version: v1.36", want: wrong(`"v1.36" is not a version`, "version: v1.36")},
		"a version that YAML takes for a number": {old: "version: v1.36.2", changed: "version: 1.36", want: wrong("is not a text: put it in quotes", "version: 1.36")},
		"workers newer than the control plane": {workers: true, old: "      version: v1.36.2", changed: "      version: v1.37.0",
			want: []want{{Wrong, "newer than the control plane's", "v1.37.0"}, {Doubtful, "do not go together", "v1.37.0"}}},
		"workers too old":                   {workers: true, old: "      version: v1.36.2", changed: "      version: v1.32.2", want: wrong("4 minor versions older", "v1.32.2")},
		"a Talos version that is none":      {old: "talosVersion: v1.13\n", changed: "talosVersion: latest\n", want: wrong(`"latest" is not a Talos version`, "talosVersion: latest")},
		"a Talos version without its v":     {old: "talosVersion: v1.13\n", changed: "talosVersion: 1.13.7\n", want: wrong("is not a Talos version", "talosVersion: 1.13.7")},
		"a Kubernetes too new for Talos":    {old: "talosVersion: v1.13\n", changed: "talosVersion: v1.10\n", want: doubtful("Talos v1.10 (line 34) and Kubernetes v1.36.2 do not go together", "version: v1.36.2")},
		"a Kubernetes too old for Talos":    {old: "version: v1.36.2", changed: "version: v1.28.2", want: doubtful("too old to be used with Talos", "version: v1.28.2")},
		"memory that is no multiple of 8":   {old: "memoryMiB: 8192", changed: "memoryMiB: 8190", want: wrong("8190 MiB is not a multiple of 8", "memoryMiB")},
		"a disk too small":                  {old: "sizeGb: 20", changed: "sizeGb: 4", want: wrong("4 GB is too small", "sizeGb: 4")},
		"no cores":                          {old: "numCores: 4", changed: "numCores: 0", want: wrong("numCores: a VM needs at least one", "numCores: 0")},
		"a template id of Proxmox's own":    {values: map[string]string{"TEMPLATE_ID": "9"}, want: wrong("9 is not the id of a VM", "TEMPLATE_ID")},
		"a template id that is no number":   {values: map[string]string{"TEMPLATE_ID": "talos"}, want: wrong("talos is not a whole number", "TEMPLATE_ID")},
		"no template":                       {old: "      templateID: ${TEMPLATE_ID}\n", changed: "", want: wrong("it names no VM template", "spec:")},
		"a template with a provider id":     {old: "      numSockets: 1", changed: "      providerID: proxmox://a\n      numSockets: 1", want: wrong("cannot have a provider id", "providerID: proxmox")},
		"a linked clone on another storage": {old: "      numSockets: 1", changed: "      full: false\n      storage: local-lvm\n      numSockets: 1", want: wrong("takes no storage", "storage: local-lvm")},
		"no network device":                 {old: `[{name: net0, bridge: "${BRIDGE}", model: virtio}]`, changed: "[]", want: wrong("at least one network device", "networkDevices: []")},
		"network devices with a gap":        {old: "model: virtio}]", changed: "model: virtio}, {name: net2, bridge: b}]", want: wrong("there is no net1", "net2")},
		"a VLAN that is none":               {old: "model: virtio}", changed: "model: virtio, vlan: 5000}", want: wrong("5000 is not a VLAN", "vlan: 5000")},
		"CAPMOX waits for cloud-init":       {old: "skipCloudInitStatus: true", changed: "skipCloudInitStatus: false", want: doubtful("Talos has no cloud-init", "skipCloudInitStatus")},
		"credentials elsewhere":             {old: "credentialsRef: {name: proxmox-credentials, namespace: kmgt}", changed: "credentialsRef: {name: proxmox-credentials, namespace: capmox-system}", want: wrong("the credentials lie in the namespace", "credentialsRef")},
		"credentials that nobody makes":     {old: "credentialsRef: {name: proxmox-credentials,", changed: "credentialsRef: {name: missing,", want: doubtful(`secrets_wo has no Secret "missing"`, "credentialsRef")},
	})
}

func TestBadTalosConfigurations(t *testing.T) {
	runBadManifests(t, map[string]badManifest{
		"a virtual address beside the endpoint": {old: `vip: {ip: "${VIP}"}`, changed: "vip: {ip: 10.0.0.151}", want: wrong("the virtual address is 10.0.0.151, but the control plane endpoint is 10.0.0.150 (line 18)", "10.0.0.151")},
		"another one on a VLAN":                 {old: `vip: {ip: "${VIP}"}`, changed: "vlans: [{vlanId: 7, vip: {ip: 10.0.0.151}}]", want: wrong("the virtual address is 10.0.0.151", "10.0.0.151")},
		"another one as a document": {old: "        - |\n", changed: "        - |\n          machine: {sysctls: {a: \"1\"}}\n          ---\n          apiVersion: v1alpha1\n          kind: Layer2VIPConfig\n          name: 10.0.0.151\n          link: eth0\n        - |\n",
			want: wrong("the virtual address is 10.0.0.151", "name: 10.0.0.151")},
		"another one as a JSON patch": {old: "      strategicPatches:", changed: "      configPatches:\n        - {op: add, path: /machine/network/interfaces/0/vip, value: {ip: 10.0.0.151}}\n      strategicPatches:",
			want: wrong("the virtual address is 10.0.0.151", "10.0.0.151")},
		"a worker with a virtual address": {workers: true, old: "      configPatches:\n", changed: "      configPatches:\n        - {op: add, path: /machine/network/interfaces/-, value: {interface: eth0, vip: {ip: 10.0.0.150}}}\n",
			want: wrong("a virtual address is for control planes", "10.0.0.150")},
		"no virtual address": {old: `                  vip: {ip: "${VIP}"}` + "\n", changed: "", options: func(o *CheckOptions) { o.New = true },
			want: []want{{Doubtful, "no patch gives a machine the virtual address 10.0.0.150", "controlplane:"}, {Doubtful, "installs a network plugin", "cni:"}}},
		"a patch that is no YAML": {old: "          machine:\n            install:", changed: "          machine:\n           - a\n            install:",
			want: wrong("this is not YAML of a Talos machine configuration", "install:")},
		"a patch with a key that Talos does not know":           {old: "            kubelet:\n", changed: "            kubelets: {}\n            kubelet:\n", want: doubtful("Talos v1.13 does not take this patch", "- |")},
		"a control plane of workers":                            {old: "generateType: controlplane", changed: "generateType: worker", want: wrong("need the type controlplane", "generateType: worker")},
		"workers of a control plane":                            {workers: true, old: "generateType: worker", changed: "generateType: controlplane", want: wrong("workers need the type worker", "generateType: controlplane")},
		"an external cloud provider without the kubelet's flag": {old: "extraArgs: {cloud-provider: external, ", changed: "extraArgs: {", want: doubtful("the kubelets' flag is missing", "externalCloudProvider")},
		"an external cloud provider without access to Talos":    {old: "kubernetesTalosAPIAccess: {enabled: true,", changed: "kubernetesTalosAPIAccess: {enabled: false,", want: doubtful("kubernetesTalosAPIAccess is not enabled", "externalCloudProvider")},
		"access to Talos without the role":                      {old: `["os:reader"]`, changed: `["os:admin"]`, want: doubtful("os:reader is not among them", "os:admin")},
		"access to Talos from another namespace":                {old: "allowedKubernetesNamespaces: [kube-system]", changed: "allowedKubernetesNamespaces: [talos]", want: doubtful("kube-system is not among them", "[talos]")},
		"kubelets that wait for nobody":                         {old: "            externalCloudProvider: {enabled: true}\n", changed: "", want: doubtful("the kubelets wait for an external cloud provider", "cloud-provider: external")},
		"no network plugin":                                     {options: func(o *CheckOptions) { o.New = true }, want: doubtful("nothing in the manifest installs a network plugin", "cni: {name: none}")},
	})
}

// TestTheFirstPlanOfTheExample judges the example as its first plan does, with a
// template that is not made yet, and with one mistake planted for each check.
func TestTheFirstPlanOfTheExample(t *testing.T) {
	first := func(o *CheckOptions) { o.New, o.Secrets = true, nil }
	base := []want{{NotChecked, "not checked, since ${TEMPLATE_ID} is known after apply", "templateID"}, {Doubtful, "installs a network plugin", "cni:"}}
	unknown := map[string]string{"TEMPLATE_ID": Unknown("TEMPLATE_ID")}
	runBadManifests(t, map[string]badManifest{
		"as it is": {values: unknown, options: first, want: base},
		"a pool whose bounds are not known": {values: map[string]string{"TEMPLATE_ID": Unknown("TEMPLATE_ID"), "ADDRESSES": Unknown("FIRST") + "-10.0.0.180"}, options: first,
			want: append([]want{{NotChecked, "not checked, since ${FIRST} is known after apply", "ADDRESSES"}}, base...)},
		"an address that is not known": {values: map[string]string{"TEMPLATE_ID": Unknown("TEMPLATE_ID"), "VIP": Unknown("VIP")}, options: first,
			want: append([]want{{NotChecked, "${VIP}", "controlPlaneEndpoint"}, {NotChecked, "vip.ip: not checked, since ${VIP}", "vip: {ip"}, {NotChecked, "strategicPatches[0]: not checked, since ${VIP}", "- |"}}, base...)},
	})
}
