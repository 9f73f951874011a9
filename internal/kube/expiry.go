// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"time"

	"k8s.io/client-go/util/cert"
)

// KubeconfigEnd answers when the client certificate of a kubeconfig's current
// context ends; the zero time where it has none.
func KubeconfigEnd(content []byte) time.Time {
	config, err := ConfigFromKubeconfig(content, "")
	if err != nil || len(config.CertData) == 0 {
		return time.Time{}
	}
	certificates, err := cert.ParseCertsPEM(config.CertData)
	if err != nil || len(certificates) == 0 {
		return time.Time{}
	}
	return certificates[0].NotAfter
}
