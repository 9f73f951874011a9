# The cluster is the path of a kubeconfig file or an entry of the provider's clusters map.
terraform import capi_helm_release.cilium '~/.kube/config#kube-system/cilium'
