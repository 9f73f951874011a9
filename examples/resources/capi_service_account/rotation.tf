# A new token each quarter. The old one goes on working for a day, by which all
# that uses the credentials has followed, and is refused by Proxmox VE after that.
resource "capi_service_account" "rotated" {
  user_id    = "capi@pve"
  token_name = "capi-token"

  rotate_when_changed = { quarter = "2027-Q1" }
  rotation_overlap    = "24h"
}
