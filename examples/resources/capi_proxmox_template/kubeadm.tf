# Ubuntu with kubeadm and the kubelet, as image-builder makes it for Proxmox or
# QEMU (make build-qemu-ubuntu-2404). Its checksum is its identity: a new build
# makes a new template.
resource "capi_proxmox_template" "kubeadm" {
  node_name = "pve1"
  storage   = "ceph"
  tags      = ["kubeadm", "v1.34.2"]

  file         = "${path.module}/output/ubuntu-2404-kube-v1.34.2/ubuntu-2404-kube-v1.34.2"
  image_format = "qcow2"

  # image-builder puts the guest agent and cloud-init in.
  agent = true
}
