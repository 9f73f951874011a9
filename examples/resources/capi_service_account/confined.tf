# An account that can do nothing outside of one pool, two storages and a bridge.
# The ProxmoxMachineTemplates of its clusters say: pool: capi
resource "capi_service_account" "confined" {
  user_id    = "capi@pve"
  token_name = "capi-token"

  confine_to = {
    pool           = "capi"
    template_ids   = [capi_proxmox_template.talos.vm_id]
    disk_storages  = ["local-lvm"]
    image_storages = ["local"]
    bridges        = ["vmbr0"]
  }
}
