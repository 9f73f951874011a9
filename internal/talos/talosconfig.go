// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talos

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"slices"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
)

// TalosconfigStillGood says whether a talosconfig that is held leads to the same
// cluster as a newer one and will do so for a while. CABPT makes a new client
// certificate whenever the list of endpoints changes for a moment, as it does in
// a move (v0.6.12, controllers/secrets.go); each of them is as good as the other
// until it nears its end. A held one that cannot be read is not good.
func TalosconfigStillGood(held, newer []byte, now time.Time) bool {
	old, fresh := currentContext(held), currentContext(newer)
	if old == nil || fresh == nil || old.CA != fresh.CA || !sameMembers(old.Endpoints, fresh.Endpoints) || !sameMembers(old.Nodes, fresh.Nodes) {
		return false
	}
	oldEnd, freshEnd := certificateEnd(old), certificateEnd(fresh)
	// A third of what a fresh one has left is time enough to be replaced by a later
	// refresh.
	return oldEnd.After(now) && oldEnd.Sub(now) > freshEnd.Sub(now)/3
}

// TalosconfigEnd answers when the client certificate of a talosconfig's current
// context ends; the zero time where there is none that can be read.
func TalosconfigEnd(content []byte) time.Time {
	context := currentContext(content)
	if context == nil {
		return time.Time{}
	}
	return certificateEnd(context)
}

func currentContext(content []byte) *clientconfig.Context {
	config, err := clientconfig.FromBytes(content)
	if err != nil {
		return nil
	}
	return config.Contexts[config.Context]
}

func sameMembers(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// certificateEnd answers when a context's client certificate ends; the zero time
// where there is none that can be read.
func certificateEnd(c *clientconfig.Context) time.Time {
	raw, err := base64.StdEncoding.DecodeString(c.Crt)
	if err != nil {
		return time.Time{}
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return time.Time{}
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return certificate.NotAfter
}
