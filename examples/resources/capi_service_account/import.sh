# The id is that of the token. Its secret cannot be read: it is null after the import.
terraform import capi_service_account.capi 'capi@pve!capi-token'
