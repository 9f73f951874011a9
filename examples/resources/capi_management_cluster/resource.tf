# A management cluster of Talos machines on Proxmox VE. The whole example is examples/talos-proxmox.
resource "capi_management_cluster" "kmgt" {
  bootstrap = capi_ephemeral_cluster.bootstrap.access
  name      = "kmgt"
  namespace = "kmgt"

  # Known text: it is checked and compared at plan. The placeholders may be unknown until the apply.
  manifest      = file("${path.module}/kmgt.yaml")
  substitutions = { TEMPLATE_ID = capi_proxmox_template.talos.vm_id }

  # Secret documents are write-only: they stand neither in the plan nor in the state.
  secrets_wo         = templatefile("${path.module}/kmgt-secrets.yaml", capi_service_account.capi.credentials)
  secrets_wo_version = capi_service_account.capi.credentials_version
}
