# The management cluster takes over its own objects, and the bootstrap cluster is retired.
resource "capi_pivot" "kmgt" {
  source = capi_ephemeral_cluster.bootstrap.access
  target = capi_management_cluster.kmgt.access

  # Everything is written into an encrypted file before anything is paused.
  backup = {
    directory  = "${path.module}/backups"
    recipients = ["age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"]
  }

  # The target needs the providers before it can take the objects.
  depends_on = [capi_providers.kmgt]
}

# The backup is encrypted with a passphrase, which lies in no state.
provider "capi" {
  backup_passphrase = var.backup_passphrase
}

variable "backup_passphrase" {
  type      = string
  sensitive = true
  ephemeral = true
}

resource "capi_pivot" "green" {
  source     = capi_management_cluster.blue.access
  target     = capi_management_cluster.green.access
  namespaces = ["fleet"]
  backup     = { directory = "${path.module}/backups" }
}

# One Cluster moves to another management cluster, and its neighbours stay.
resource "capi_pivot" "shop" {
  source        = capi_management_cluster.blue.access
  target        = capi_management_cluster.green.access
  clusters      = ["shops/shop-1"]
  retire_source = false
}
