// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import "context"

// Discovered answers the identities of all objects that a move of everything
// from a side would carry over.
func Discovered(ctx context.Context, side *Side) ([]ID, error) {
	g, err := discover(ctx, side, Scope{}, false)
	if err != nil {
		return nil, err
	}
	var ids []ID
	for _, n := range g.placed() {
		ids = append(ids, n.ID)
	}
	return ids, nil
}
