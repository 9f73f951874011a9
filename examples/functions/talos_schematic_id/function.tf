# ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515
output "schematic_id" {
  value = provider::capi::talos_schematic_id(yamlencode({
    customization = { systemExtensions = { officialExtensions = ["siderolabs/qemu-guest-agent"] } }
  }))
}
