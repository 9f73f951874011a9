// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Phase says how far a move has come. Each is written before the work that its
// name tells begins, but for created, verified, resumed, proven and done, which
// say that it has ended.
type Phase string

// The phases, in their order.
const (
	PhasePlanned   Phase = "planned"
	PhaseBackedUp  Phase = "backed-up"
	PhaseFenced    Phase = "source-fenced"
	PhaseCreating  Phase = "creating"
	PhaseCreated   Phase = "created"
	PhaseVerified  Phase = "verified"
	PhaseCommitted Phase = "committed"
	PhaseDeleting  Phase = "deleting-source"
	PhaseResumed   Phase = "resumed"
	PhaseProven    Phase = "proven"
	PhaseDone      Phase = "done"
	// PhaseRollingBack follows any phase before committed.
	PhaseRollingBack Phase = "rolling-back"
)

var phases = []Phase{PhaseRollingBack, PhasePlanned, PhaseBackedUp, PhaseFenced, PhaseCreating, PhaseCreated, PhaseVerified, PhaseCommitted, PhaseDeleting, PhaseResumed, PhaseProven, PhaseDone}

// before says whether p comes before other.
func (p Phase) before(other Phase) bool {
	return slices.Index(phases, p) < slices.Index(phases, other)
}

// Where the journals are: ConfigMaps in kube-system of both clusters. Labels show
// phase and counts: kubectl get configmaps -n kube-system -l
// terraform-provider-capi/pivot -L terraform-provider-capi/phase.
const (
	journalNamespace = metav1.NamespaceSystem
	journalPrefix    = "terraform-provider-capi-pivot-"
	journalField     = "journal.yaml"
	chunkField       = "objects.jsonl"
	labelPrefix      = "terraform-provider-capi/"
	journalLabel     = labelPrefix + "pivot"
	chunkLabel       = labelPrefix + "pivot-objects"
	// chunkBytes keeps a ConfigMap well below the 1 MiB of etcd's request limit
	// and of the API server's own.
	chunkBytes = 448 << 10
)

// errTakenOver says that another run has written the journal.
var errTakenOver = errors.New("another run has taken this pivot over; this one stops and changes nothing more")

// journal is what a second runner needs that has neither state nor memory.
type journal struct {
	ID string `json:"id"`
	// Run is the run that is at work, so that two are told apart.
	Run    string `json:"run"`
	Phase  Phase  `json:"phase"`
	Source string `json:"source"`
	Target string `json:"target"`
	Scope  Scope  `json:"scope"`
	// Planned, Fenced and Resumed are when the journal was begun, before the first
	// pause and after the last un-pausing.
	Planned metav1.MicroTime  `json:"planned"`
	Fenced  *metav1.MicroTime `json:"fenced,omitempty"`
	Resumed *metav1.MicroTime `json:"resumed,omitempty"`
	Backup  string            `json:"backup,omitempty"`
	// Copied says that the target may hold copies.
	Copied bool `json:"copied,omitempty"`

	Clusters []journalCluster `json:"clusters"`
	Classes  []journalClass   `json:"classes,omitempty"`
	Counts   map[string]int64 `json:"counts"`
	// Digest is over all objects, their contents and the owner graph.
	Digest      string   `json:"digest"`
	ProviderIDs []string `json:"providerIDs,omitempty"`
	Stayed      []Stayed `json:"stayed,omitempty"`
	// Unattended and Skipped are as in run; Silenced are the webhooks of the source
	// that are not asked until the move has ended.
	Unattended bool     `json:"unattended,omitempty"`
	Skipped    []string `json:"skipped,omitempty"`
	Silenced   []hook   `json:"silenced,omitempty"`
	// Chunks is the number of ConfigMaps that hold the entries.
	Chunks int `json:"chunks"`

	entries []entry
	// versions are the resource versions of the journal, by the UID of the cluster.
	versions map[string]string
}

// journalCluster is a Cluster that moves.
type journalCluster struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Paused says that its user had paused it: it stays so.
	Paused bool `json:"paused,omitempty"`
	// ControlPlane and Machines are how many it has. A side with fewer of the
	// control plane is never un-paused.
	ControlPlane int `json:"controlPlane"`
	Machines     int `json:"machines"`
	// Etcd is the control plane if it said that its etcd was well: no member without
	// a Machine and none missing. It must say so again.
	Etcd *ID `json:"etcd,omitempty"`
}

func (c journalCluster) key() client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: c.Name}
}

// journalClass is a ClusterClass that is copied.
type journalClass struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Paused    bool   `json:"paused,omitempty"`
	// Keep says that it stays on the source.
	Keep bool `json:"keep,omitempty"`
	// Existing says that the target had it before.
	Existing bool `json:"existing,omitempty"`
}

func (c journalClass) key() client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: c.Name}
}

// entry is one object that moves.
type entry struct {
	Group     string    `json:"group,omitempty"`
	Version   string    `json:"version"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Level     int       `json:"level"`
	Content   string    `json:"content"`
	// Keep and Existing are as in journalClass.
	Keep     bool `json:"keep,omitempty"`
	Existing bool `json:"existing,omitempty"`
}

func (e entry) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: e.Group, Version: e.Version, Kind: e.Kind}
}

func (e entry) id() ID { return ID{e.Group, e.Kind, e.Namespace, e.Name} }

func (j *journal) name() string { return journalPrefix + j.ID }

func (j *journal) clusterKeys() []client.ObjectKey {
	var keys []client.ObjectKey
	for _, c := range j.Clusters {
		keys = append(keys, c.key())
	}
	return keys
}

// header is the ConfigMap that shows the journal.
func (j *journal) header() (*corev1.ConfigMap, error) {
	content, err := yaml.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("writing the journal: %w", err)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: journalNamespace, Name: j.name(), Labels: map[string]string{
			journalLabel:             j.ID,
			labelPrefix + "phase":    string(j.Phase),
			labelPrefix + "clusters": strconv.Itoa(len(j.Clusters)),
			labelPrefix + "machines": strconv.FormatInt(j.Counts["Machine"], 10),
			labelPrefix + "objects":  strconv.Itoa(len(j.entries)),
		}},
		Data: map[string]string{journalField: string(content)},
	}, nil
}

func readHeader(config *corev1.ConfigMap, side *Side) (*journal, error) {
	j := &journal{}
	if err := yaml.UnmarshalStrict([]byte(config.Data[journalField]), j); err != nil {
		return nil, fmt.Errorf("reading the journal %s/%s of %s, which a newer version may have written: %w", config.Namespace, config.Name, side.Name, err)
	}
	j.versions = map[string]string{side.UID: config.ResourceVersion}
	return j, nil
}

// chunks are the ConfigMaps that list the objects, a line for each.
func (j *journal) chunks() ([]*corev1.ConfigMap, error) {
	var chunks []*corev1.ConfigMap
	var text bytes.Buffer
	cut := func() {
		chunks = append(chunks, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: journalNamespace, Name: fmt.Sprintf("%s-objects-%d", j.name(), len(chunks)), Labels: map[string]string{chunkLabel: j.ID}},
			Data:       map[string]string{chunkField: text.String()},
		})
		text.Reset()
	}
	for _, e := range j.entries {
		line, err := json.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("writing the journal: %w", err)
		}
		if text.Len()+len(line) > chunkBytes {
			cut()
		}
		text.Write(append(line, '\n'))
	}
	cut()
	return chunks, nil
}

// begin writes the journal's objects and then its header to both sides, the
// source first: a journal that is only on the target was never begun.
func (j *journal) begin(ctx context.Context, sides ...*Side) error {
	chunks, err := j.chunks()
	if err != nil {
		return err
	}
	j.Chunks, j.versions = len(chunks), map[string]string{}
	for _, side := range sides {
		for _, chunk := range chunks {
			if err := put(ctx, side, chunk); err != nil {
				return err
			}
		}
	}
	return j.save(ctx, j.Phase, sides...)
}

// rewriteChunks replaces the objects of a journal that has been begun.
func (j *journal) rewriteChunks(ctx context.Context, sides ...*Side) error {
	chunks, err := j.chunks()
	if err != nil {
		return err
	}
	j.Chunks = max(j.Chunks, len(chunks)) // one that is empty now stays, empty
	for _, side := range sides {
		for i := range j.Chunks {
			chunk := &corev1.ConfigMap{}
			if i < len(chunks) {
				chunk = chunks[i].DeepCopy()
			} else {
				chunk.Namespace, chunk.Name, chunk.Labels = journalNamespace, fmt.Sprintf("%s-objects-%d", j.name(), i), map[string]string{chunkLabel: j.ID}
			}
			if err := put(ctx, side, chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

func put(ctx context.Context, side *Side, config *corev1.ConfigMap) error {
	err := side.write(ctx, func() error {
		made := config.DeepCopy()
		err := side.Client.Create(ctx, made)
		if apierrors.IsAlreadyExists(err) {
			err = side.Client.Update(ctx, made)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the journal %s to %s: %w", config.Name, side.Name, err)
	}
	return nil
}

// save writes the phase, to the source first: what it says there holds. The error
// is [errTakenOver] when another run wrote meanwhile.
func (j *journal) save(ctx context.Context, phase Phase, sides ...*Side) error {
	j.Phase = phase
	for _, side := range sides {
		if err := side.write(ctx, func() error { return j.put(ctx, side) }); err != nil {
			return fmt.Errorf("writing the phase %s into the journal of %s: %w", phase, side.Name, err)
		}
	}
	return nil
}

func (j *journal) put(ctx context.Context, side *Side) error {
	header, err := j.header()
	if err != nil {
		return err
	}
	header.ResourceVersion = j.versions[side.UID]
	if header.ResourceVersion == "" {
		err = side.Client.Create(ctx, header)
	} else {
		err = side.Client.Update(ctx, header)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return j.reread(ctx, side, err)
	}
	if err != nil {
		return err
	}
	j.versions[side.UID] = header.ResourceVersion
	return nil
}

// reread finds out whose write came between. It is this run's own when the answer
// to an earlier one was lost.
func (j *journal) reread(ctx context.Context, side *Side, cause error) error {
	found := &corev1.ConfigMap{}
	if err := side.Client.Get(ctx, client.ObjectKey{Namespace: journalNamespace, Name: j.name()}, found); apierrors.IsNotFound(err) {
		return errTakenOver
	} else if err != nil {
		return err
	}
	there, err := readHeader(found, side)
	if err != nil {
		return err
	}
	if there.Run != j.Run {
		return errTakenOver
	}
	j.versions[side.UID] = found.ResourceVersion
	if there.Phase == j.Phase {
		return nil
	}
	return retryable{cause}
}

// journals reads those of a side, without their objects.
func journals(ctx context.Context, side *Side) ([]*journal, error) {
	configs := &corev1.ConfigMapList{}
	err := side.read(ctx, func() error {
		return side.Client.List(ctx, configs, client.InNamespace(journalNamespace), client.HasLabels{journalLabel})
	})
	if err != nil {
		return nil, fmt.Errorf("listing the journals of %s: %w", side.Name, err)
	}
	var found []*journal
	for i := range configs.Items {
		j, err := readHeader(&configs.Items[i], side)
		if err != nil {
			return nil, err
		}
		found = append(found, j)
	}
	slices.SortFunc(found, func(a, b *journal) int { return a.Planned.Compare(b.Planned.Time) })
	return found, nil
}

// loadEntries reads the journal's objects from a side.
func (j *journal) loadEntries(ctx context.Context, side *Side) error {
	j.entries = nil
	for i := range j.Chunks {
		chunk := &corev1.ConfigMap{}
		name := fmt.Sprintf("%s-objects-%d", j.name(), i)
		err := side.read(ctx, func() error {
			return side.Client.Get(ctx, client.ObjectKey{Namespace: journalNamespace, Name: name}, chunk)
		})
		if apierrors.IsNotFound(err) && j.Phase == PhaseRollingBack {
			continue // the journal was being removed, which comes last of all
		}
		if err != nil {
			return fmt.Errorf("reading the journal's objects from %s: %w", side.Name, err)
		}
		lines := bufio.NewScanner(strings.NewReader(chunk.Data[chunkField]))
		lines.Buffer(nil, chunkBytes)
		for lines.Scan() {
			var e entry
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return fmt.Errorf("reading the journal's objects from %s: %w", side.Name, err)
			}
			j.entries = append(j.entries, e)
		}
		if err := lines.Err(); err != nil {
			return fmt.Errorf("reading the journal's objects from %s: %w", side.Name, err)
		}
	}
	return nil
}

// remove deletes the journal from a side: its header last, so that one that was
// cut short is found again.
func (j *journal) remove(ctx context.Context, side *Side) error {
	for i := j.Chunks - 1; i >= -1; i-- {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: journalNamespace, Name: j.name()}}
		if i >= 0 {
			config.Name = fmt.Sprintf("%s-objects-%d", j.name(), i)
		}
		err := side.write(ctx, func() error { return client.IgnoreNotFound(side.Client.Delete(ctx, config)) })
		if err != nil {
			return fmt.Errorf("removing the journal %s from %s: %w", config.Name, side.Name, err)
		}
	}
	return nil
}

func now() metav1.MicroTime { return metav1.NewMicroTime(time.Now()) }
