# A template with Talos and the guest agent, on the first free id.
resource "capi_proxmox_template" "talos" {
  node_name = "pve1"
  storage   = "local-lvm"
  tags      = ["talos", "capi"]

  talos = {
    version    = "v1.13.7"
    extensions = ["siderolabs/qemu-guest-agent"]
  }
}

# One template per node, for storage that is local to each. The tag is what a
# template selector of Cluster API's Proxmox provider picks: one match each.
resource "capi_proxmox_template" "per_node" {
  for_each = toset(["pve1", "pve2", "pve3"])

  node_name = each.key
  storage   = "local-zfs"
  tags      = ["talos-v1.13.7-${each.key}"]
  cpu_type  = "host"
  disk_size = 10

  talos = {
    version           = "v1.13.7"
    extensions        = ["siderolabs/qemu-guest-agent"]
    extra_kernel_args = ["net.ifnames=0"]
  }

  # A new version makes a new template before the old one goes.
  lifecycle {
    create_before_destroy = true
  }
}

output "template_id" {
  value = capi_proxmox_template.talos.vm_id
}
