# One template on each node, for storage that is local to each.
resource "capi_proxmox_template" "local" {
  node_names      = ["pve1", "pve2", "pve3"]
  node_tag_prefix = "talos-v1.13.7"
  storage         = "local-zfs"
  cpu_type        = "host"
  disk_size       = 10

  talos = {
    version           = "v1.13.7"
    extensions        = ["siderolabs/qemu-guest-agent"]
    extra_kernel_args = ["net.ifnames=0"]
  }
}

# One ProxmoxMachineTemplate for each node: the tags are what the selector of
# Cluster API's Proxmox provider matches, once in the whole cluster.
locals {
  machine_templates = [for node, tags in capi_proxmox_template.local.node_tags : {
    apiVersion = "infrastructure.cluster.x-k8s.io/v1alpha2"
    kind       = "ProxmoxMachineTemplate"
    metadata   = { name = "worker-${node}", namespace = "kmgt" }
    spec = { template = { spec = {
      templateSelector = { matchTags = tags }
      allowedNodes     = [node]
    } } }
  }]
}
