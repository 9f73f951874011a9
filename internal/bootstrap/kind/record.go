// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kind

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// record is what this machine knows of a cluster that was made here. Another
// machine of the same engine, or one whose state folder is gone, does without.
type record struct {
	Engine string `json:"engine"`
	// Complete says that the cluster came up once. One that did not holds nothing.
	Complete bool `json:"complete"`
}

// folder is where a cluster's record lies.
type folder struct{ dir, name string }

func (f folder) path(suffix string) string { return filepath.Join(f.dir, f.name+suffix) }

const lockInterval = 100 * time.Millisecond

// lock takes the lock of making and deleting the cluster, and waits for it;
// waiting is called once where somebody else has it. A process that dies loses it.
func (f folder) lock(ctx context.Context, waiting func()) (unlock func() error, err error) {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of kind clusters: %w", err)
	}
	l := flock.New(f.path(".lock"), flock.SetPermissions(0o600))
	taken, err := l.TryLock()
	if err == nil && !taken {
		waiting()
		_, err = l.TryLockContext(ctx, lockInterval)
	}
	if err != nil {
		return nil, fmt.Errorf("taking the lock of the cluster %q: %w", f.name, errors.Join(err, l.Close()))
	}
	return l.Unlock, nil
}

// read answers nil where there is no record.
func (f folder) read() (*record, error) {
	content, err := os.ReadFile(f.path(".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of the cluster %q: %w", f.name, err)
	}
	found := &record{}
	if err := json.Unmarshal(content, found); err != nil {
		return nil, fmt.Errorf("the record %s cannot be read: %w", f.path(".json"), err)
	}
	return found, nil
}

// write replaces the record whole.
func (f folder) write(r record) error {
	content, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(f.path(".json.new"), content, 0o600)
	}
	if err == nil {
		err = os.Rename(f.path(".json.new"), f.path(".json"))
	}
	if err != nil {
		return fmt.Errorf("writing the record of the cluster %q: %w", f.name, err)
	}
	return nil
}

func (f folder) forget() error {
	if err := os.Remove(f.path(".json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the record of the cluster %q: %w", f.name, err)
	}
	return nil
}
