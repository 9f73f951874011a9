// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/controlplane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/network"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// The pods of these tests run this test binary as /app, whose first argument
// says what it does.
func TestMain(m *testing.M) {
	sandbox.ReexecMain()
	if filepath.Base(os.Args[0]) == "app" {
		os.Exit(app(os.Args[1:]))
	}
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func app(args []string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	switch args[0] {
	case "exit": // exit CODE [TEXT...]
		code, err := strconv.Atoi(args[1])
		if err != nil {
			return 99
		}
		fmt.Println(strings.Join(args[2:], " "))
		if len(args) > 2 {
			_ = os.WriteFile("/dev/termination-log", []byte(strings.Join(args[2:], " ")), 0o600)
		}
		return code
	case "wait": // wait: ends on SIGTERM with 0
		<-term
		return 0
	case "deaf": // deaf: does not end on SIGTERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("deaf")
		select {}
	case "show": // show FILE...: prints files, then the environment, then waits
		for _, name := range args[1:] {
			data, err := os.ReadFile(name)
			fmt.Printf("%s=%s %v\n", name, data, err)
		}
		fmt.Println(strings.Join(os.Environ(), "\n"))
		fmt.Println("uid", os.Getuid())
		<-term
		return 0
	case "exists": // exists FILE: 0 if so
		if _, err := os.Stat(args[1]); err != nil {
			return 1
		}
		return 0
	case "touch":
		if err := os.WriteFile(args[1], nil, 0o600); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	case "get": // get URL: prints what comes
		return get(args[1])
	case "serve": // serve ADDRESS: answers any path with the file's content below /data, 404 if there is none
		return serve(args[1], term)
	case "remember": // remember FILE: 1 the first time, 0 later
		if _, err := os.Stat(args[1]); err == nil {
			return 0
		}
		_ = os.WriteFile(args[1], nil, 0o600)
		return 1
	}
	return 98
}

func get(url string) int {
	client := &http.Client{Timeout: 10 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer response.Body.Close()
	_, _ = io.Copy(os.Stdout, response.Body)
	fmt.Println()
	return 0
}

func serve(address string, term <-chan os.Signal) int {
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hello" {
				_, _ = io.WriteString(w, "hello from "+os.Getenv("HOSTNAME"))
				return
			}
			if _, err := os.Stat("/data" + r.URL.Path); err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
			}
		}))
	}()
	<-term
	return 0
}

// testImages has one image: this test binary as /app.
type testImages struct{ root string }

func (i testImages) Unpack(_ context.Context, ref string) (*oci.Image, error) {
	if ref != "example.com/app:v1" {
		return nil, fmt.Errorf("image %s: %w", ref, kube.ErrAbsent)
	}
	return &oci.Image{Ref: ref, Digest: "sha256:0123", Root: i.root, Config: v1.Config{
		Entrypoint: []string{"/app"}, Cmd: []string{"wait"}, Env: []string{"FROM_IMAGE=yes", "PATH=/"}, User: "65532",
	}}, nil
}

// cluster is the control plane that the tests of this package share; each test
// has nodes and a namespace of its own.
type cluster struct {
	once    sync.Once
	err     error
	dir     string
	control *controlplane.ControlPlane
	network *network.Network
	egress  net.Listener
	client  *kubernetes.Clientset
	images  testImages
}

var shared cluster

const podCIDR = "10.244.0.0/16"

func (c *cluster) start() (err error) {
	if c.dir, err = os.MkdirTemp("", "node-test-"); err != nil {
		return err
	}
	c.images.root = filepath.Join(c.dir, "image")
	if err := makeImage(c.images.root); err != nil {
		return err
	}
	if c.egress, err = network.ListenUnix(filepath.Join(c.dir, "control-plane", "egress.sock")); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	binaries, err := programs(ctx, c.dir)
	if err != nil {
		return err
	}
	if c.control, err = controlplane.Start(ctx, controlplane.Config{
		Dir: filepath.Join(c.dir, "control-plane"), Address: netip.MustParseAddr("127.0.0.1"), Binaries: binaries,
		EgressSocket: filepath.Join(c.dir, "control-plane", "egress.sock"), Etcd: controlplane.Etcd{NoFsync: true},
	}, nil); err != nil {
		return err
	}
	config, err := c.control.RESTConfig()
	if err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	proxy, err := c.control.ClientConfig("system:kube-proxy")
	if err != nil {
		return err
	}
	c.network, err = network.Start(ctx, network.Config{Client: proxy, APIServer: c.control.Endpoint, PodCIDR: netip.MustParsePrefix(podCIDR)})
	if err != nil {
		return err
	}
	go func() { _ = c.network.ServeEgress(context.Background(), c.egress) }()
	return nil
}

func (c *cluster) stop() error {
	if c.dir == "" {
		return nil
	}
	var errs []error
	if c.network != nil {
		c.network.Stop()
	}
	if c.control != nil {
		errs = append(errs, c.control.Stop(context.Background()))
	}
	if c.egress != nil {
		errs = append(errs, c.egress.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// makeImage puts this test binary into a root file system, with the libraries
// that it needs when cgo was on.
func makeImage(root string) error {
	self, err := elf.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	files := map[string]string{"/proc/self/exe": "app"}
	for _, p := range self.Progs {
		if p.Type == elf.PT_INTERP {
			data, err := io.ReadAll(p.Open())
			if err != nil {
				return err
			}
			interpreter := strings.TrimRight(string(data), "\x00")
			files[interpreter] = interpreter
		}
	}
	needed, err := self.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, name := range needed {
		found, err := filepath.Glob("/lib*/" + name)
		more, moreErr := filepath.Glob("/lib/*/" + name)
		if found = append(found, more...); len(found) == 0 {
			return fmt.Errorf("library %s not found (%w, %w)", name, err, moreErr)
		}
		files[found[0]] = "lib/" + name
	}
	for from, to := range files {
		if err := copyFile(from, filepath.Join(root, to)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// testCluster answers the shared cluster.
func testCluster(t *testing.T) *cluster {
	t.Helper()
	shared.once.Do(func() { shared.err = shared.start() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return &shared
}

// world is a node of its own in the shared cluster, and a namespace whose pods
// go there.
type world struct {
	t         *testing.T
	c         *cluster
	node      *Node
	name      string // of node and namespace
	client    *kubernetes.Clientset
	dir       string
	address   netip.Addr
	configure func(*Config)
}

var nextAddress struct {
	sync.Mutex
	n byte
}

func newWorld(t *testing.T, configure func(*Config)) *world {
	t.Helper()
	c := testCluster(t)
	created, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "w-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nextAddress.Lock()
	nextAddress.n++
	number := nextAddress.n
	nextAddress.Unlock()
	w := &world{
		t: t, c: c, name: created.Name, client: c.client, dir: t.TempDir(), configure: configure,
		address: netip.AddrFrom4([4]byte{10, 244, number, 1}),
	}
	w.startNode()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := w.node.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := c.client.CoreV1().Nodes().Delete(context.Background(), w.name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	w.eventually("the namespace has its default service account", func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().ServiceAccounts(w.name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	return w
}

func (w *world) startNode() {
	w.t.Helper()
	kubelet, err := w.c.control.ClientConfig("system:node:"+w.name, "system:nodes")
	if err != nil {
		w.t.Fatal(err)
	}
	serving, err := w.c.control.ServingCertificate("system:node:"+w.name, w.address.String())
	if err != nil {
		w.t.Fatal(err)
	}
	prefix, err := w.address.Prefix(24)
	if err != nil {
		w.t.Fatal(err)
	}
	config := Config{
		Name: w.name, Dir: w.dir, Client: kubelet, Network: w.c.network, Images: w.c.images, PodCIDR: prefix, Address: w.address,
		KubernetesVersion: "v1.36.2", Serving: Serving{Certificate: serving, ClientCA: w.c.control.PKI().CA.Cert},
		RestartBackoff: 100 * time.Millisecond, MaxRestartBackoff: time.Second,
	}
	if w.configure != nil {
		w.configure(&config)
	}
	if w.node, err = Start(w.t.Context(), config); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) eventually(what string, f wait.ConditionWithContextFunc) {
	w.t.Helper()
	if err := wait.PollUntilContextTimeout(w.t.Context(), 50*time.Millisecond, time.Minute, true, f); err != nil {
		w.t.Fatalf("gave up waiting until %s: %v\n%s", what, err, w.describe())
	}
}

// describe tells the state of the world for a failed test.
func (w *world) describe() string {
	var out strings.Builder
	pods, err := w.client.CoreV1().Pods(w.name).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, pod := range pods.Items {
		fmt.Fprintf(&out, "pod %s on %q: %s\n", pod.Name, pod.Spec.NodeName, pod.Status.String())
	}
	events, err := w.client.CoreV1().Events(w.name).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, e := range events.Items {
		fmt.Fprintf(&out, "event %s %s: %s (%d)\n", e.InvolvedObject.Name, e.Reason, e.Message, e.Count)
	}
	return out.String()
}

// pod answers a pod with one container that runs /app with the arguments.
func (w *world) pod(name string, args ...string) *corev1.Pod {
	zero := int64(5)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: w.name}, TerminationGracePeriodSeconds: &zero,
			Containers: []corev1.Container{{Name: "main", Image: "example.com/app:v1", Args: args}},
		},
	}
}

func (w *world) create(pod *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	created, err := w.client.CoreV1().Pods(w.name).Create(w.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return created
}

// waitFor waits until the pod is as f has it and answers it.
func (w *world) waitFor(name, what string, f func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	var found *corev1.Pod
	w.eventually("pod "+name+" "+what, func(ctx context.Context) (bool, error) {
		pod, err := w.client.CoreV1().Pods(w.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		found = pod
		return f(pod), nil
	})
	return found
}

func (w *world) waitReady(name string) *corev1.Pod {
	w.t.Helper()
	return w.waitFor(name, "is ready", isReady)
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (w *world) waitPhase(name string, phase corev1.PodPhase) *corev1.Pod {
	w.t.Helper()
	return w.waitFor(name, "is "+string(phase), func(pod *corev1.Pod) bool { return pod.Status.Phase == phase })
}

func (w *world) logs(name string, options *corev1.PodLogOptions) string {
	w.t.Helper()
	data, err := w.client.CoreV1().Pods(w.name).GetLogs(name, options).DoRaw(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return string(data)
}
