module lab.invalid/images/cilium

go 1.26.0

require github.com/cilium/cilium v1.19.6
