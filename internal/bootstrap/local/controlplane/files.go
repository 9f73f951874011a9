// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Users and groups of the Kubernetes default roles
// (plugin/pkg/auth/authorizer/rbac/bootstrappolicy of k8s.io/kubernetes).
const (
	userAdmin             = "kubernetes-admin"
	groupMasters          = "system:masters"
	userControllerManager = "system:kube-controller-manager"
	userScheduler         = "system:kube-scheduler"
)

// files writes what the programs read: certificates, kubeconfigs and
// configuration. All of it lies below Dir with mode 0600.
type files struct {
	cfg  Config
	pki  *PKI
	ca   *authority
	etcd *authority
}

func newFiles(cfg Config) (*files, error) {
	for _, dir := range []string{"", "pki", "logs", "conf", "etcd"} {
		if err := os.MkdirAll(cfg.path(dir), 0o700); err != nil {
			return nil, fmt.Errorf("making the control plane's folders: %w", err)
		}
	}
	pki, err := ensurePKI(cfg.PKI, cfg.path("pki"))
	if err != nil {
		return nil, err
	}
	ca, err := pki.CA.load("the cluster's authority")
	if err != nil {
		return nil, err
	}
	etcd, err := pki.EtcdCA.load("etcd's authority")
	if err != nil {
		return nil, err
	}
	f := &files{cfg: cfg, pki: pki, ca: ca, etcd: etcd}
	return f, f.certificates()
}

func (f *files) certificates() error {
	frontProxy, err := f.pki.FrontProxyCA.load("the front proxy's authority")
	if err != nil {
		return err
	}
	key, err := parseKey(f.pki.ServiceAccountKey)
	if err != nil {
		return fmt.Errorf("the service account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("the service account key: %w", err)
	}
	if err := writeFile(f.cfg.path("pki", "sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})); err != nil {
		return err
	}
	local := []string{"localhost", "127.0.0.1", f.cfg.Address.String()}
	api := slices.Concat(local, []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		f.cfg.serviceIP().String(),
	}, f.cfg.ExtraSANs)
	for _, c := range []struct {
		file string
		by   *authority
		leaf leaf
	}{
		{"apiserver", f.ca, leaf{name: "kube-apiserver", sans: api}},
		{"components", f.ca, leaf{name: "components", sans: local}},
		{"kubelet-client", f.ca, leaf{name: "kube-apiserver-kubelet-client", groups: []string{groupMasters}}},
		{"front-proxy-client", frontProxy, leaf{name: "front-proxy-client"}},
		{"etcd", f.etcd, leaf{name: f.cfg.Etcd.Name, sans: local}},
		{"etcd-client", f.etcd, leaf{name: "kube-apiserver-etcd-client"}},
	} {
		pair, err := c.by.issue(c.leaf)
		if err != nil {
			return err
		}
		if err := writeFile(f.cfg.path("pki", c.file+".crt"), pair.Cert); err != nil {
			return err
		}
		if err := writeFile(f.cfg.path("pki", c.file+".key"), pair.Key); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig answers a kubeconfig of a user whom the cluster's authority vouches
// for.
func (f *files) kubeconfig(server, user string, groups ...string) ([]byte, error) {
	pair, err := f.ca.issue(leaf{name: user, groups: groups})
	if err != nil {
		return nil, err
	}
	c := clientcmdapi.NewConfig()
	c.Clusters[f.cfg.Name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: f.pki.CA.Cert}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	c.Contexts[user+"@"+f.cfg.Name] = &clientcmdapi.Context{Cluster: f.cfg.Name, AuthInfo: user}
	c.CurrentContext = user + "@" + f.cfg.Name
	data, err := clientcmd.Write(*c)
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return data, nil
}

// egress has the API server reach what lies in the cluster (webhooks, aggregated
// API servers, kubelets) through an HTTP CONNECT proxy on a unix socket.
const egress = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %q
`

// auditPolicy keeps Secrets' contents out of the log, and shows what was written
// to Cluster API's objects and to nodes.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
  resources:
  - resources: [secrets, configmaps, serviceaccounts/token]
- level: RequestResponse
  resources:
  - group: cluster.x-k8s.io
  - group: controlplane.cluster.x-k8s.io
  - group: infrastructure.cluster.x-k8s.io
  - group: ipam.cluster.x-k8s.io
  - resources: [nodes, nodes/status]
- level: Metadata
`

func (f *files) etcdArgs(client, peer port) []string {
	c := f.cfg
	clientURL, peerURL := client.url("https"), peer.url("https")
	initial, state := c.Etcd.InitialCluster, "new"
	if initial == "" {
		initial = c.Etcd.Name + "=" + peerURL
	}
	if c.Etcd.Existing {
		state = "existing"
	}
	args := []string{
		"--name=" + c.Etcd.Name,
		"--data-dir=" + c.path("etcd"),
		"--listen-client-urls=" + clientURL, "--advertise-client-urls=" + clientURL,
		"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL,
		"--initial-cluster=" + initial, "--initial-cluster-state=" + state,
		"--client-cert-auth", "--trusted-ca-file=" + c.path("pki", "etcd-ca.crt"),
		"--cert-file=" + c.path("pki", "etcd.crt"), "--key-file=" + c.path("pki", "etcd.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file=" + c.path("pki", "etcd-ca.crt"),
		"--peer-cert-file=" + c.path("pki", "etcd.crt"), "--peer-key-file=" + c.path("pki", "etcd.key"),
		"--log-level=warn", "--logger=zap", "--log-outputs=stderr",
		"--socket-reuse-port=" + strconv.FormatBool(client.shared() || peer.shared()),
		"--unsafe-no-fsync=" + strconv.FormatBool(c.Etcd.NoFsync),
	}
	return append(args, c.ExtraArgs.Etcd...)
}

func (f *files) apiServerArgs(api, etcd port) ([]string, error) {
	c := f.cfg
	pki := func(name string) string { return c.path("pki", name) }
	args := []string{
		"--bind-address=" + c.Address.String(), "--advertise-address=" + advertised(c.Address).String(),
		"--secure-port=" + strconv.Itoa(api.number), "--permit-port-sharing=" + strconv.FormatBool(api.shared()),
		// The reconcilers publish the advertised address as Endpoints of
		// default/kubernetes, which may not be loopback.
		"--endpoint-reconciler-type=none",
		// Webhooks' and aggregated servers' Services are followed to an endpoint
		// here: there is no kube-proxy that would do so.
		"--enable-aggregator-routing=true",
		"--service-cluster-ip-range=" + c.ServiceCIDR.String(),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth=true", "--allow-privileged=true",
		"--client-ca-file=" + pki("ca.crt"),
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--kubelet-client-certificate=" + pki("kubelet-client.crt"), "--kubelet-client-key=" + pki("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"--etcd-servers=" + etcd.url("https"), "--etcd-cafile=" + pki("etcd-ca.crt"),
		"--etcd-certfile=" + pki("etcd-client.crt"), "--etcd-keyfile=" + pki("etcd-client.key"),
		"--service-account-issuer=" + c.ServiceAccountIssuer,
		"--service-account-key-file=" + pki("sa.pub"), "--service-account-signing-key-file=" + pki("sa.key"),
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki("front-proxy-client.crt"), "--proxy-client-key-file=" + pki("front-proxy-client.key"),
	}
	if c.EgressSocket != "" {
		path := c.path("conf", "egress.yaml")
		if err := writeFile(path, fmt.Appendf(nil, egress, c.egressName())); err != nil {
			return nil, err
		}
		args = append(args, "--egress-selector-config-file="+path)
	}
	if c.AuditLog != "" {
		path := c.path("conf", "audit.yaml")
		if err := writeFile(path, []byte(auditPolicy)); err != nil {
			return nil, err
		}
		args = append(args, "--audit-policy-file="+path, "--audit-log-path="+c.AuditLog)
	}
	return append(args, c.ExtraArgs.APIServer...), nil
}

// egressName answers the proxy's socket as the API server, which works in Dir,
// finds it: the kernel takes no more than 107 bytes.
func (c Config) egressName() string {
	if relative, err := filepath.Rel(c.Dir, c.EgressSocket); err == nil && filepath.IsLocal(relative) {
		return relative
	}
	return c.EgressSocket
}

// advertised answers an address that the API server accepts as its own: it
// refuses loopback ones even where it publishes none. Nothing ever dials it.
func advertised(addr netip.Addr) netip.Addr {
	if !addr.IsLoopback() {
		return addr
	}
	if addr.Is4() {
		return netip.AddrFrom4([4]byte{192, 0, 2, 1}) // TEST-NET-1, RFC 5737
	}
	return netip.MustParseAddr("2001:db8::1") // RFC 3849
}

// componentArgs are those that controller-manager and scheduler share.
func (f *files) componentArgs(name, user, server string, health port) ([]string, error) {
	kubeconfig, err := f.kubeconfig(server, user)
	if err != nil {
		return nil, err
	}
	path := f.cfg.path("conf", name+".kubeconfig")
	if err := writeFile(path, kubeconfig); err != nil {
		return nil, err
	}
	return []string{
		"--kubeconfig=" + path, "--authentication-kubeconfig=" + path, "--authorization-kubeconfig=" + path,
		"--bind-address=" + f.cfg.Address.String(), "--secure-port=" + strconv.Itoa(health.number),
		"--permit-port-sharing=" + strconv.FormatBool(health.shared()),
		"--tls-cert-file=" + f.cfg.path("pki", "components.crt"), "--tls-private-key-file=" + f.cfg.path("pki", "components.key"),
		"--leader-elect=" + strconv.FormatBool(f.cfg.LeaderElect),
		"--kube-api-qps=100", "--kube-api-burst=200",
	}, nil
}

func (f *files) controllerManagerArgs(server string, health port) ([]string, error) {
	args, err := f.componentArgs("kube-controller-manager", userControllerManager, server, health)
	if err != nil {
		return nil, err
	}
	pki := func(name string) string { return f.cfg.path("pki", name) }
	args = append(args,
		"--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+pki("sa.key"), "--root-ca-file="+pki("ca.crt"),
		"--client-ca-file="+pki("ca.crt"),
		"--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key"),
		"--requestheader-client-ca-file="+pki("front-proxy-ca.crt"),
		// Otherwise it makes a folder below /usr/libexec of this host.
		"--flex-volume-plugin-dir="+f.cfg.path("conf", "flexvolume"),
		"--cluster-name="+f.cfg.Name, "--cluster-cidr="+f.cfg.PodCIDR.String(),
		"--service-cluster-ip-range="+f.cfg.ServiceCIDR.String(), "--allocate-node-cidrs=true",
	)
	return append(args, f.cfg.ExtraArgs.ControllerManager...), nil
}

func (f *files) schedulerArgs(server string, health port) ([]string, error) {
	args, err := f.componentArgs("kube-scheduler", userScheduler, server, health)
	if err != nil {
		return nil, err
	}
	return append(args, f.cfg.ExtraArgs.Scheduler...), nil
}

// port is a TCP port of the control plane's address.
type port struct {
	addr   netip.Addr
	number int
	held   *reservation
}

// shared says whether the program has to bind the port beside our reservation.
func (p port) shared() bool { return p.held != nil }

func (p port) url(scheme string) string {
	return scheme + "://" + net.JoinHostPort(p.addr.String(), strconv.Itoa(p.number))
}
