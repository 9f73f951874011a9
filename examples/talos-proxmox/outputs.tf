output "control_plane_endpoint" {
  description = "Address of the management cluster's API server."
  value       = capi_management_cluster.kmgt.control_plane_endpoint
}

output "kubeconfig" {
  description = "Kubeconfig of an administrator of the management cluster."
  value       = capi_management_cluster.kmgt.kubeconfig
  sensitive   = true
}

output "talosconfig" {
  description = "Talosconfig of an administrator of the management cluster."
  value       = capi_management_cluster.kmgt.talosconfig
  sensitive   = true
}

output "machines" {
  description = "The machines and their VMs."
  value       = capi_management_cluster.kmgt.machines
}

output "moved" {
  description = "Number of objects that the pivot moved, by kind."
  value       = capi_pivot.kmgt.objects
}
