// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"filippo.io/age"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Backup says where the objects are written before they are moved, and for whom.
type Backup struct {
	// Dir is a folder on the machine that runs the move; it is made if need be.
	Dir string
	// Recipients are age's public keys (age1...). Passphrase is for where there are
	// none: the two cannot be combined.
	Recipients []string
	Passphrase string
}

// backupManifest is the first file of the archive.
const backupManifest = "manifest.json"

// manifest lists the archive's objects, so that one that is missing or changed is
// noticed.
type manifest struct {
	Pivot  string    `json:"pivot"`
	Source string    `json:"source"`
	Made   time.Time `json:"made"`
	Digest string    `json:"digest"`
	// Files are the SHA-256 sums of the files, by their names.
	Files map[string]string `json:"files"`
}

// recipients answers whom the backup is encrypted for.
func (b Backup) recipients() ([]age.Recipient, error) {
	switch {
	case len(b.Recipients) > 0 && b.Passphrase != "":
		return nil, errors.New("a backup is encrypted either for recipients or with a passphrase")
	case len(b.Recipients) == 0 && b.Passphrase == "":
		return nil, errors.New("a backup holds the keys of all clusters: give the recipients or the passphrase to encrypt it with")
	case b.Passphrase != "":
		recipient, err := age.NewScryptRecipient(b.Passphrase)
		if err != nil {
			return nil, errors.New("the passphrase of the backup cannot be used")
		}
		return []age.Recipient{recipient}, nil
	}
	var all []age.Recipient
	for i, text := range b.Recipients {
		recipient, err := age.ParseX25519Recipient(text)
		if err != nil {
			// Not quoted: it may be a secret key by mistake.
			return nil, fmt.Errorf("recipient %d of the backup is not a public key of age (age1...)", i+1)
		}
		all = append(all, recipient)
	}
	return all, nil
}

// Check says whether a backup can be encrypted with what was given.
func (b Backup) Check() error {
	_, err := b.recipients()
	return err
}

// fileOf names an object's file: with its group, two kinds of the same name do not
// share one.
func fileOf(id ID) string {
	return path.Join("objects", cmp.Or(id.Group, "core"), id.Kind, cmp.Or(id.Namespace, "_global"), id.Name+".json")
}

// write makes the backup of the nodes and answers its path.
func (b Backup) write(pivot, source, digest string, nodes []*node) (string, error) {
	recipients, err := b.recipients()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return "", fmt.Errorf("making the folder of the backup: %w", err)
	}
	made := time.Now().UTC()
	name := filepath.Join(b.Dir, fmt.Sprintf("pivot-%s-%s.tar.age", made.Format("20060102T150405Z"), pivot))
	// A file of its own until it is complete: what has the name can be relied upon.
	file, err := os.CreateTemp(b.Dir, ".pivot-*")
	if err != nil {
		return "", fmt.Errorf("making the backup: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	err = encrypt(file, recipients, manifest{Pivot: pivot, Source: source, Made: made, Digest: digest, Files: map[string]string{}}, nodes)
	if err == nil {
		err = errors.Join(file.Sync(), file.Close())
	}
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		return "", fmt.Errorf("writing the backup %s: %w", name, err)
	}
	return name, nil
}

func encrypt(file io.Writer, recipients []age.Recipient, m manifest, nodes []*node) error {
	contents := make(map[string][]byte, len(nodes))
	var order []string
	for _, n := range nodes {
		raw, err := n.object.MarshalJSON()
		if err != nil {
			return err
		}
		name, sum := fileOf(n.ID), sha256.Sum256(raw)
		contents[name], m.Files[name] = raw, hex.EncodeToString(sum[:])
		order = append(order, name)
	}
	head, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	encrypted, err := age.Encrypt(file, recipients...)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(encrypted)
	contents[backupManifest] = head
	for _, name := range append([]string{backupManifest}, order...) {
		header := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(contents[name])), ModTime: m.Made}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(contents[name]); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), encrypted.Close())
}

// ReadBackup reads a backup and checks that it is complete and unchanged. The
// objects come in the order in which they can be created again.
func ReadBackup(file io.Reader, identities ...age.Identity) ([]*unstructured.Unstructured, error) {
	decrypted, err := age.Decrypt(file, identities...)
	if err != nil {
		return nil, fmt.Errorf("decrypting the backup: %w", err)
	}
	archive := tar.NewReader(decrypted)
	var m manifest
	var objects []*unstructured.Unstructured
	for number := 0; ; number++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading the backup: %w", err)
		}
		raw, err := io.ReadAll(archive)
		if err != nil {
			return nil, fmt.Errorf("reading %s of the backup: %w", header.Name, err)
		}
		if number == 0 {
			if err := json.Unmarshal(raw, &m); err != nil || header.Name != backupManifest {
				return nil, errors.New("this is no backup of a pivot: it does not begin with a manifest")
			}
			continue
		}
		if sum := sha256.Sum256(raw); m.Files[header.Name] != hex.EncodeToString(sum[:]) {
			return nil, fmt.Errorf("%s of the backup is not what the manifest lists", header.Name)
		}
		delete(m.Files, header.Name)
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("reading %s of the backup: %w", header.Name, err)
		}
		objects = append(objects, o)
	}
	if len(m.Files) > 0 {
		return nil, fmt.Errorf("the backup lacks %d of its files", len(m.Files))
	}
	return objects, nil
}
