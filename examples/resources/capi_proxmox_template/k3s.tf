# k3s machines, made of a distribution's own cloud image. The ending .img does
# not tell the format, so it is said.
resource "capi_proxmox_template" "k3s" {
  node_name = "pve1"
  storage   = "ceph"
  tags      = ["k3s"]

  url          = "https://cloud-images.ubuntu.com/releases/noble/release-20251113/ubuntu-24.04-server-cloudimg-amd64.img"
  image_format = "qcow2"

  disk_size       = 10
  scsi_controller = "virtio-scsi-single"
  disk            = { iothread = true }
  network_devices = [{ bridge = "vmbr0", vlan_id = 20, firewall = true }]
}
