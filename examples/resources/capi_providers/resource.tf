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
  # A cluster that manages itself replaces its own nodes: let the managers survive that.
  availability = {
    replicas          = 2
    spread            = "kubernetes.io/hostname"
    disruption_budget = true
  }
  depends_on = [capi_helm_release.cilium, capi_helm_release.talos_ccm]
}

# Without the operator: clusterctl's way, in which nothing runs beside the providers.
resource "capi_providers" "workshop" {
  cluster      = { cluster_name = "workshop" }
  method       = "clusterctl"
  cert_manager = { external = true }
  providers = {
    core          = { "cluster-api" = { version = "v1.14.2" } }
    bootstrap     = { kubeadm = { version = "v1.14.2" } }
    control_plane = { kubeadm = { version = "v1.14.2" } }
    infrastructure = {
      openstack = { version = "v0.14.7", variables = { EXP_CAPO_AUTOSCALE_FROM_ZERO = "true" } }
    }
  }
}
