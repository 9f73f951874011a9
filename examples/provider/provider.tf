terraform {
  required_providers {
    capi = {
      source = "terraform-provider-capi/capi"
    }
  }
}

provider "capi" {
  proxmox = {
    endpoint     = "https://pve.example:8006"
    token_id     = "root@pam!terraform"
    token_secret = var.proxmox_token_secret
    ca_pem       = file("${path.module}/pve-root-ca.pem")
  }
}

variable "proxmox_token_secret" {
  type      = string
  sensitive = true
}
