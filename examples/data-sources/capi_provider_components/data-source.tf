# What a mirror must hold before the network is cut
data "capi_provider_components" "all" {
  kubernetes_version = "v1.36.2"
  cert_manager       = { version = "v1.21.0" }
  providers = {
    core           = { "cluster-api" = { version = "v1.14.2" } }
    infrastructure = { proxmox = { version = "v0.9.0" } }
    bootstrap      = { talos = { version = "v0.6.12" } }
    control_plane  = { talos = { version = "v0.5.13" } }
    ipam           = { "in-cluster" = { version = "v1.1.0" } }
  }
}

output "images" {
  value = data.capi_provider_components.all.images
}

output "files" {
  value = data.capi_provider_components.all.files
}
