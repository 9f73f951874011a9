// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

const (
	// minInotifyInstances is what a machine should allow a user, and
	// goodInotifyInstances what is advised: a cluster with all providers was seen
	// to take 25, and editors, desktops and the lab's clusters take theirs.
	minInotifyInstances  = 256
	goodInotifyInstances = 512
	// minOpenFiles is what the runtime takes with a cluster of ten controllers,
	// twice over: each connection of a pod is two descriptors.
	minOpenFiles = 4096
	// minNamespaces is what two clusters of twenty pods take of each kind.
	minNamespaces = 256
)

// Check tries out a pod and reads the settings that an ordinary user cannot
// change. It takes a fraction of a second and leaves nothing. The program must
// have called sandbox.ReexecMain.
func Check(ctx context.Context) Report {
	m := machine{root: "/", superuser: os.Geteuid() == 0, try: try}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		m.openFiles = limit.Max
	}
	return m.check(ctx)
}

// machine is what Check looks at.
type machine struct {
	// root is the directory that holds proc.
	root string
	// superuser says that the limits for ordinary users do not apply.
	superuser bool
	// openFiles is the hard limit of open files, 0 if it is not known.
	openFiles uint64
	// try makes a pod and a container.
	try func(context.Context) error
}

func (m machine) check(ctx context.Context) Report {
	var report Report
	err := m.try(ctx)
	switch {
	case ctx.Err() != nil:
		return Report{{Fatal: true, Problem: fmt.Sprintf("the check was cut short (%v)", ctx.Err())}}
	case err != nil:
		report = m.explain(err)
	}
	if n, ok := m.number("proc/sys/fs/inotify/max_user_instances"); ok && n < minInotifyInstances {
		report = append(report, Finding{
			Problem: fmt.Sprintf("a user may have %d inotify instances, of which each cluster takes about 25 (\"too many open files\" when they are used up)", n),
			Remedy:  setSysctl("fs.inotify.max_user_instances", goodInotifyInstances),
		})
	}
	if m.openFiles > 0 && m.openFiles < minOpenFiles {
		report = append(report, Finding{
			Problem: fmt.Sprintf("a process may have %d open files", m.openFiles),
			Remedy:  fmt.Sprintf("raise the hard limit to %d or more (nofile in /etc/security/limits.conf, LimitNOFILE= of a systemd unit, --ulimit nofile= of a container)", minOpenFiles),
		})
	}
	return report
}

// explain says why a pod cannot be made, as far as the settings tell.
func (m machine) explain(failure error) Report {
	var report Report
	add := func(problem, remedy string) {
		report = append(report, Finding{Fatal: true, Problem: problem, Remedy: remedy})
	}
	if release, ok := m.text("proc/sys/kernel/osrelease"); ok && older(release, 5, 8) {
		add("the kernel is "+release, "Linux 5.11 or newer is needed")
	}
	if !m.superuser {
		if n, ok := m.number("proc/sys/kernel/unprivileged_userns_clone"); ok && n == 0 {
			add("this system forbids user namespaces to ordinary users", setSysctl("kernel.unprivileged_userns_clone", 1))
		}
		if n, ok := m.number("proc/sys/kernel/apparmor_restrict_unprivileged_userns"); ok && n != 0 {
			add("AppArmor takes the capabilities from the user namespaces of ordinary users (Ubuntu 23.10 and newer)",
				setSysctl("kernel.apparmor_restrict_unprivileged_userns", 0)+", or give this program an AppArmor profile with the rule `userns,`")
		}
	}
	for _, kind := range []string{"user", "net", "pid", "mnt", "uts", "ipc"} {
		setting := "user.max_" + kind + "_namespaces"
		if n, ok := m.number("proc/sys/" + strings.ReplaceAll(setting, ".", "/")); ok && n < minNamespaces {
			add(fmt.Sprintf("a user may have %d %s namespaces", n, kind), setSysctl(setting, 10000))
		}
	}
	if len(report) == 0 {
		add("a pod could not be made", "if this runs inside a container, that has to allow user namespaces (for Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined)")
	}
	report[len(report)-1].Remedy += fmt.Sprintf(" (a trial ended with: %v)", failure)
	return report
}

// text reads a setting. Many are there on some systems only.
func (m machine) text(name string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(m.root, name))
	return strings.TrimSpace(string(b)), err == nil
}

func (m machine) number(name string) (int, bool) {
	text, ok := m.text(name)
	n, err := strconv.Atoi(text)
	return n, ok && err == nil
}

// older says whether a kernel release ("5.4.0-150-generic") is older than
// major.minor. What cannot be read is not.
func older(release string, major, minor int) bool {
	var a, b int
	if n, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil || n != 2 {
		return false
	}
	return a < major || a == major && b < minor
}

// try makes a pod, its network, and a container up to the point where its
// command, which does not exist, would be executed.
func try(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "capi-preflight-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	pod, err := sandbox.Start(ctx, sandbox.PodConfig{
		Name: "preflight", Dir: filepath.Join(dir, "pod"), IP: netip.AddrFrom4([4]byte{10, 244, 0, 1}),
	})
	if err != nil {
		return err
	}
	_, err = pod.StartContainer(ctx, sandbox.ContainerConfig{Name: "trial", Root: root, Args: []string{trialCommand}, UID: 65532, GID: 65532})
	if stopErr := pod.Stop(context.WithoutCancel(ctx)); stopErr != nil {
		return stopErr
	}
	if err != nil && strings.Contains(err.Error(), trialCommand) {
		return nil
	}
	return err
}

// trialCommand is named by the error that shows that all went well up to it.
const trialCommand = "capi-preflight-trial"
