data "capi_provider_upgrades" "all" {
  providers = {
    core           = { "cluster-api" = { version = "v1.14.2" } }
    infrastructure = { proxmox = { version = "v0.9.0" } }
    ipam           = { "in-cluster" = { version = "v1.1.0" } }
  }
}

output "patches" {
  description = "Releases that mend what is installed."
  value       = { for label, u in data.capi_provider_upgrades.all.upgrades : label => "${u.version} -> ${u.patch}" if u.patch != null }
}
