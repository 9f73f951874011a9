# May the provider's own login download an image and make a template?
data "capi_proxmox_permissions" "me" {
  required = {
    "/nodes/pve1"        = ["Sys.AccessNetwork"]
    "/storage/local"     = ["Datastore.AllocateTemplate"]
    "/storage/local-lvm" = ["Datastore.AllocateSpace"]
    "/vms"               = ["VM.Allocate"]
  }
}

# A check shows what is missing, and the commands that grant it.
check "permissions" {
  assert {
    condition     = length(data.capi_proxmox_permissions.me.missing) == 0
    error_message = "Run on a node:\n${join("\n", data.capi_proxmox_permissions.me.commands)}"
  }
}
