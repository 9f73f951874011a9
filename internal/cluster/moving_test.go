// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestMovingTellsAPivotsPauseFromAUsers(t *testing.T) {
	by := func(manager, fields string) []metav1.ManagedFieldsEntry {
		written := &metav1.FieldsV1{}
		written.SetRawString(fields)
		return []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: written}}
	}
	const pause = `{"f:spec":{"f:paused":{}}}`
	for name, test := range map[string]struct {
		paused   bool
		managers []metav1.ManagedFieldsEntry
		want     bool
	}{
		"a pivot's":                      {true, by("terraform-provider-capi-pivot", pause), true},
		"a user's":                       {true, by("kubectl-edit", pause), false},
		"a pivot's that was lifted":      {false, by("terraform-provider-capi-pivot", pause), false},
		"a user's beside other work":     {true, by("terraform-provider-capi-pivot", `{"f:metadata":{}}`), false},
		"of a Cluster without any field": {true, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{ManagedFields: test.managers}, Spec: clusterv1.ClusterSpec{Paused: ptr.To(test.paused)}}
			if got := Moving(c); got != test.want {
				t.Errorf("it is %v", got)
			}
		})
	}
}
