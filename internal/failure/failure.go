// Package failure says what may be done about an error. It knows nothing of Temporal.
package failure

import (
	"errors"
	"fmt"
)

// Kind decides who acts next.
type Kind uint8

// The kinds. The zero value is the one a retry policy may act on.
const (
	Transient Kind = iota // the same call may succeed later
	Invalid               // the request can never succeed as it stands
	Lost                  // a newer owner holds the chunk: stop and touch nothing
	Mismatch              // source and target differ: an operator decides
)

// String names the kind as it is shown in a workflow's history.
func (k Kind) String() string {
	switch k {
	case Transient:
		return "transient"
	case Invalid:
		return "invalid"
	case Lost:
		return "lost"
	case Mismatch:
		return "mismatch"
	default:
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
}

// Retryable reports whether a retry policy may try again.
func (k Kind) Retryable() bool { return k == Transient }

// Error carries a stable code for programs and a hint for operators.
type Error struct {
	Kind Kind
	Code string // "area.reason", never renamed once released
	Hint string // what an operator should do, may be empty
	err  error
}

// New formats like [fmt.Errorf], so %w keeps the cause reachable.
func New(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, err: fmt.Errorf(format, args...)}
}

// WithHint adds operator advice to e and returns it.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

func (e *Error) Error() string { return e.Code + ": " + e.err.Error() }

// Unwrap gives the cause to [errors.Is] and [errors.AsType].
func (e *Error) Unwrap() error { return e.err }

// Is reports whether err carries a failure of kind k. An error without one is
// [Transient]: nothing is known against trying again.
func Is(err error, k Kind) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err != nil && k == Transient
	}
	return e.Kind == k
}

// HasCode reports whether err carries a failure with the given code.
func HasCode(err error, code string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}
