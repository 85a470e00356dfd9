package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"sync"
)

var validID = regexp.MustCompile(`^(vol|snap)-[0-9a-f]{16}$`)

// record describes a volume or a snapshot; it is written after the directory and removed before it.
type record struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	Source string `json:"source"` // the volume of a snapshot; the snapshot or volume that was copied
	Made   int64  `json:"made"`   // seconds
}

type store struct {
	root string

	mutex sync.Mutex
	locks map[string]*sync.Mutex
}

func openStore(root string) (*store, error) {
	return &store{root: root, locks: map[string]*sync.Mutex{}}, os.MkdirAll(root, 0o755)
}

// lock waits until no other call changes the volume or snapshot.
func (s *store) lock(id string) func() {
	s.mutex.Lock()
	held, known := s.locks[id]
	if !known {
		held = &sync.Mutex{}
		s.locks[id] = held
	}
	s.mutex.Unlock()
	held.Lock()
	return held.Unlock
}

// newID derives an id from a name, so that a repeated call finds what the first one has made.
func newID(kind, name string) string {
	return fmt.Sprintf("%s-%x", kind, sha256.Sum256([]byte(name)))[:len(kind)+17]
}

func (s *store) directory(id string) string { return filepath.Join(s.root, id) }

func (s *store) recordPath(id string) string { return filepath.Join(s.root, id+".json") }

// find returns nil if there is no such volume or snapshot.
func (s *store) find(id string) (*record, error) {
	if !validID.MatchString(id) {
		return nil, nil
	}
	text, err := os.ReadFile(s.recordPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := &record{}
	return found, json.Unmarshal(text, found)
}

func (s *store) save(what *record) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	fresh, err := os.CreateTemp(s.root, ".record-*")
	if err != nil {
		return err
	}
	defer os.Remove(fresh.Name())
	if _, err = fresh.Write(text); err == nil {
		err = fresh.Sync()
	}
	if err = errors.Join(err, fresh.Close()); err != nil {
		return err
	}
	return os.Rename(fresh.Name(), s.recordPath(what.ID))
}

// create makes the directory, empty or as a copy, and then its record.
func (s *store) create(what *record, origin string) error {
	half := s.directory(what.ID) + ".half"
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	if origin == "" {
		if err := os.Mkdir(half, 0o755); err != nil {
			return err
		}
	} else if output, err := exec.Command("cp", "-aT", "--sparse=always", s.directory(origin), half).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, strings.TrimSpace(string(output)))
	}
	if err := os.RemoveAll(s.directory(what.ID)); err != nil { // of a call that was interrupted before its record
		return err
	}
	if err := os.Rename(half, s.directory(what.ID)); err != nil {
		return err
	}
	return s.save(what)
}

func (s *store) remove(id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	if err := os.Remove(s.recordPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(s.directory(id))
}

// list returns all records of a kind after an id, in the order of their ids.
func (s *store) list(kind, after string) ([]*record, error) {
	paths, err := filepath.Glob(filepath.Join(s.root, kind+"-*.json"))
	if err != nil {
		return nil, err
	}
	sort.Strings(paths)
	found := []*record{}
	for _, path := range paths {
		id := strings.TrimSuffix(filepath.Base(path), ".json")
		if id <= after {
			continue
		}
		one, err := s.find(id)
		if err != nil {
			return nil, err
		}
		if one != nil {
			found = append(found, one)
		}
	}
	return found, nil
}
