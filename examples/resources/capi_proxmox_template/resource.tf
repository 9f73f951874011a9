# A template with Talos and the guest agent, on the first free id of a range.
resource "capi_proxmox_template" "talos" {
  node_name   = "pve1"
  storage     = "ceph"
  tags        = ["talos", "capi"]
  vm_id_range = { start = 9000, end = 9099 }

  talos = {
    version    = "v1.13.7"
    extensions = ["siderolabs/qemu-guest-agent"]
  }

  # The two templates before this one stay for machines that are made by id.
  family    = "talos"
  keep_last = 2

  # A new version makes a new template before the old one goes.
  lifecycle {
    create_before_destroy = true
  }
}

output "template_id" {
  value = capi_proxmox_template.talos.vm_id
}
