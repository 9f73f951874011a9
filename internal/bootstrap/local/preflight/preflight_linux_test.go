// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package preflight

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.ReexecMain()
	os.Exit(m.Run())
}

func TestWhatStandsInTheWayIsSaidWithItsRemedy(t *testing.T) {
	good := map[string]string{
		"kernel/osrelease": "6.1.0-18-amd64\n", "kernel/unprivileged_userns_clone": "1\n", "kernel/apparmor_restrict_unprivileged_userns": "0\n",
		"user/max_user_namespaces": "63000\n", "fs/inotify/max_user_instances": "1024\n",
	}
	denied := errors.New("operation not permitted")
	for name, test := range map[string]struct {
		settings  map[string]string
		superuser bool
		openFiles uint64
		trial     error
		fatal     []string
		warnings  []string
	}{
		"nothing":                           {openFiles: 1 << 20},
		"settings that the trial disproves": {settings: map[string]string{"kernel/apparmor_restrict_unprivileged_userns": "1", "user/max_user_namespaces": "0"}},
		"settings that cannot be read":      {settings: map[string]string{"fs/inotify/max_user_instances": "", "user/max_user_namespaces": "lots"}},
		"Debian's switch": {
			settings: map[string]string{"kernel/unprivileged_userns_clone": "0"}, trial: denied,
			fatal: []string{"forbids user namespaces", "`sudo sysctl -w kernel.unprivileged_userns_clone=1`", "`kernel.unprivileged_userns_clone = 1`", "operation not permitted"},
		},
		"Ubuntu's switch": {
			settings: map[string]string{"kernel/apparmor_restrict_unprivileged_userns": "1"}, trial: denied,
			fatal: []string{"AppArmor", "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`", "profile with the rule `userns,`"},
		},
		"no switch counts for root": {
			settings: map[string]string{"kernel/unprivileged_userns_clone": "0"}, superuser: true, trial: denied,
			fatal: []string{"a pod could not be made", "inside a container"},
		},
		"a limit of zero": {
			settings: map[string]string{"user/max_user_namespaces": "0"}, superuser: true, trial: denied,
			fatal: []string{"a user may have 0 user namespaces", "`sudo sysctl -w user.max_user_namespaces=10000`"},
		},
		"an old kernel": {
			settings: map[string]string{"kernel/osrelease": "4.18.0-553.el8"}, trial: denied,
			fatal: []string{"the kernel is 4.18.0-553.el8", "Linux 5.11 or newer"},
		},
		"no setting tells why": {trial: denied, fatal: []string{"a pod could not be made", "operation not permitted"}},
		"few inotify instances": {
			settings: map[string]string{"fs/inotify/max_user_instances": "128"},
			warnings: []string{"128 inotify instances", "`sudo sysctl -w fs.inotify.max_user_instances=512`"},
		},
		"few open files": {openFiles: 1024, warnings: []string{"1024 open files", "4096 or more"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine{root: t.TempDir(), superuser: test.superuser, openFiles: test.openFiles, try: func(context.Context) error { return test.trial }}
			for _, settings := range []map[string]string{good, test.settings} {
				for file, content := range settings {
					file = filepath.Join(m.root, "proc/sys", file)
					if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			report := m.check(context.Background())
			var fatal string
			if err := report.Err(); err != nil {
				fatal = err.Error()
			}
			compare(t, "fatal", fatal, test.fatal)
			compare(t, "a warning", strings.Join(report.Warnings(), "\n"), test.warnings)
		})
	}
}

func compare(t *testing.T, what, got string, want []string) {
	t.Helper()
	if len(want) == 0 && got != "" {
		t.Errorf("%s: %s", what, got)
	}
	for _, text := range want {
		if !strings.Contains(got, text) {
			t.Errorf("%q is not %s: %s", text, what, got)
		}
	}
}

func TestAMachineWithoutSettingsIsJudgedByTheTrialAlone(t *testing.T) {
	m := machine{root: t.TempDir(), try: func(context.Context) error { return nil }}
	if report := m.check(context.Background()); len(report) > 0 {
		t.Errorf("found: %v", report)
	}
}

func TestThisMachineRunsPods(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	if err := Check(context.Background()).Err(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

func TestACheckThatIsGivenUpBlamesNoSetting(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	report := Check(ctx)
	if len(report) != 1 || report.Err() == nil || !strings.Contains(report.Err().Error(), "cut short (context canceled)") {
		t.Errorf("found: %v", report)
	}
}
