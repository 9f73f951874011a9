data "capi_talos_image" "this" {
  version    = "v1.13.7"
  extensions = ["siderolabs/iscsi-tools", "siderolabs/qemu-guest-agent"]
}

# For machine.install.image in the machine configuration.
output "installer_image" {
  value = data.capi_talos_image.this.installer_image
}
