// Package auth knows who may do what through a proxy: users with SCRAM-SHA-256
// credentials and grants per logical database and action. It keeps what
// verifies a password, never a password, and none of it is ever printed.
package auth

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdg-go/scram"

	"drover/internal/failure"
)

// Action is what a grant allows on a logical database.
type Action string

// The actions. None of them includes another.
const (
	Read  Action = "read"  // look at documents and catalog
	Write Action = "write" // insert, change and delete documents
	DDL   Action = "ddl"   // make, change and drop collections and indexes
	Admin Action = "admin" // look at the proxy itself
)

// Actions lists all of them.
func Actions() []Action { return []Action{Read, Write, DDL, Admin} }

// AllDatabases is the database of a grant that holds for every one.
const AllDatabases = "*"

// Grant allows actions on one logical database.
type Grant struct {
	Database string   `json:"database"`
	Actions  []Action `json:"actions"`
}

// User is one who may log in.
type User struct {
	Name        string      `json:"name"`
	Credentials Credentials `json:"credentials"`
	Grants      []Grant     `json:"grants"`
}

// May reports whether the user's grants allow an action on a database.
func (u *User) May(a Action, database string) bool {
	for _, g := range u.Grants {
		if (g.Database == database || g.Database == AllDatabases) && slices.Contains(g.Actions, a) {
			return true
		}
	}
	return false
}

// Knows reports whether the user may do anything at all on a database.
func (u *User) Knows(database string) bool {
	for _, g := range u.Grants {
		if g.Database == database || g.Database == AllDatabases {
			return true
		}
	}
	return false
}

// LogValue keeps credentials out of logs.
func (u *User) LogValue() slog.Value { return slog.StringValue(u.Name) }

// Credentials is what SCRAM-SHA-256 keeps of a password.
type Credentials struct {
	Salt       []byte `json:"salt"`
	Iterations int    `json:"iterations"`
	StoredKey  []byte `json:"stored_key"`
	ServerKey  []byte `json:"server_key"`
}

// Format keeps credentials out of whatever prints them.
func (Credentials) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("(hidden)")) }

// LogValue keeps credentials out of logs.
func (Credentials) LogValue() slog.Value { return slog.StringValue("(hidden)") }

const (
	// iterations is MongoDB's own default for SCRAM-SHA-256.
	iterations = 15_000
	// saltLength is MongoDB's.
	saltLength = 28
	// leastPassword is the shortest password that is taken.
	leastPassword = 8
	// longestName is the longest name of a user.
	longestName = 128
)

// Derive makes credentials of a password.
//
// Refusals: "user.password".
func Derive(password string) (Credentials, error) {
	if len(password) < leastPassword {
		return Credentials{}, failure.New(failure.Invalid, "user.password", "the password has %d bytes", len(password)).
			WithHint("give at least %d", leastPassword)
	}
	client, err := scram.SHA256.NewClient("user", password, "")
	if err != nil {
		return Credentials{}, failure.New(failure.Invalid, "user.password", "the password cannot be used").
			WithHint("it has characters that SASLprep forbids")
	}
	salt := make([]byte, saltLength)
	_, _ = rand.Read(salt) // never fails
	stored, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: string(salt), Iters: iterations})
	if err != nil {
		return Credentials{}, failure.New(failure.Invalid, "user.password", "the password cannot be used: %w", err)
	}
	return Credentials{Salt: salt, Iterations: iterations, StoredKey: stored.StoredKey, ServerKey: stored.ServerKey}, nil
}

// CheckName refuses what cannot be the name of a user.
//
// Refusals: "user.name".
func CheckName(name string) error {
	if name == "" || len(name) > longestName {
		return failure.New(failure.Invalid, "user.name", "a user's name has %d bytes", len(name)).WithHint("give 1 to %d", longestName)
	}
	return nil
}

// Directory gives every user.
type Directory interface {
	Users(ctx context.Context) ([]User, error)
}

// Book is the users that a proxy knows. It may be stale: what counts is that it
// follows the directory.
type Book struct {
	users atomic.Pointer[map[string]*User]

	mu   sync.Mutex
	read time.Time // when the directory was last asked
}

// NewBook makes an empty book: nobody can log in.
func NewBook() *Book {
	b := &Book{}
	b.users.Store(&map[string]*User{})
	return b
}

// Set replaces what the book says.
func (b *Book) Set(all []User) {
	m := make(map[string]*User, len(all))
	for i := range all {
		m[all[i].Name] = &all[i]
	}
	b.users.Store(&m)
}

// Find gives a user as it is now, nil when there is none.
func (b *Book) Find(name string) *User { return (*b.users.Load())[name] }

// All gives every user, by name.
func (b *Book) All() []User {
	var out []User
	for _, u := range *b.users.Load() {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(x, y User) int { return compare(x.Name, y.Name) })
	return out
}

// compare orders names.
func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// Refresh reads the directory, unless that was done less than least ago.
func (b *Book) Refresh(ctx context.Context, d Directory, least time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.read) < least {
		return nil
	}
	b.read = time.Now()
	all, err := d.Users(ctx)
	if err != nil {
		return fmt.Errorf("read users: %w", err)
	}
	b.Set(all)
	return nil
}
