# The account that Cluster API's Proxmox provider works as.
resource "capi_service_account" "capi" {
  user_id    = "capi@pve"
  token_name = "capi-token"
  comment    = "Cluster API of the management cluster kmgt"
}

# Its credentials go where they are needed, for example into a Secret document of
# a management cluster, without lying in a second place of the state.
locals {
  secret = templatefile("${path.module}/kmgt-secrets.yaml", capi_service_account.capi.credentials)
}
