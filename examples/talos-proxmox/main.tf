terraform {
  required_version = ">= 1.11"
  required_providers {
    capi = { source = "terraform-provider-capi/capi" }
  }
}

# The administrator of Proxmox VE: makes the template and the account that Cluster API works with.
provider "capi" {
  proxmox = {
    endpoint     = var.proxmox_endpoint
    token_id     = var.proxmox_token_id
    token_secret = var.proxmox_token_secret
    ca_pem       = var.proxmox_ca_pem
  }
}

resource "capi_proxmox_template" "talos" {
  node_name = var.node
  storage   = var.storage
  talos = {
    version     = "v1.13.7"
    extensions  = ["siderolabs/qemu-guest-agent"]
    factory_url = var.factory_url
  }
}

resource "capi_service_account" "capi" {
  user_id    = "capi@pve"
  token_name = "capi-token"
}

locals {
  # One set of providers for the bootstrap cluster and the management cluster.
  providers = {
    core           = { "cluster-api" = { version = "v1.14.2" } }
    infrastructure = { proxmox = { version = "v0.9.0", credentials = capi_service_account.capi.credentials } }
    bootstrap      = { talos = { version = "v0.6.12" } }
    control_plane  = { talos = { version = "v0.5.13" } }
    ipam           = { "in-cluster" = { version = "v1.1.0" } }
  }
}

resource "capi_ephemeral_cluster" "bootstrap" {
  name         = var.bootstrap_name
  runtime      = var.runtime
  images       = var.images
  repository   = var.repository
  cert_manager = { version = "v1.21.0" }
  providers    = local.providers
}

resource "capi_management_cluster" "kmgt" {
  bootstrap = capi_ephemeral_cluster.bootstrap.access
  name      = "kmgt"
  namespace = "kmgt"
  manifest  = file("${path.module}/kmgt.yaml")
  substitutions = {
    TEMPLATE_ID = capi_proxmox_template.talos.vm_id
    NODE        = var.node
    BRIDGE      = var.bridge
    VIP         = var.vip
    ADDRESSES   = var.addresses
    PREFIX      = var.prefix
    GATEWAY     = var.gateway
    DNS_SERVER  = var.dns_server
  }
  secrets_wo         = templatefile("${path.module}/kmgt-secrets.yaml", capi_service_account.capi.credentials)
  secrets_wo_version = capi_service_account.capi.credentials_version
  force_destroy      = var.force_destroy
}

resource "capi_helm_release" "cilium" {
  cluster   = capi_management_cluster.kmgt.access
  name      = "cilium"
  namespace = "kube-system"
  chart     = var.charts.cilium
  version   = "1.19.6"
  values    = [file("${path.module}/cilium.yaml")]
}

resource "capi_helm_release" "talos_ccm" {
  cluster   = capi_management_cluster.kmgt.access
  name      = "talos-cloud-controller-manager"
  namespace = "kube-system"
  chart     = var.charts.talos_ccm
  version   = "0.5.5"
  values    = [file("${path.module}/cloud-controller-manager.yaml")]
}

resource "capi_providers" "kmgt" {
  cluster      = capi_management_cluster.kmgt.access
  method       = "operator"
  operator     = { version = "0.28.0", chart = var.charts.operator }
  cert_manager = { version = "v1.21.0", chart = var.charts.cert_manager }
  repository   = var.repository
  providers    = local.providers
  depends_on   = [capi_helm_release.cilium, capi_helm_release.talos_ccm]
}

resource "capi_pivot" "kmgt" {
  source     = capi_ephemeral_cluster.bootstrap.access
  target     = capi_management_cluster.kmgt.access
  depends_on = [capi_providers.kmgt]
}
