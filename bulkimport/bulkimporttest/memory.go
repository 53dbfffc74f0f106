// Package bulkimporttest has a fake of the durable state of slices and the suite
// that every implementation of it must pass.
package bulkimporttest

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"drover/bulkimport"
	"drover/chunk"
	"drover/internal/failure"
)

// Memory implements [bulkimport.Slices] in memory. The zero value is empty.
type Memory struct {
	mu  sync.Mutex
	all []bulkimport.Slice
}

// Plan implements [bulkimport.Slices].
func (m *Memory) Plan(_ context.Context, id chunk.MigrationID, collection string, plan []bulkimport.Slice) ([]bulkimport.Slice, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if got := m.of(id, collection); len(got) > 0 {
		return got, nil
	}
	m.all = append(m.all, plan...)
	m.sort()
	return m.of(id, collection), nil
}

// Stored implements [bulkimport.Slices].
func (m *Memory) Stored(_ context.Context, done bulkimport.Slice, rest *bulkimport.Slice) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, highest := -1, 0
	for n, s := range m.all {
		if s.Migration != done.Migration || s.Collection != done.Collection {
			continue
		}
		highest = max(highest, s.Number)
		if s.Number == done.Number {
			at = n
		}
	}
	if at < 0 || m.all[at].State != bulkimport.Planned {
		return failure.New(failure.Lost, "slice.transition", "%s is not planned", done)
	}
	done.State = bulkimport.Stored
	m.all[at] = done
	if rest != nil {
		left := *rest
		left.Number, left.State, left.Object = highest+1, bulkimport.Planned, bulkimport.Object{}
		m.all = append(m.all, left)
	}
	m.sort()
	return nil
}

// Loaded implements [bulkimport.Slices].
func (m *Memory) Loaded(_ context.Context, id chunk.MigrationID, collection string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.of(id, collection) {
		if s.State == bulkimport.Planned {
			return failure.New(failure.Invalid, "slice.transition", "%s is only planned", s)
		}
	}
	for n := range m.all {
		if m.all[n].Migration == id && m.all[n].Collection == collection {
			m.all[n].State = bulkimport.Loaded
		}
	}
	return nil
}

// List implements [bulkimport.Slices].
func (m *Memory) List(_ context.Context, id chunk.MigrationID) ([]bulkimport.Slice, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.all), func(s bulkimport.Slice) bool { return s.Migration != id }), nil
}

// Replan takes a slice back to planned, as an operator does who wants it read anew.
func (m *Memory) Replan(id chunk.MigrationID, collection string, number int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, s := range m.all {
		if s.Migration == id && s.Collection == collection && s.Number == number {
			m.all[n].State, m.all[n].Object = bulkimport.Planned, bulkimport.Object{}
		}
	}
}

// of gives a copy of a collection's slices.
func (m *Memory) of(id chunk.MigrationID, collection string) []bulkimport.Slice {
	return slices.DeleteFunc(slices.Clone(m.all), func(s bulkimport.Slice) bool { return s.Migration != id || s.Collection != collection })
}

// sort keeps the order that List promises.
func (m *Memory) sort() {
	slices.SortFunc(m.all, func(a, b bulkimport.Slice) int {
		return cmp.Or(cmp.Compare(a.Migration, b.Migration), cmp.Compare(a.Collection, b.Collection), cmp.Compare(a.Number, b.Number))
	})
}
