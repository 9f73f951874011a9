# { user_id = "capi@pve", user_name = "capi", realm = "pve", token_name = "capi-token" }
output "token" {
  value = provider::capi::proxmox_token_id_parse("capi@pve!capi-token")
}
