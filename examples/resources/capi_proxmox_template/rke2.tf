# RKE2 machines: any image with cloud-init, onto which the RKE2 bootstrap
# provider brings the rest. Compressed images are unpacked on the way.
resource "capi_proxmox_template" "rke2" {
  node_name = "pve1"
  storage   = "ceph"
  tags      = ["rke2"]

  url      = "https://images.example/rocky-9.6-rke2-v1.34.2.qcow2.zst"
  checksum = "sha256:2f1c0b5a8f6d9d5e3a7c4b1e0d9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f"

  cpu_type  = "host"
  disk_size = 20
  agent     = true
}
