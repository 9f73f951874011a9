// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Transient says whether the same request may succeed in a moment: an API server
// that does not answer or has too much to do, a webhook that is not ready.
func Transient(err error) bool {
	var network net.Error
	var transport *url.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return false
	case apierrors.IsInternalError(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err), apierrors.IsUnexpectedServerError(err):
		return true
	case errors.As(err, &network), errors.As(err, &transport), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	return utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err)
}
