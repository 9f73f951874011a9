# The id is that of the token. Its secret cannot be read: it is null after the
# import, until a rotation brings a new one.
terraform import capi_service_account.capi 'capi@pve!capi-token'
