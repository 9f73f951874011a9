# Cilium on a management cluster that is made in the same apply.
resource "capi_helm_release" "cilium" {
  cluster   = capi_management_cluster.kmgt.access
  name      = "cilium"
  namespace = "kube-system"
  chart     = "oci://quay.io/cilium/charts/cilium"
  version   = "1.19.6"
  values    = [file("${path.module}/cilium.yaml")]
}

# A chart of a repository, on a cluster that exists already.
resource "capi_helm_release" "metrics_server" {
  cluster    = { kubeconfig_path = "~/.kube/config", context = "prod" }
  name       = "metrics-server"
  namespace  = "kube-system"
  repository = "https://kubernetes-sigs.github.io/metrics-server"
  chart      = "metrics-server"
  version    = "~3.12"
  on_destroy = "remove"
}
