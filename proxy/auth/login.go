package auth

import (
	"errors"
	"fmt"

	"github.com/xdg-go/scram"
)

// Mechanism is the one SASL mechanism that is offered.
const Mechanism = "SCRAM-SHA-256"

// errUnknown is a name that the book does not have.
var errUnknown = errors.New("no such user")

// Login is one client's conversation.
type Login struct {
	conversation *scram.ServerConversation
	steps        int
	skipEmpty    bool // the client wants no empty last exchange
	proved       bool
}

// Begin starts a login.
func (b *Book) Begin(skipEmpty bool) (*Login, error) {
	server, err := scram.SHA256.NewServer(func(name string) (scram.StoredCredentials, error) {
		u := b.Find(name)
		if u == nil {
			return scram.StoredCredentials{}, errUnknown
		}
		return scram.StoredCredentials{
			KeyFactors: scram.KeyFactors{Salt: string(u.Credentials.Salt), Iters: u.Credentials.Iterations},
			StoredKey:  u.Credentials.StoredKey, ServerKey: u.Credentials.ServerKey,
		}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("scram: %w", err)
	}
	return &Login{conversation: server.NewConversation(), skipEmpty: skipEmpty}, nil
}

// Step takes the client's payload and gives the answer; done says that the
// conversation is over and the client has proved who it is.
func (l *Login) Step(payload []byte) (answer []byte, done bool, err error) {
	if l.proved {
		// The empty exchange that old drivers end with.
		if len(payload) != 0 {
			return nil, false, errors.New("payload after the end of the conversation")
		}
		return nil, true, nil
	}
	if l.steps++; l.steps > 2 {
		return nil, false, errors.New("conversation is too long")
	}
	out, err := l.conversation.Step(string(payload))
	if err != nil {
		return nil, false, fmt.Errorf("scram: %w", err)
	}
	if id := l.conversation.AuthzID(); id != "" && id != l.conversation.Username() {
		return nil, false, errors.New("the client wants to be somebody else")
	}
	if !l.conversation.Done() {
		return []byte(out), false, nil
	}
	if !l.conversation.Valid() {
		return nil, false, errors.New("scram: the client did not prove that it knows the password")
	}
	l.proved = true
	return []byte(out), l.skipEmpty, nil
}

// Name is the user that the client says it is.
func (l *Login) Name() string { return l.conversation.Username() }

// Unknown reports whether a step failed because the book has no such user.
func Unknown(err error) bool { return errors.Is(err, errUnknown) }
