// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// recorder is a Dialer that leads everything to one address and remembers what
// it was asked for.
type recorder struct {
	to string

	mu    sync.Mutex
	asked []string
}

func (r *recorder) dial(ctx context.Context, network, address string) (net.Conn, error) {
	r.mu.Lock()
	r.asked = append(r.asked, address)
	r.mu.Unlock()
	if r.to == "" {
		return nil, errors.New("no way there")
	}
	var d net.Dialer
	return d.DialContext(ctx, network, r.to)
}

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

func TestWhatAPodDialsGoesOutWithItsOriginalDestination(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "from outside")
	}))
	defer server.Close()
	for _, test := range []struct{ name, address string }{
		{"a service address", "10.96.0.1:443"},
		{"an address of the internet", "192.0.2.7:80"},
		{"a loopback address of the host", "127.20.0.1:8006"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := &recorder{to: server.Listener.Addr().String()}
			pod := startPod(t, PodConfig{Outbound: out.dial})
			exit, text := run(t, pod, ContainerConfig{}, "fetch", "http://"+test.address)
			if exit.Code != 0 || text != "from outside" {
				t.Errorf("the pod got %d %q", exit.Code, text)
			}
			if asked := out.seen(); len(asked) != 1 || asked[0] != test.address {
				t.Errorf("dialled outside: %v", asked)
			}
		})
	}
}

func TestAnUnreachableDestinationEndsTheConnection(t *testing.T) {
	for name, outbound := range map[string]Dialer{"a dialer that fails": (&recorder{}).dial, "no dialer": nil} {
		t.Run(name, func(t *testing.T) {
			exit, text := run(t, startPod(t, PodConfig{Outbound: outbound}), ContainerConfig{}, "fetch", "http://192.0.2.7")
			// How the end shows depends on the moment at which it comes: before the
			// request is written, while, or after.
			ended := slices.ContainsFunc([]string{"connection reset by peer", "broken pipe", "EOF"}, func(how string) bool { return strings.Contains(text, how) })
			if exit.Code != 1 || !ended {
				t.Errorf("the pod got %d %q", exit.Code, text)
			}
		})
	}
}

func TestAPodsOwnAddressesStayInside(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	out := &recorder{to: server.Listener.Addr().String()}
	pod := startPod(t, PodConfig{Outbound: out.dial})
	_, log := startContainer(t, pod, ContainerConfig{Name: "server", UID: 65532}, "serve", ":8080")
	log.await(t, "ready")
	for _, address := range []string{"127.0.0.1", "localhost", "10.244.0.7", "pod"} {
		exit, text := run(t, pod, ContainerConfig{Name: "client"}, "fetch", "http://"+address+":8080")
		if exit.Code != 0 || !strings.Contains(text, "pod says hello") {
			t.Errorf("%s: %d %q", address, exit.Code, text)
		}
	}
	for _, port := range []int{relayPort, dnsTCPPort} {
		if exit, text := run(t, pod, ContainerConfig{Name: "client"}, "fetch", fmt.Sprintf("http://127.0.0.1:%d", port)); exit.Code == 0 {
			t.Errorf("port %d of the pod answers %q", port, text)
		}
	}
	if asked := out.seen(); len(asked) > 0 {
		t.Errorf("dialled outside: %v", asked)
	}
}

func TestAnyUserMayListenOnALowPort(t *testing.T) {
	var st unix.Statfs_t
	if err := unix.Statfs("/proc/sys/net", &st); err != nil {
		t.Fatal(err)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		t.Skip("/proc/sys is read-only here, as inside containers, so the setting cannot be made")
	}
	for _, uid := range []int{0, 65532} {
		_, log := startContainer(t, startPod(t, PodConfig{}), ContainerConfig{UID: uid}, "serve", ":80")
		log.await(t, "ready")
	}
}

func TestPodsWithTheSamePortReachEachOther(t *testing.T) {
	a := startPod(t, PodConfig{Name: "test/a", IP: netip.MustParseAddr("10.244.0.1")})
	b := startPod(t, PodConfig{Name: "test/b", IP: netip.MustParseAddr("10.244.0.2"), Outbound: a.Dial})
	for _, p := range []*Pod{a, b} {
		_, log := startContainer(t, p, ContainerConfig{}, "serve", ":9443")
		log.await(t, "ready")
	}
	exit, text := run(t, b, ContainerConfig{Name: "client"}, "fetch", "http://10.244.0.1:9443")
	if exit.Code != 0 || !strings.Contains(text, "a says hello to") {
		t.Errorf("b got %d %q", exit.Code, text)
	}
}

func TestDialKeepsTheSystemsError(t *testing.T) {
	pod := startPod(t, PodConfig{})
	_, err := pod.Dial(testContext(t), "tcp", "10.244.0.7:8080")
	if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "pod test/pod: dial tcp 10.244.0.7:8080: connect: connection refused") {
		t.Errorf("the error is %v", err)
	}
}

func TestListenServesAPodFromOutside(t *testing.T) {
	pod := startPod(t, PodConfig{})
	l, err := pod.Listen(testContext(t), "tcp", "127.0.0.1:7445")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "from outside") })}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	if exit, text := run(t, pod, ContainerConfig{}, "fetch", "http://localhost:7445"); exit.Code != 0 || text != "from outside" {
		t.Errorf("the pod got %d %q", exit.Code, text)
	}
	if err := pod.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener of a stopped pod: %v", err)
	}
}

func TestNamesAreAnsweredByTheHandler(t *testing.T) {
	for _, test := range []struct {
		name   string
		tcp    bool
		server string
	}{
		{"over UDP", false, ""}, {"over TCP where the answer is cut", true, ""}, {"whatever the server", false, "10.96.0.10"},
	} {
		t.Run(test.name, func(t *testing.T) {
			handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
				m := new(dns.Msg).SetReply(q)
				name := q.Question[0].Name
				switch {
				case name != "web.apps.svc.cluster.local.":
					m.Rcode = dns.RcodeNameError
				case test.tcp && w.LocalAddr().Network() == "udp":
					m.Truncated = true
				case q.Question[0].Qtype == dns.TypeA:
					m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(10, 96, 0, 9)}}
				}
				_ = w.WriteMsg(m)
			})
			config := PodConfig{DNS: handler, Search: []string{"apps.svc.cluster.local", "cluster.local"}, DNSOptions: []string{"ndots:5"}}
			if test.server != "" {
				config.Nameserver = netip.MustParseAddr(test.server)
			}
			pod := startPod(t, config)
			if _, text := run(t, pod, ContainerConfig{}, "resolve", "web"); text != "[10.96.0.9] <nil>\n" {
				t.Errorf("the pod got %q", text)
			}
			if _, text := run(t, pod, ContainerConfig{}, "resolve", "nonesuch"); !strings.Contains(text, "no such host") {
				t.Errorf("the pod got %q", text)
			}
		})
	}
}

func TestWithoutAHandlerNamesFailAtOnce(t *testing.T) {
	if _, text := run(t, startPod(t, PodConfig{}), ContainerConfig{}, "resolve", "web"); !strings.Contains(text, "server misbehaving") {
		t.Errorf("the pod got %q", text)
	}
}

func TestASharedNetworkIsThatOfTheOtherPod(t *testing.T) {
	out := &recorder{}
	node := startPod(t, PodConfig{Name: "node", Outbound: out.dial})
	guest := startPod(t, PodConfig{Name: "kube-system/agent", ShareNetwork: node, Hostname: "worker"})
	if guest.IP() != node.IP() {
		t.Errorf("the address is %s", guest.IP())
	}
	_, log := startContainer(t, guest, ContainerConfig{}, "serve", "127.0.0.1:9879")
	log.await(t, "ready")
	if exit, text := run(t, node, ContainerConfig{}, "fetch", "http://127.0.0.1:9879"); exit.Code != 0 || !strings.Contains(text, "worker says hello") {
		t.Errorf("the other pod got %d %q", exit.Code, text)
	}
	if err := guest.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Dial(testContext(t), "tcp", "127.0.0.1:9879"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the stopped pod's server: %v", err)
	}
	late := startPod(t, PodConfig{Name: "kube-system/late", ShareNetwork: node})
	c, log := startContainer(t, late, ContainerConfig{}, "ignore")
	log.await(t, "ready")
	if err := node.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(testContext(t)); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a guest's container after its host's end: %v", err)
	}
	<-late.Done()
}

// exchange sends data, ends its direction and reads what comes back.
func exchange(c net.Conn, data []byte) error {
	defer c.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		if err == nil {
			err = c.(*net.TCPConn).CloseWrite()
		}
		sent <- err
	}()
	back, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	if sha256.Sum256(back) != sha256.Sum256(data) {
		return fmt.Errorf("%d bytes came back for %d, or others", len(back), len(data))
	}
	return nil
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(b)
	return b
}

func TestManyAndLargeTransfersArriveWhole(t *testing.T) {
	pod := startPod(t, PodConfig{})
	_, log := startContainer(t, pod, ContainerConfig{Name: "server"}, "echo", ":7007")
	log.await(t, "ready")
	inside := func(ctx context.Context) (net.Conn, error) { return pod.Dial(ctx, "tcp", "10.244.0.7:7007") }

	// The second way leads through a relay as the pod's own connections do.
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	go func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			go func() {
				in, err := inside(testContext(t))
				if err != nil {
					c.Close()
					return
				}
				Splice(context.Background(), c, in)
			}()
		}
	}()
	relayed := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", front.Addr().String())
	}
	for name, dial := range map[string]func(context.Context) (net.Conn, error){"inside": inside, "relayed": relayed} {
		t.Run(name, func(t *testing.T) {
			transfer := func(data []byte) {
				c, err := dial(testContext(t))
				if err == nil {
					err = exchange(c, data)
				}
				if err != nil {
					t.Error(err)
				}
			}
			transfer(randomBytes(16 << 20))
			transfer(nil)
			small := randomBytes(10000)
			var wg sync.WaitGroup
			for range 200 {
				wg.Go(func() { transfer(small) })
			}
			wg.Wait()
		})
	}
}

func TestSpliceResetsBothSidesWhenOneBreaks(t *testing.T) {
	a, aPeer := tcpPair(t)
	b, bPeer := tcpPair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Splice(context.Background(), a, b)
	}()
	if _, err := aPeer.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(bPeer, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	reset(aPeer)
	if _, err := bPeer.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the other side reads %v", err)
	}
	<-done
}

func TestSpliceEndsWithItsContext(t *testing.T) {
	a, _ := tcpPair(t)
	b, _ := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Splice(ctx, a, b)
	}()
	cancel()
	<-done
}

func TestSpliceWithAConnectionThatHasNoHalves(t *testing.T) {
	a, peer := tcpPair(t)
	b, far := net.Pipe()
	go Splice(context.Background(), a, b)
	go func() {
		_, _ = far.Write([]byte("answer"))
		far.Close()
	}()
	if got, err := io.ReadAll(peer); err != nil || !bytes.Equal(got, []byte("answer")) {
		t.Errorf("read %q %v", got, err)
	}
}

// tcpPair makes two connected sockets that end with the test.
func tcpPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}
