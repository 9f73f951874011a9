resource "capi_ephemeral_cluster" "bootstrap" {
  name         = "ephemeral-cluster"
  runtime      = "local"
  cert_manager = { version = "v1.21.0" }
  providers = {
    core           = { "cluster-api" = { version = "v1.14.2" } }
    infrastructure = { proxmox = { version = "v0.9.0", credentials = capi_service_account.capi.credentials } }
    bootstrap      = { talos = { version = "v0.6.12" } }
    control_plane  = { talos = { version = "v0.5.13" } }
    ipam           = { "in-cluster" = { version = "v1.1.0" } }
  }
}

# The same in a container engine, with a mirror of a registry.
resource "capi_ephemeral_cluster" "in_containers" {
  name               = "in-containers"
  runtime            = "kind"
  kubernetes_version = "v1.37.0"
  kind = {
    engine = "docker"
    config = <<-YAML
      kind: Cluster
      apiVersion: kind.x-k8s.io/v1alpha4
      containerdConfigPatches:
      - |-
        [plugins."io.containerd.cri.v1.images".registry.mirrors."ghcr.io"]
          endpoint = ["https://mirror.example"]
    YAML
  }
  cert_manager = { version = "v1.21.0" }
  providers = {
    core = { "cluster-api" = { version = "v1.14.2" } }
    ipam = { "in-cluster" = { version = "v1.1.0" } }
  }
}
