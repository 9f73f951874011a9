# Cilium on a management cluster that is made in the same apply.
resource "capi_helm_release" "cilium" {
  cluster   = capi_management_cluster.kmgt.access
  name      = "cilium"
  namespace = "kube-system"
  chart     = "oci://quay.io/cilium/charts/cilium"
  version   = "1.19.6"
  values    = [file("${path.module}/cilium.yaml")]
}

# A chart of a repository in a range of versions, on a cluster that exists already.
resource "capi_helm_release" "metrics_server" {
  cluster    = { kubeconfig_path = "~/.kube/config", context = "prod" }
  name       = "metrics-server"
  namespace  = "kube-system"
  repository = "https://kubernetes-sigs.github.io/metrics-server"
  chart      = "metrics-server"
  version    = "~3.12"
  atomic     = true
  on_destroy = "remove"

  set      = [{ name = "replicas", value = "2" }]
  set_list = [{ name = "args", value = ["--kubelet-insecure-tls"] }]
}

# A chart with a secret that is in neither plan nor state, from a private
# registry whose credentials are in the provider's registries.
variable "database_password" {
  type      = string
  sensitive = true
  ephemeral = true
}

resource "capi_helm_release" "inventory" {
  cluster        = { cluster_name = "prod" }
  name           = "inventory"
  namespace      = "inventory"
  chart          = "oci://registry.example:5000/charts/inventory"
  version        = "2.4.1"
  recover        = "rollback"
  set_wo         = [{ name = "database.password", value = var.database_password, type = "literal" }]
  set_wo_version = "2026-12"
}
