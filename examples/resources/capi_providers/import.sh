# The path of a kubeconfig file or an entry of the provider's clusters map
terraform import capi_providers.kmgt ./kmgt.kubeconfig
