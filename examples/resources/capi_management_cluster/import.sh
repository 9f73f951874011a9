# The cluster that holds the objects (the path of a kubeconfig file, or an entry of the provider's
# clusters map), then the namespace and the name of the Cluster.
terraform import capi_management_cluster.kmgt './kmgt.kubeconfig#kmgt/kmgt'
