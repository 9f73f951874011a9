resource "capi_providers" "kmgt" {
  cluster      = capi_management_cluster.kmgt.access
  method       = "operator"
  operator     = { version = "0.28.0" }
  cert_manager = { version = "v1.21.0" }
  providers = {
    core           = { "cluster-api" = { version = "v1.14.2" } }
    infrastructure = { proxmox = { version = "v0.9.0", credentials = capi_service_account.capi.credentials } }
    bootstrap      = { talos = { version = "v0.6.12" } }
    control_plane  = { talos = { version = "v0.5.13" } }
    ipam           = { "in-cluster" = { version = "v1.1.0" } }
  }
  depends_on = [capi_helm_release.cilium, capi_helm_release.talos_ccm]
}
