variable "proxmox_endpoint" {
  description = "Address of the Proxmox VE API, such as https://pve.example:8006."
  type        = string
}

variable "proxmox_token_id" {
  description = "Id of an administrator's API token, user@realm!name."
  type        = string
}

variable "proxmox_token_secret" {
  description = "Secret of that token."
  type        = string
  sensitive   = true
}

variable "proxmox_ca_pem" {
  description = "Certificates that the API's certificate is checked against; null for those of the system."
  type        = string
  default     = null
}

variable "node" {
  description = "Proxmox node for the template and the VMs."
  type        = string
  default     = "pve1"
}

variable "storage" {
  description = "Storage for disks."
  type        = string
  default     = "local-lvm"
}

variable "bridge" {
  description = "Network bridge of the VMs."
  type        = string
  default     = "vmbr0"
}

variable "vip" {
  description = "Virtual address of the API server: outside of `addresses`, in the same network."
  type        = string
}

variable "addresses" {
  description = "Addresses for the machines, as a range: 10.0.0.160-10.0.0.180."
  type        = string
}

variable "prefix" {
  description = "Length of the network's prefix."
  type        = number
  default     = 24
}

variable "gateway" {
  description = "Default gateway of the machines."
  type        = string
}

variable "dns_server" {
  description = "DNS server of the machines."
  type        = string
}

variable "bootstrap_name" {
  description = "Name of the bootstrap cluster on this machine."
  type        = string
  default     = "ephemeral-cluster"
}

variable "runtime" {
  description = "How the bootstrap cluster runs."
  type        = string
  default     = "local"
}

variable "force_destroy" {
  description = "Apply true before a destroy of the management cluster: it then deletes exactly the VMs in state."
  type        = bool
  default     = false
}

# Sources. The defaults are the projects' own; mirrors and air-gapped sites set others.
variable "factory_url" {
  description = "Talos Image Factory; null for the public one."
  type        = string
  default     = null
}

variable "images" {
  description = "Where the bootstrap cluster looks for container images before their registries."
  type        = list(string)
  default     = null
}

variable "repository" {
  description = "Mirror of the providers' releases; null for the projects' own."
  type        = string
  default     = null
}

variable "charts" {
  description = "Helm charts; null members mean the projects' own."
  type = object({
    cilium       = optional(string, "oci://quay.io/cilium/charts/cilium")
    talos_ccm    = optional(string, "oci://ghcr.io/siderolabs/charts/talos-cloud-controller-manager")
    cert_manager = optional(string)
    operator     = optional(string)
  })
  default = {}
}
