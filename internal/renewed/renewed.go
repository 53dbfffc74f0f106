// Package renewed reads files that somebody renews while a process runs: certificates, keys and
// authorities. It looks at their contents: whoever renames, copies with its time, or swaps the link that a
// name goes through (as secrets that are mounted have it) changes no more than that.
package renewed

import (
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
)

// Sum tells the contents of files from others.
type Sum [sha256.Size]byte

// Read gives the contents of files, and what they come to together.
func Read(paths ...string) (contents [][]byte, sum Sum, err error) {
	all := sha256.New()
	for _, path := range paths {
		text, err := os.ReadFile(path) //nolint:gosec // the operator names it
		if err != nil {
			return nil, sum, err
		}
		contents = append(contents, text)
		_, _ = fmt.Fprintf(all, "%d ", len(text))
		_, _ = all.Write(text) // a hash never fails
	}
	return contents, Sum(all.Sum(nil)), nil
}

// Kept is what was made of some files, and is made anew when they change. A broken
// renewal, and one that is half done, leave the last good one in force.
type Kept[T any] struct {
	mu    sync.Mutex
	of    Sum
	value *T
}

// Get gives what make makes of the files as they are now.
func (k *Kept[T]) Get(make func(contents [][]byte) (*T, error), paths ...string) (*T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	contents, sum, err := Read(paths...)
	if err == nil && k.value != nil && sum == k.of {
		return k.value, nil
	}
	var v *T
	if err == nil {
		v, err = make(contents)
	}
	switch {
	case err == nil:
		k.value, k.of = v, sum
	case k.value == nil:
		return nil, err
	}
	return k.value, nil
}
