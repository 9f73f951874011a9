# RUNTIME/NAME of a cluster on this machine
terraform import capi_ephemeral_cluster.bootstrap local/ephemeral-cluster
