// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/ownership"
)

// unsteady fails its first reads as an API server does that is starting.
type unsteady struct {
	client.Client
	failures int
}

func (u *unsteady) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if u.failures--; u.failures >= 0 {
		return apierrors.NewServiceUnavailable("starting")
	}
	return u.Client.Get(ctx, key, into, opts...)
}

// overtaken carries a renewal out before its first deletion, as a server does
// that gets to a cancelled request late.
type overtaken struct {
	client.Client
	deletions int
}

func (o *overtaken) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	if o.deletions++; o.deletions == 1 {
		lease := &coordinationv1.Lease{}
		if err := o.Get(ctx, client.ObjectKeyFromObject(object), lease); err != nil {
			return err
		}
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(time.Second)}
		if err := o.Update(ctx, lease); err != nil {
			return err
		}
	}
	return o.Client.Delete(ctx, object, opts...)
}

// TestOnARealAPIServer runs all that needs one.
func TestOnARealAPIServer(t *testing.T) {
	c := plane.Start(t).Client(t)
	t.Run("a lease", func(t *testing.T) { testLeases(t, c) })
	t.Run("a namespace", func(t *testing.T) { testNamespaces(t, c) })
}

// testNamespaces has one that is being deleted and that a finalizer holds for a
// while.
func testNamespaces(t *testing.T, c *kube.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 {
		if err := c.EnsureNamespace(ctx, "ending"); err != nil {
			t.Fatal(err)
		}
	}
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ending", Name: "held", Finalizers: []string{"test.example/held"}}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ending"}}
	if err := errors.Join(c.Create(ctx, held), c.Client.Delete(ctx, namespace)); err != nil {
		t.Fatal(err)
	}
	if ends, err := c.NamespaceEnds(ctx, "ending"); err != nil || !ends {
		t.Errorf("that it is being deleted: %v, %v", ends, err)
	}
	soon, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	if err := c.EnsureNamespace(soon, "ending"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("while a finalizer holds it: %v", err)
	}
	made := make(chan error, 1)
	go func() { made <- c.EnsureNamespace(ctx, "ending") }()
	held.Finalizers = nil
	if err := c.Update(ctx, held); err != nil {
		t.Fatal(err)
	}
	if err := <-made; err != nil {
		t.Error(err)
	}
	if ends, err := c.NamespaceEnds(ctx, "ending"); err != nil || ends {
		t.Errorf("that the new one is being deleted: %v, %v", ends, err)
	}
	if ends, err := c.NamespaceEnds(ctx, "nowhere"); err != nil || ends {
		t.Errorf("that one which is not there is being deleted: %v, %v", ends, err)
	}
}

func testLeases(t *testing.T, c *kube.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	quick := kube.Leases{Duration: 2 * time.Second, Renewal: 300 * time.Millisecond}
	key := func(name string) client.ObjectKey {
		return client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}
	}

	t.Run("is free again when it was released", func(t *testing.T) {
		_, first, err := quick.Acquire(ctx, c, key("released"), "one", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(ctx, key("released"), &coordinationv1.Lease{}); client.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("the released lease is still there: %v", err)
		}
		_, second, err := quick.Acquire(ctx, c, key("released"), "two", nil)
		if err != nil {
			t.Fatal(err)
		}
		if second.Inherited() {
			t.Error("a lease that was given back counts as left behind")
		}
		second.Abandon()
	})
	t.Run("is released though a late renewal comes first", func(t *testing.T) {
		late := &overtaken{Client: c}
		_, lease, err := quick.Acquire(ctx, late, key("late"), "one", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil || late.deletions != 2 {
			t.Errorf("%d deletions, %v", late.deletions, err)
		}
		if err := c.Get(ctx, key("late"), &coordinationv1.Lease{}); !apierrors.IsNotFound(err) {
			t.Errorf("it answers %v", err)
		}
	})
	t.Run("is taken where the API server fails for a moment", func(t *testing.T) {
		_, lease, err := quick.Acquire(ctx, &unsteady{Client: c, failures: 2}, key("flaky"), "one", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Run("of a living run is refused", func(t *testing.T) {
		_, first, err := quick.Acquire(ctx, c, key("held"), "one", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer first.Abandon()
		if _, _, err := quick.Acquire(ctx, c, key("held"), "two", nil); !errors.Is(err, ownership.ErrHeld) {
			t.Errorf("error %v, want %v", err, ownership.ErrHeld)
		}
	})
	t.Run("of a lost run is taken over when it ran out, and it says that it waits", func(t *testing.T) {
		_, first, err := quick.Acquire(ctx, c, key("lost"), "one", nil)
		if err != nil {
			t.Fatal(err)
		}
		first.Abandon()
		var said atomic.Int32
		report := func(context.Context, string, string) { said.Add(1) }
		_, second, err := quick.Acquire(ctx, c, key("lost"), "two", report)
		if err != nil {
			t.Fatal(err)
		}
		second.Abandon()
		if !second.Since().Truncate(time.Microsecond).Equal(first.Since().Truncate(time.Microsecond)) {
			t.Errorf("the work began at %s, and its heir says %s", first.Since(), second.Since())
		}
		if said.Load() == 0 {
			t.Error("it waited without a word")
		}
		if !second.Inherited() {
			t.Error("a lease that a lost run left does not count as left behind")
		}
	})
	t.Run("of a lost run on a machine whose clock is ahead runs out as any other", func(t *testing.T) {
		holder, ahead := "one", metav1.NewMicroTime(time.Now().Add(3*time.Hour))
		lost := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "ahead"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, AcquireTime: &ahead, RenewTime: &ahead},
		}
		if err := c.Create(ctx, lost); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, lease, err := quick.Acquire(ctx, c, key("ahead"), "two", nil)
		if err != nil {
			t.Fatal(err)
		}
		lease.Abandon()
		if waited := time.Since(began); waited < quick.Duration*9/10 {
			t.Errorf("it was taken after %s, and may be renewed for %s", waited, quick.Duration)
		}
	})
	t.Run("that somebody takes away cancels its holder", func(t *testing.T) {
		held, first, err := quick.Acquire(ctx, c, key("stolen"), "one", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer first.Abandon()
		if err := c.Delete(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "stolen"}}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-held.Done():
			if !errors.Is(context.Cause(held), kube.ErrLeaseLost) {
				t.Errorf("cause %v", context.Cause(held))
			}
		case <-ctx.Done():
			t.Error("the holder goes on")
		}
	})
	t.Run("in a namespace that is not there is an error", func(t *testing.T) {
		if _, _, err := quick.Acquire(ctx, c, client.ObjectKey{Namespace: "missing", Name: "a"}, "one", nil); err == nil {
			t.Error("no error")
		}
	})
}
