// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
)

func TestABackup(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	nodes := graphOf(side("a")).placed()
	backup := Backup{Dir: filepath.Join(t.TempDir(), "new"), Recipients: []string{identity.Recipient().String()}}
	written, err := backup.write("id", "uid", "digest", nodes)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(written)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("holds every object, owners first", func(t *testing.T) {
		objects, err := ReadBackup(bytes.NewReader(raw), identity)
		if err != nil {
			t.Fatal(err)
		}
		if len(objects) != len(nodes) || objects[0].GetKind() != "Cluster" {
			t.Errorf("%d objects, the first a %s; want %d, a Cluster first", len(objects), objects[0].GetKind(), len(nodes))
		}
	})
	t.Run("can be read by its owner alone", func(t *testing.T) {
		info, err := os.Stat(written)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		if bytes.Contains(raw, []byte("kmgt")) {
			t.Error("a name is in the clear")
		}
		stranger, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadBackup(bytes.NewReader(raw), stranger); err == nil {
			t.Error("a stranger reads it")
		}
	})
	t.Run("that was changed is refused", func(t *testing.T) {
		changed := bytes.Clone(raw)
		changed[len(changed)-20] ^= 1
		if _, err := ReadBackup(bytes.NewReader(changed), identity); err == nil {
			t.Error("a changed backup is read")
		}
	})
	t.Run("that was cut off is refused", func(t *testing.T) {
		if _, err := ReadBackup(bytes.NewReader(raw[:len(raw)-100]), identity); err == nil {
			t.Error("half a backup is read")
		}
	})
	t.Run("leaves nothing else in its folder", func(t *testing.T) {
		if files, err := os.ReadDir(backup.Dir); err != nil || len(files) != 1 {
			t.Errorf("%v, %v", files, err)
		}
	})
}

func TestABackupWithAPassphraseIsReadWithIt(t *testing.T) {
	written, err := Backup{Dir: t.TempDir(), Passphrase: "correct horse"}.write("id", "uid", "digest", graphOf(side("a")).placed())
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(written)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	identity, err := age.NewScryptIdentity("correct horse")
	if err != nil {
		t.Fatal(err)
	}
	if objects, err := ReadBackup(file, identity); err != nil || len(objects) != 3 {
		t.Errorf("%d objects, %v", len(objects), err)
	}
}

func TestABackupIsNeverInTheClear(t *testing.T) {
	tests := map[string]struct {
		backup Backup
		want   string
	}{
		"without a key it is refused":      {Backup{}, "give the recipients or the passphrase"},
		"with both kinds it is refused":    {Backup{Recipients: []string{"age1"}, Passphrase: "secret"}, "either"},
		"with a wrong key it is refused":   {Backup{Recipients: []string{"age1"}}, "not a public key"},
		"a secret key is not taken either": {Backup{Recipients: []string{"AGE-SECRET-KEY-1"}}, "not a public key"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := test.backup.Check(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}

func TestFilesOfKindsOfTheSameNameDiffer(t *testing.T) {
	one, other := ID{"a.example", "Pool", "n", "x"}, ID{"b.example", "Pool", "n", "x"}
	if fileOf(one) == fileOf(other) || fileOf(ID{Kind: "Secret", Name: "x"}) == fileOf(ID{Kind: "Secret", Namespace: "x", Name: "x"}) {
		t.Error("two objects share a file")
	}
}
