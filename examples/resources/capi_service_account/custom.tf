# Permissions of one's own choice: roles that are there, or privileges, for which
# roles are made.
resource "capi_service_account" "custom" {
  user_id     = "capi@pve"
  token_name  = "capi-token"
  permissions = "custom"

  grants = [
    { path = "/", role = "PVEAuditor" },
    { path = "/pool/capi", role = "PVEVMAdmin" },
    { path = "/storage/local", privileges = ["Datastore.Audit", "Datastore.AllocateTemplate", "Datastore.Allocate"] },
    { path = "/storage/local-lvm", privileges = ["Datastore.Audit", "Datastore.AllocateSpace"] },
    { path = "/sdn/zones/localnetwork/vmbr0", role = "PVESDNUser" },
  ]
}
