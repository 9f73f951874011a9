// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// state is all that the cluster keeps; it is written as one JSON file.
type state struct {
	Users    map[string]*user    `json:"users"`
	Groups   map[string]*group   `json:"groups"`
	Roles    map[string][]string `json:"roles"`
	ACL      []aclEntry          `json:"acl"`
	Pools    map[string]*pool    `json:"pools"`
	Storages map[string]*Storage `json:"storages"`
	Volumes  []*volume           `json:"volumes"`
	VMs      map[int]*vm         `json:"vms"`
	Tasks    []*task             `json:"tasks"`
	// AuthKey signs tickets.
	AuthKey []byte `json:"auth_key"`
	// CA and its key, the server's certificate and its key, PEM.
	CA, CAKey, Cert, Key []byte
	// NextPID numbers the worker processes.
	NextPID int `json:"next_pid"`
}

type user struct {
	Enable    bool              `json:"enable"`
	Expire    int64             `json:"expire,omitempty"`
	Comment   string            `json:"comment,omitempty"`
	Email     string            `json:"email,omitempty"`
	Firstname string            `json:"firstname,omitempty"`
	Lastname  string            `json:"lastname,omitempty"`
	Keys      string            `json:"keys,omitempty"`
	Groups    []string          `json:"groups,omitempty"`
	Tokens    map[string]*token `json:"tokens,omitempty"`
	// Password is a bcrypt hash.
	Password []byte `json:"password,omitempty"`
	// TOTP is the secret of the second factor, where there is one, and TOTPUsed
	// the step of the last code that was taken.
	TOTP     []byte `json:"totp,omitempty"`
	TOTPUsed int64  `json:"totp_used,omitempty"`
}

type token struct {
	Comment string `json:"comment,omitempty"`
	Expire  int64  `json:"expire,omitempty"`
	Privsep bool   `json:"privsep"`
	// Hash is the SHA-256 of the secret, which is shown once and kept nowhere.
	Hash []byte `json:"hash"`
}

type group struct {
	Comment string `json:"comment,omitempty"`
}

type pool struct {
	Comment  string   `json:"comment,omitempty"`
	VMs      []int    `json:"vms,omitempty"`
	Storages []string `json:"storages,omitempty"`
}

func newState(o Options) *state {
	st := &state{
		Users:    map[string]*user{"root@pam": {Enable: true, Email: "root@example.invalid"}},
		Groups:   map[string]*group{},
		Roles:    map[string][]string{},
		Pools:    map[string]*pool{},
		Storages: map[string]*Storage{},
		VMs:      map[int]*vm{},
		NextPID:  1000,
		AuthKey:  randomBytes(32),
	}
	for _, s := range o.Storages {
		st.Storages[s.ID] = &s
	}
	return st
}

const stateFile = "state.json"

// loadState reads the cluster kept in dir; a missing file is a new cluster.
func loadState(o Options) (*state, error) {
	if o.Dir == "" {
		return newState(o), nil
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of the Proxmox VE simulator: %w", err)
	}
	path := filepath.Join(o.Dir, stateFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newState(o), nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the state of the Proxmox VE simulator: %w", err)
	}
	st := newState(o)
	if err := json.Unmarshal(data, st); err != nil {
		return nil, fmt.Errorf("reading the state of the Proxmox VE simulator from %s: %w", path, err)
	}
	st.recover(o.Clock.Now())
	return st, nil
}

// recover brings a state that was cut off in the middle to what a node shows
// after a power failure: workers are gone without a word, locks remain of
// nothing, machines are off.
func (st *state) recover(now time.Time) {
	for _, t := range st.Tasks {
		if t.Exit == "" {
			t.Exit, t.End = "unexpected status", now.Unix()
		}
	}
	for id, m := range st.VMs {
		switch m.Config["lock"] {
		case "create", "clone":
			// The worker that would have finished or removed it is gone.
			st.forgetVM(id)
		default:
			delete(m.Config, "lock")
		}
	}
}

// save writes the state; the caller holds the simulator's lock.
func (s *Simulator) save() {
	if s.opts.Dir == "" {
		return
	}
	if err := s.state.write(filepath.Join(s.opts.Dir, stateFile)); err != nil {
		s.opts.Log("keeping the state: %v", err)
	}
}

func (st *state) write(path string) error {
	data, err := json.Marshal(st)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
