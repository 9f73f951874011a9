// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctlcluster "sigs.k8s.io/cluster-api/cmd/clusterctl/client/cluster"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/capi"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

// BenchmarkPausedWindow moves the same fleet with clusterctl's library, with ours,
// and with a loop that only sends the same four requests for each object, all in
// one run between the same two API servers. The figures to look at are ratios.
func BenchmarkPausedWindow(b *testing.B) {
	for _, f := range []fleet{{clusters: 1, machines: 3}, {clusters: 10, machines: 10}, {clusters: 100, machines: 10}} {
		b.Run(fmt.Sprintf("%dx%d", f.clusters, f.machines), func(b *testing.B) {
			if f.clusters == 100 && testing.Short() {
				b.Skip("takes several minutes")
			}
			for range b.N {
				benchFleet(b, f)
			}
		})
	}
}

type benchSide struct {
	config *rest.Config
	client *kube.Client
	side   *pivot.Side
	clock  *writeClock
}

func benchFleet(b *testing.B, f fleet) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var sides [2]benchSide
	var reviving sync.WaitGroup
	for i := range sides {
		running := plane.Start(b)
		running.InstallKinds(b, running.Client(b), fleetKinds...)
		clock := &writeClock{}
		config := rest.CopyConfig(running.Config)
		config.QPS = -1
		config.WrapTransport = clock.wrap
		c, err := kube.NewClient(config)
		if err != nil {
			b.Fatal(err)
		}
		side, err := pivot.NewSide(ctx, c, strconv.Itoa(i))
		if err != nil {
			b.Fatal(err)
		}
		sides[i] = benchSide{config: config, client: c, side: side, clock: clock}
		quiet := running.Client(b)
		reviving.Go(func() { revive(ctx, quiet) })
	}
	defer reviving.Wait()
	defer cancel()
	f.make(ctx, b, sides[0].client)

	theirs := clusterctlMoves(ctx, b, &sides[0], &sides[1])
	before := residentBytes(b)
	begun := time.Now()
	result, err := pivot.Move(ctx, sides[1].side, sides[0].side, pivot.Options{Settle: 100 * time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	whole := time.Since(begun)
	grown := peakBytes(b) - before
	bare := bareLoop(ctx, b, &sides[0], &sides[1])
	objects := int64(0)
	for _, count := range result.Counts {
		objects += count
	}
	b.ReportMetric(float64(objects), "objects")
	b.ReportMetric(theirs.Seconds(), "clusterctl-s")
	b.ReportMetric(result.PausedFor.Seconds(), "ours-s")
	b.ReportMetric(bare.Seconds(), "bare-s")
	b.ReportMetric((whole - result.PausedFor).Seconds(), "preflight+proof-s")
	b.ReportMetric(theirs.Seconds()/result.PausedFor.Seconds(), "x-clusterctl")
	b.ReportMetric(100*bare.Seconds()/result.PausedFor.Seconds(), "%-of-bare")
	b.ReportMetric(float64(max(0, grown))/(1<<20), "MiB-grown")
}

// writeClock notes when the first and the last write of a move were sent.
type writeClock struct {
	mu          sync.Mutex
	first, last time.Time
}

func (c *writeClock) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if isWrite(r) && strings.Contains(r.URL.Path, "/clusters/") {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.last = time.Now(); c.first.IsZero() {
				c.first = c.last
			}
		}
		return response, err
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// clusterctlMoves answers the time from clusterctl's first pause to its last
// un-pausing.
func clusterctlMoves(ctx context.Context, b *testing.B, from, to *benchSide) time.Duration {
	b.Helper()
	var ends [2]ctlcluster.Client
	for i, side := range []*benchSide{from, to} {
		made, err := capi.ClusterClient(ctx, side.config)
		if err != nil {
			b.Fatal(err)
		}
		ends[i] = made
		side.clock.first, side.clock.last = time.Time{}, time.Time{}
	}
	if err := ends[0].ObjectMover().Move(ctx, "", ends[1], false); err != nil {
		b.Fatal(err)
	}
	return to.clock.last.Sub(from.clock.first)
}

// bareLoop sends what a move must send for each object at the least, as many at
// once as a move does, and nothing else.
func bareLoop(ctx context.Context, b *testing.B, from, to *benchSide) time.Duration {
	b.Helper()
	ids, err := pivot.DiscoveredVersions(ctx, from.side)
	if err != nil {
		b.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for gvk, keys := range ids {
		for _, key := range keys {
			o := &unstructured.Unstructured{}
			o.SetGroupVersionKind(gvk)
			if err := from.client.Get(ctx, key, o); err != nil {
				b.Fatal(err)
			}
			objects = append(objects, o)
		}
	}
	begun := time.Now()
	step := func(do func(context.Context, *unstructured.Unstructured) error) {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(32)
		for _, o := range objects {
			group.Go(func() error { return do(ctx, o) })
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	step(func(ctx context.Context, o *unstructured.Unstructured) error {
		made := o.DeepCopy()
		made.SetResourceVersion("")
		made.SetUID("")
		made.SetOwnerReferences(nil)
		made.SetManagedFields(nil)
		if err := to.client.Create(ctx, made); err != nil {
			return err
		}
		return to.client.Patch(ctx, metadataOnly(o), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}]}}`)))
	})
	step(func(ctx context.Context, o *unstructured.Unstructured) error {
		left := metadataOnly(o)
		if err := from.client.Patch(ctx, left, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":""},"finalizers":null}}`))); err != nil {
			return err
		}
		return client.IgnoreNotFound(from.client.Delete(ctx, left, client.Preconditions{UID: ptr.To(left.GetUID())}))
	})
	return time.Since(begun)
}

func metadataOnly(o *unstructured.Unstructured) *metav1.PartialObjectMetadata {
	partial := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()}}
	partial.SetGroupVersionKind(o.GroupVersionKind())
	return partial
}

// residentBytes and peakBytes are this process's memory now and at its highest.
func residentBytes(b *testing.B) int64 { return statusBytes(b, "VmRSS:") }
func peakBytes(b *testing.B) int64     { return statusBytes(b, "VmHWM:") }

func statusBytes(b *testing.B, field string) int64 {
	b.Helper()
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0 // not on this system
	}
	words := strings.Fields(string(raw))
	at := slices.Index(words, field)
	if at < 0 {
		return 0
	}
	kib, err := strconv.ParseInt(words[at+1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib << 10
}
