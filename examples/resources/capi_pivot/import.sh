# A pivot that was done before, from its journal on the target: TARGET#JOURNAL#SOURCE. Target and source are the path of a
# kubeconfig file or an entry of the provider's clusters map; without the source the next plan only fills it in. Without a
# journal's id it is the last one.
terraform import capi_pivot.kmgt '~/.kube/kmgt#9c1c3ed2-7f0e-4a35-a8e6-2d0c5f3b7a41#~/.kube/bootstrap'

# Without a journal, by the UID of the target's namespace kube-system. The next apply finds the objects on the
# target and takes the pivot up.
terraform import capi_pivot.kmgt 0b0a4e7e-3c1b-4a57-9f1c-0b6f7f0e5a11
