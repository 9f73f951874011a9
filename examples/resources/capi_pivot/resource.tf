# The management cluster takes over its own objects, and the bootstrap cluster is retired.
resource "capi_pivot" "kmgt" {
  source = capi_ephemeral_cluster.bootstrap.access
  target = capi_management_cluster.kmgt.access

  # The target needs the providers before it can take the objects.
  depends_on = [capi_providers.kmgt]
}
