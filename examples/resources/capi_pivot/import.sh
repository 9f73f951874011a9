# A pivot that was done before: the id is the UID of the target's namespace kube-system. The next
# apply finds the objects on the target and takes the pivot up.
terraform import capi_pivot.kmgt 0b0a4e7e-3c1b-4a57-9f1c-0b6f7f0e5a11
