# The id is the node and the id of a template that this provider has made.
terraform import capi_proxmox_template.talos pve1/9000
