// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/pivot"
)

// helperEnv makes the test binary a run of its own that can be killed.
const helperEnv = "PIVOT_TEST_RUN"

// exhaustiveEnv asks for every write instead of a sample: make test-pivot-exhaustive.
const exhaustiveEnv = "PIVOT_EXHAUSTIVE"

// helperInput is what a run of its own is told: nothing but where the clusters are.
type helperInput struct {
	Source, Target string
}

func TestMain(m *testing.M) {
	if input := os.Getenv(helperEnv); input != "" {
		if err := runAlone(input); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runAlone(input string) error {
	var in helperInput
	if err := json.Unmarshal([]byte(input), &in); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	sides := map[string]*pivot.Side{"source": nil, "target": nil}
	for name, address := range map[string]string{"source": in.Source, "target": in.Target} {
		c, err := kube.NewClient(&rest.Config{Host: address})
		if err != nil {
			return err
		}
		if sides[name], err = pivot.NewSide(ctx, c, name); err != nil {
			return err
		}
	}
	_, err := pivot.Move(ctx, sides["source"], sides["target"], quickly)
	return err
}

// quickly is how moves are made in these tests: with short waits.
var quickly = pivot.Options{
	RetryFor: 2 * time.Second, Settle: 50 * time.Millisecond,
	Leases: kube.Leases{Duration: 20 * time.Second, Renewal: time.Second},
}

// pair is two API servers with a tape before them, between which a fleet is moved
// to and fro.
type pair struct {
	t       *testing.T
	ctx     context.Context
	fleet   fleet
	configs [2]*rest.Config
	sides   [2]*pivot.Side
	// from is the index of the side that holds the fleet.
	from  int
	tape  *tape
	names [2]string
	// digest and machines are as the fleet was made.
	digest   string
	machines map[string]int
}

func newPair(t *testing.T, f fleet) *pair {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &pair{t: t, ctx: ctx, fleet: f, names: [2]string{"a", "b"}, machines: map[string]int{}}
	done := make(chan struct{}, 2)
	configs := map[string]*rest.Config{}
	for i := range p.sides {
		running := plane.Start(t)
		c := running.Client(t)
		running.InstallKinds(t, c, fleetKinds...)
		side, err := pivot.NewSide(ctx, c, p.names[i])
		if err != nil {
			t.Fatal(err)
		}
		p.sides[i], p.configs[i] = side, running.Config
		fast := rest.CopyConfig(running.Config)
		fast.QPS = -1
		configs[p.names[i]] = fast
		go func() { revive(ctx, side.Client); done <- struct{}{} }()
	}
	t.Cleanup(func() { cancel(); <-done; <-done })
	p.tape = newTape(t, configs)
	f.make(ctx, t, p.sides[0].Client)
	for _, m := range p.list(0, &clusterv1.MachineList{}).(*clusterv1.MachineList).Items {
		if _, ok := m.Labels[clusterv1.MachineControlPlaneLabel]; ok {
			p.machines[m.Namespace+"/"+m.Spec.ClusterName]++
		}
	}
	return p
}

func (p *pair) list(side int, list client.ObjectList) client.ObjectList {
	p.t.Helper()
	if err := p.sides[side].Client.List(p.ctx, list); err != nil {
		p.t.Fatal(err)
	}
	return list
}

// helper starts a run of its own from the side that holds the fleet.
func (p *pair) helper() (*exec.Cmd, *bytes.Buffer) {
	p.t.Helper()
	input, err := json.Marshal(helperInput{Source: p.tape.addresses[p.names[p.from]], Target: p.tape.addresses[p.names[1-p.from]]})
	if err != nil {
		p.t.Fatal(err)
	}
	run := exec.Command(os.Args[0])
	run.Env = append(os.Environ(), helperEnv+"="+string(input))
	output := &bytes.Buffer{}
	run.Stdout, run.Stderr = output, output
	return run, output
}

// again moves the fleet with nothing but the clusters, as the next apply does.
func (p *pair) again() *pivot.Result {
	p.t.Helper()
	p.dropLeases()
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Minute)
	defer cancel()
	result, err := pivot.Move(ctx, p.sides[p.from], p.sides[1-p.from], quickly)
	if err != nil {
		p.t.Fatalf("the next run: %v", err)
	}
	return result
}

// dropLeases saves the time in which a lost run's lease runs out; that it is
// waited for is shown by TestALostRunsLeaseIsWaitedFor.
func (p *pair) dropLeases() {
	p.t.Helper()
	for i := range p.sides {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "terraform-provider-capi-pivot"}}
		if err := client.IgnoreNotFound(p.sides[i].Client.Delete(p.ctx, lease)); err != nil {
			p.t.Fatal(err)
		}
	}
}

// checkSafe holds at every moment, whatever has happened: no Cluster is managed
// from both sides, a side that manages one has all Machines of its control plane,
// and no controller sees an object that is being deleted.
func (p *pair) checkSafe(when string) {
	p.t.Helper()
	managed := map[string]string{}
	for i, side := range p.sides {
		counts := map[string]int{}
		for _, m := range p.list(i, &clusterv1.MachineList{}).(*clusterv1.MachineList).Items {
			if _, ok := m.Labels[clusterv1.MachineControlPlaneLabel]; ok {
				counts[m.Namespace+"/"+m.Spec.ClusterName]++
			}
			if !m.DeletionTimestamp.IsZero() {
				p.t.Errorf("%s: Machine %s on %s is being deleted", when, m.Name, side.Name)
			}
		}
		for _, c := range p.list(i, &clusterv1.ClusterList{}).(*clusterv1.ClusterList).Items {
			if !c.DeletionTimestamp.IsZero() {
				p.t.Errorf("%s: Cluster %s on %s is being deleted", when, c.Name, side.Name)
			}
			if ptr.Deref(c.Spec.Paused, false) {
				continue
			}
			key := c.Namespace + "/" + c.Name
			if other := managed[key]; other != "" {
				p.t.Errorf("%s: Cluster %s is managed from %s and from %s", when, key, other, side.Name)
			}
			managed[key] = side.Name
			if counts[key] < p.machines[key] {
				p.t.Errorf("%s: %s manages Cluster %s with %d of %d control plane machines", when, side.Name, key, counts[key], p.machines[key])
			}
		}
	}
}

// checkMoved looks that the fleet is on the other side alone, complete and
// managed, and turns the pair round.
func (p *pair) checkMoved(when string, result *pivot.Result) {
	p.t.Helper()
	p.checkSafe(when)
	if p.digest == "" {
		p.digest = result.Digest
	}
	if result.Digest != p.digest {
		p.t.Errorf("%s: the digest is %s, want %s", when, result.Digest, p.digest)
	}
	for i, want := range map[int]int{p.from: 0, 1 - p.from: p.fleet.clusters} {
		clusters := p.list(i, &clusterv1.ClusterList{}).(*clusterv1.ClusterList).Items
		if len(clusters) != want {
			p.t.Errorf("%s: %s holds %d clusters, want %d", when, p.sides[i].Name, len(clusters), want)
		}
		for _, c := range clusters {
			if ptr.Deref(c.Spec.Paused, false) {
				p.t.Errorf("%s: Cluster %s is paused on %s", when, c.Name, p.sides[i].Name)
			}
		}
	}
	left, err := pivot.Discovered(p.ctx, p.sides[p.from])
	if err != nil || len(left) > 0 {
		p.t.Errorf("%s: %s still holds %v, %v", when, p.sides[p.from].Name, left, err)
	}
	if p.t.Failed() {
		p.t.FailNow() // the next points would only tell the same
	}
	p.from = 1 - p.from
}

// points answers the writes at which to strike: all of them if they were asked
// for, else a sample that a seed chooses and the log tells.
func points(t *testing.T, writes, sample int) []int {
	t.Helper()
	all := make([]int, writes)
	for i := range all {
		all[i] = i + 1
	}
	if os.Getenv(exhaustiveEnv) != "" {
		return all
	}
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("PIVOT_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("%d of %d writes, chosen by PIVOT_SEED=%d", sample, writes, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	chosen := all[:min(sample, len(all))]
	slices.Sort(chosen)
	return chosen
}

// countWrites moves the fleet once without a disturbance.
func (p *pair) countWrites() int {
	p.t.Helper()
	p.tape.arm(0, false, nil)
	run, output := p.helper()
	if err := run.Run(); err != nil {
		p.t.Fatalf("an undisturbed move: %v\n%s", err, output)
	}
	writes := len(p.tape.recorded())
	p.checkMoved("after an undisturbed move", p.again())
	return writes
}

func forExhaustive(t *testing.T, f fleet) fleet {
	t.Helper()
	if os.Getenv(exhaustiveEnv) == "" && (f.clusters > 1 || f.topology) {
		t.Skip("takes half an hour: make test-pivot-exhaustive")
	}
	return f
}

var crashFleets = map[string]fleet{
	"one cluster of one machine":                         {clusters: 1, machines: 1, ipam: true},
	"three clusters of two machines with a ClusterClass": {clusters: 3, machines: 2, ipam: true, topology: true},
}

func TestAKilledMoveIsBroughtToOneSide(t *testing.T) {
	for name, f := range crashFleets {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, forExhaustive(t, f))
			writes := p.countWrites()
			t.Logf("N = %d writes", writes)
			for _, at := range points(t, writes, 6) {
				for _, after := range []bool{false, true} {
					p.strikeWithKill(at, after)
				}
			}
		})
	}
}

func (p *pair) strikeWithKill(at int, after bool) {
	p.t.Helper()
	run, output := p.helper()
	killed := make(chan struct{})
	p.tape.arm(at, after, func() {
		_ = run.Process.Signal(syscall.SIGKILL)
		<-killed // nothing of it reaches an API server any more
	})
	if err := run.Start(); err != nil {
		p.t.Fatal(err)
	}
	err := run.Wait()
	close(killed)
	when := fmt.Sprintf("killed at write %d (after: %t)", at, after)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != -1 {
		p.t.Fatalf("%s: it was not killed: %v\n%s", when, err, output)
	}
	p.tape.settle()
	p.checkSafe(when)
	p.checkMoved("run again, "+when, p.again())
}

func TestACutNetworkOrACancelledContextLeavesEverythingOnOneSide(t *testing.T) {
	p := newPair(t, fleet{clusters: 1, machines: 1, ipam: true})
	writes := p.countWrites()
	for _, at := range points(t, writes, 2) {
		for _, cut := range [][]string{{"source"}, {"target"}, {"source", "target"}} {
			p.strikeWithCut(at, cut)
		}
		p.strikeWithInterrupt(at)
	}
}

func (p *pair) strikeWithCut(at int, ends []string) {
	p.t.Helper()
	names := map[string]string{"source": p.names[p.from], "target": p.names[1-p.from]}
	run, output := p.helper()
	p.tape.arm(at, false, func() {
		for _, end := range ends {
			p.tape.cutOff(names[end])
		}
	})
	when := fmt.Sprintf("cut off from %s at write %d", strings.Join(ends, " and "), at)
	if err := run.Run(); err == nil {
		p.t.Logf("%s: the move succeeded all the same", when)
	} else if !strings.Contains(output.String(), "pivot") && !strings.Contains(output.String(), "lease") {
		p.t.Errorf("%s: the error does not say how to go on: %s", when, output)
	}
	p.checkSafe(when)
	p.tape.arm(0, false, nil)
	p.checkMoved("run again, "+when, p.again())
}

// strikeWithInterrupt cancels the context as Ctrl-C does. The run itself brings
// everything to one side.
func (p *pair) strikeWithInterrupt(at int) {
	p.t.Helper()
	run, output := p.helper()
	p.tape.arm(at, true, func() { _ = run.Process.Signal(os.Interrupt) })
	when := fmt.Sprintf("interrupted at write %d", at)
	err := run.Run()
	p.checkSafe(when)
	unpaused := 0
	for i := range p.sides {
		for _, c := range p.list(i, &clusterv1.ClusterList{}).(*clusterv1.ClusterList).Items {
			if ptr.Deref(c.Spec.Paused, false) {
				p.t.Errorf("%s: Cluster %s is left paused on %s: %v\n%s", when, c.Name, p.sides[i].Name, err, output)
			}
			unpaused++
		}
	}
	if unpaused != p.fleet.clusters {
		p.t.Errorf("%s: %d clusters in all, want %d: %v\n%s", when, unpaused, p.fleet.clusters, err, output)
	}
	p.tape.arm(0, false, nil)
	p.checkMoved("run again, "+when, p.again())
}
