# The id is the node and the id of a template that this provider has made.
terraform import capi_proxmox_template.talos pve1/9000

# Of a template on several nodes (node_names), all of them with commas between.
terraform import capi_proxmox_template.local pve1/9000,pve2/9001,pve3/9002
