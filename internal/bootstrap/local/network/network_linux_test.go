// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

func service(namespace, name, ip string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Name: "web", Port: port}}},
	}
}

type endpoint struct {
	ip                          string
	ready, serving, terminating bool
}

func slice(namespace, service string, port int32, endpoints ...endpoint) *discoveryv1.EndpointSlice {
	name := "web"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Ports:      []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{e.ip},
			Conditions: discoveryv1.EndpointConditions{Ready: &e.ready, Serving: &e.serving, Terminating: &e.terminating},
		})
	}
	return s
}

// recorder notes what is dialled and answers with one end of a pipe.
type recorder struct {
	mu     sync.Mutex
	dialed []string
	fail   bool
}

func (r *recorder) dial(_ context.Context, _, address string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dialed = append(r.dialed, address)
	if r.fail {
		return nil, syscall.ECONNREFUSED
	}
	ours, theirs := net.Pipe()
	go func() {
		_, _ = io.Copy(theirs, theirs) // an echo
		_ = theirs.Close()
	}()
	return ours, nil
}

func newNetwork(t *testing.T, host *recorder, objects ...runtime.Object) *Network {
	t.Helper()
	n, err := start(t.Context(), Config{
		APIServer: func() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:6443") },
		PodCIDR:   netip.MustParsePrefix("10.244.0.0/16"), Host: host.dial,
	}, fake.NewClientset(objects...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}

func TestDialLeadsWhereTheAddressMeansInsideTheCluster(t *testing.T) {
	t.Parallel()
	objects := []runtime.Object{
		service("default", "kubernetes", "10.96.0.1", 443),
		service("a", "ready", "10.96.0.2", 80),
		slice("a", "ready", 8080, endpoint{ip: "10.244.0.5", ready: true, serving: true}, endpoint{ip: "10.244.0.6"}),
		service("a", "ending", "10.96.0.3", 80),
		slice("a", "ending", 8080, endpoint{ip: "10.244.0.5", serving: true, terminating: true}),
		service("a", "empty", "10.96.0.4", 80),
		service("a", "outside", "10.96.0.5", 80),
		slice("a", "outside", 8080, endpoint{ip: "192.0.2.9", ready: true}),
	}
	for _, tt := range []struct {
		name, address, pod, host string
		err                      error
	}{
		{name: "the service kubernetes leads to the API server", address: "10.96.0.1:443", host: "127.0.0.1:6443"},
		{name: "a service leads to its ready pod", address: "10.96.0.2:80", pod: "10.244.0.5:8080"},
		{name: "a service of pods that end leads there still", address: "10.96.0.3:80", pod: "10.244.0.5:8080"},
		{name: "a service without pods refuses", address: "10.96.0.4:80", err: syscall.ECONNREFUSED},
		{name: "a port that the service does not have refuses", address: "10.96.0.2:81", err: syscall.ECONNREFUSED},
		{name: "a service may lead out of the cluster", address: "10.96.0.5:80", host: "192.0.2.9:8080"},
		{name: "a pod is dialled at any port", address: "10.244.0.5:9", pod: "10.244.0.5:9"},
		{name: "an address of no pod is not looked for on the host", address: "10.244.7.7:80", err: syscall.EHOSTUNREACH},
		{name: "all else is the host's", address: "192.0.2.1:443", host: "192.0.2.1:443"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			host, pod := &recorder{}, &recorder{}
			n := newNetwork(t, host, objects...)
			n.Attach(netip.MustParseAddr("10.244.0.5"), pod.dial)
			conn, err := n.Dial(t.Context(), "tcp", tt.address)
			if !errors.Is(err, tt.err) {
				t.Fatalf("got error %v, want %v", err, tt.err)
			}
			if err == nil {
				_ = conn.Close()
			}
			if got := strings.Join(pod.dialed, " "); got != tt.pod {
				t.Errorf("the pod was dialled at %q, want %q", got, tt.pod)
			}
			if got := strings.Join(host.dialed, " "); got != tt.host {
				t.Errorf("the host dialled %q, want %q", got, tt.host)
			}
		})
	}
}

func TestServiceLeadsToAnotherPodWhenOneHasJustGone(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, &recorder{}, service("a", "s", "10.96.0.2", 80),
		slice("a", "s", 8080, endpoint{ip: "10.244.0.5", ready: true}, endpoint{ip: "10.244.0.6", ready: true}))
	gone, there := &recorder{fail: true}, &recorder{}
	n.Attach(netip.MustParseAddr("10.244.0.5"), gone.dial)
	n.Attach(netip.MustParseAddr("10.244.0.6"), there.dial)
	for range 20 { // the order is random
		conn, err := n.Dial(t.Context(), "tcp", "10.96.0.2:80")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
}

func TestAddressesAreGivenOnceAndComeBack(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, &recorder{})
	prefix := netip.MustParsePrefix("10.244.3.0/29") // .2 to .6: not the network's, the node's and the last
	seen := map[netip.Addr]bool{}
	for range 5 {
		ip, err := n.Allocate(prefix)
		if err != nil {
			t.Fatal(err)
		}
		if seen[ip] || ip == netip.MustParseAddr("10.244.3.1") || ip == netip.MustParseAddr("10.244.3.7") {
			t.Errorf("got %s after %v", ip, seen)
		}
		seen[ip] = true
	}
	if ip, err := n.Allocate(prefix); err == nil {
		t.Errorf("got %s from a range that is used up", ip)
	}
	n.Release(netip.MustParseAddr("10.244.3.4"))
	if ip, err := n.Allocate(prefix); err != nil || ip != netip.MustParseAddr("10.244.3.4") {
		t.Errorf("got %s (%v), want the one that came back", ip, err)
	}
}

func TestNamesOfServicesAreAnswered(t *testing.T) {
	t.Parallel()
	headless := service("a", "headless", corev1.ClusterIPNone, 80)
	pods := slice("a", "headless", 80, endpoint{ip: "10.244.0.5", ready: true}, endpoint{ip: "10.244.0.6", ready: true}, endpoint{ip: "10.244.0.7"})
	host := "one"
	pods.Endpoints[0].Hostname = &host
	n := newNetwork(t, &recorder{}, service("a", "web", "10.96.0.2", 80), headless, pods)
	for _, tt := range []struct {
		name, question string
		kind           uint16
		want           string
		rcode          int
	}{
		{"the full name", "web.a.svc.cluster.local.", dns.TypeA, "10.96.0.2", dns.RcodeSuccess},
		{"the short name", "web.a.svc.", dns.TypeA, "10.96.0.2", dns.RcodeSuccess},
		{"in capitals", "WEB.a.SVC.cluster.local.", dns.TypeA, "10.96.0.2", dns.RcodeSuccess},
		{"for IPv6 the name is there and has no address", "web.a.svc.cluster.local.", dns.TypeAAAA, "", dns.RcodeSuccess},
		{"a headless one gives its ready pods", "headless.a.svc.cluster.local.", dns.TypeA, "10.244.0.5 10.244.0.6", dns.RcodeSuccess},
		{"one pod of it", "one.headless.a.svc.cluster.local.", dns.TypeA, "10.244.0.5", dns.RcodeSuccess},
		{"no such pod", "two.headless.a.svc.cluster.local.", dns.TypeA, "", dns.RcodeNameError},
		{"no such service", "absent.a.svc.cluster.local.", dns.TypeA, "", dns.RcodeNameError},
		{"a search path's miss is not asked of the host", "example.com.a.svc.cluster.local.", dns.TypeA, "", dns.RcodeNameError},
		{"the cluster's domain is never asked of the host", "example.com.cluster.local.", dns.TypeA, "", dns.RcodeNameError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			reply := n.answer(t.Context(), new(dns.Msg).SetQuestion(tt.question, tt.kind))
			var got []string
			for _, record := range reply.Answer {
				if a, ok := record.(*dns.A); ok {
					got = append(got, a.A.String())
				}
			}
			if reply.Rcode != tt.rcode || strings.Join(got, " ") != tt.want {
				t.Errorf("got %s %v, want %s %s", dns.RcodeToString[reply.Rcode], got, dns.RcodeToString[tt.rcode], tt.want)
			}
		})
	}
}

func TestEgressProxyConnectsToPodsAndSaysWhyItCannot(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, &recorder{})
	n.Attach(netip.MustParseAddr("10.244.0.5"), (&recorder{}).dial)
	// Longer than the kernel takes as a socket's path.
	path := filepath.Join(t.TempDir(), strings.Repeat("long-", 20), "egress.sock")
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	socket := fmt.Sprintf("/proc/self/fd/%d/egress.sock", dir.Fd())
	served := make(chan error, 1)
	go func() { served <- n.ServeEgress(t.Context(), l) }()
	dial := func(target string) (*http.Response, *bufio.Reader, net.Conn) {
		t.Helper()
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
			t.Fatal(err)
		}
		reader := bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		return response, reader, conn
	}
	response, reader, conn := dial("10.244.0.5:9443")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("got %s", response.Status)
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := reader.ReadString('\n'); line != "hello\n" {
		t.Errorf("got %q back (%v)", line, err)
	}
	refused, _, other := dial("10.244.0.9:9443")
	if refused.StatusCode != http.StatusBadGateway {
		t.Errorf("an address of no pod got %s", refused.Status)
	}
	_ = other.Close()
	// The end of the proxy ends the connections through it.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := reader.ReadString('\n'); err == nil {
		t.Error("the connection lives on")
	}
}
