// Package mongocode names the MongoDB error codes that Drover acts on, so that
// no other package compares numbers or reads messages.
package mongocode

import (
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// The codes, by MongoDB's own names.
const (
	HostUnreachable                 = 6
	HostNotFound                    = 7
	UserNotFound                    = 11
	Unauthorized                    = 13
	AuthenticationFailed            = 18
	LockTimeout                     = 24
	NamespaceNotFound               = 26
	IndexNotFound                   = 27
	RoleNotFound                    = 31
	CursorNotFound                  = 43
	NamespaceExists                 = 48
	MaxTimeMSExpired                = 50
	CommandNotFound                 = 59
	WriteConcernFailed              = 64
	CannotCreateIndex               = 67
	InvalidOptions                  = 72
	IndexOptionsConflict            = 85
	IndexKeySpecsConflict           = 86
	NetworkTimeout                  = 89
	ShutdownInProgress              = 91
	WriteConflict                   = 112
	DocumentValidationFailure       = 121
	ExceededMemoryLimit             = 146
	PrimarySteppedDown              = 189
	ExceededTimeLimit               = 262
	CursorKilled                    = 237
	SnapshotTooOld                  = 239
	SnapshotUnavailable             = 246
	NoSuchTransaction               = 251
	TransactionCommitted            = 256
	ChangeStreamFatalError          = 280
	ChangeStreamHistoryLost         = 286
	ExceededMemoryLimitNoDisk       = 292
	BSONObjectTooLarge              = 10334
	LegacyNotPrimary                = 10058
	NotWritablePrimary              = 10107
	DuplicateKey                    = 11000
	InterruptedAtShutdown           = 11600
	Interrupted                     = 11601
	InterruptedDueToReplStateChange = 11602
	NotPrimaryNoSecondaryOk         = 13435
	NotPrimaryOrSecondary           = 13436
	RoleExists                      = 51002
	UserExists                      = 51003
)

// The error labels.
const (
	LabelTransientTransaction  = "TransientTransactionError"
	LabelUnknownCommitResult   = "UnknownTransactionCommitResult"
	LabelRetryableWrite        = "RetryableWriteError"
	LabelNoWritesPerformed     = "NoWritesPerformed"
	LabelResumableChangeStream = "ResumableChangeStreamError"
	LabelNetwork               = "NetworkError"
)

// notPrimary are the codes of a member that cannot serve writes now.
var notPrimary = []int{
	NotWritablePrimary, LegacyNotPrimary, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary,
	PrimarySteppedDown, InterruptedDueToReplStateChange, InterruptedAtShutdown, ShutdownInProgress,
}

// coder is what every server error of the driver implements.
type coder interface {
	error
	ErrorCodes() []int
}

// Codes gives every code in err, those of single writes and of the write concern
// included; empty when err carries none, as a network error does.
func Codes(err error) []int {
	if c, ok := errors.AsType[coder](err); ok {
		return slices.DeleteFunc(c.ErrorCodes(), func(n int) bool { return n == 0 })
	}
	return nil
}

// Has reports whether err carries one of codes.
func Has(err error, codes ...int) bool {
	return slices.ContainsFunc(Codes(err), func(c int) bool { return slices.Contains(codes, c) })
}

// HasLabel reports whether err carries the given error label.
func HasLabel(err error, label string) bool {
	l, ok := errors.AsType[mongo.LabeledError](err)
	return ok && l.HasErrorLabel(label)
}

// IsSpent reports that the server gave an operation up for the time or the memory
// it took.
func IsSpent(err error) bool {
	return Has(err, MaxTimeMSExpired, ExceededTimeLimit, ExceededMemoryLimit, ExceededMemoryLimitNoDisk)
}

// IsUnauthorized reports that the user lacks the privilege: what a fence answers.
func IsUnauthorized(err error) bool { return Has(err, Unauthorized) }

// IsAuthenticationFailed reports wrong credentials.
func IsAuthenticationFailed(err error) bool { return Has(err, AuthenticationFailed, UserNotFound) }

// IsDuplicateKey reports a broken unique index, _id's own included.
func IsDuplicateKey(err error) bool { return mongo.IsDuplicateKeyError(err) }

// IsTransientTransaction reports that the whole transaction may be run again.
func IsTransientTransaction(err error) bool { return HasLabel(err, LabelTransientTransaction) }

// IsUnknownCommit reports that a commit may or may not have happened.
func IsUnknownCommit(err error) bool { return HasLabel(err, LabelUnknownCommitResult) }

// IsNotPrimary reports that the member cannot serve writes now: it stepped
// down, recovers or shuts down.
func IsNotPrimary(err error) bool { return Has(err, notPrimary...) }

// IsRoleNotFound reports that a role does not exist, or no longer.
func IsRoleNotFound(err error) bool { return Has(err, RoleNotFound) }

// IsRoleExists reports that createRole met a role of that name.
func IsRoleExists(err error) bool { return Has(err, RoleExists) }

// IsUserNotFound reports that a user does not exist.
func IsUserNotFound(err error) bool { return Has(err, UserNotFound) }

// IsUserExists reports that createUser met a user of that name.
func IsUserExists(err error) bool { return Has(err, UserExists) }

// IsNamespaceExists reports that create met a collection of that name with
// other options.
func IsNamespaceExists(err error) bool { return Has(err, NamespaceExists) }

// IsNamespaceNotFound reports that a collection or database does not exist.
func IsNamespaceNotFound(err error) bool { return Has(err, NamespaceNotFound) }

// IsIndexNotFound reports that there is no index of that name or key.
func IsIndexNotFound(err error) bool { return Has(err, IndexNotFound) }

// IsIndexConflict reports that an index of that name or key exists with another
// definition.
func IsIndexConflict(err error) bool { return Has(err, IndexOptionsConflict, IndexKeySpecsConflict) }

// IsNoSuchTransaction reports that the transaction was aborted, or never was.
func IsNoSuchTransaction(err error) bool { return Has(err, NoSuchTransaction) }

// IsHistoryLost reports that a change stream can never be resumed: what was
// captured has a hole, so the copy must start again.
func IsHistoryLost(err error) bool { return Has(err, ChangeStreamHistoryLost, ChangeStreamFatalError) }

// IsCursorNotFound reports that the server no longer has the cursor.
func IsCursorNotFound(err error) bool { return Has(err, CursorNotFound, CursorKilled) }

// IsWriteConflict reports that another transaction holds the document.
func IsWriteConflict(err error) bool { return Has(err, WriteConflict) }

// IsSnapshotGone reports that a snapshot can no longer be read.
func IsSnapshotGone(err error) bool { return Has(err, SnapshotTooOld, SnapshotUnavailable) }

// IsCommandNotFound reports that the server does not know the command.
func IsCommandNotFound(err error) bool { return Has(err, CommandNotFound) }

// IsTimeout reports that time ran out, at the client or at the server.
func IsTimeout(err error) bool { return mongo.IsTimeout(err) || Has(err, MaxTimeMSExpired) }

// IsNetwork reports that the server could not be asked, or that its answer was
// lost: a write may have happened.
func IsNetwork(err error) bool {
	return mongo.IsNetworkError(err) || mongo.IsTimeout(err) || isSelection(err) ||
		Has(err, HostUnreachable, HostNotFound, NetworkTimeout)
}

// clearedPool is the error of an operation that found no connection because
// another one's network error had them all closed.
type clearedPool interface {
	error
	driver.RetryablePoolError
}

// isSelection reports that no suitable member was found in time, or that its
// connections were given up because of another operation's network error.
func isSelection(err error) bool {
	_, ok := errors.AsType[topology.ServerSelectionError](err)
	_, cleared := errors.AsType[clearedPool](err)
	return ok || cleared || errors.Is(err, mongo.ErrClientDisconnected)
}

// IsRetryable reports that the same idempotent work may be tried again soon: no
// primary for the moment, no network, a conflict, or the server says so itself.
func IsRetryable(err error) bool {
	return IsNetwork(err) || IsNotPrimary(err) || IsTransientTransaction(err) || IsUnknownCommit(err) ||
		HasLabel(err, LabelRetryableWrite) || HasLabel(err, LabelResumableChangeStream) ||
		Has(err, WriteConflict, LockTimeout, ExceededTimeLimit, WriteConcernFailed)
}

// Duplicate describes one broken unique index.
type Duplicate struct {
	Index   int      // of the write in its batch
	Pattern bson.Raw // key pattern of the index, {_id: 1} for the primary key; nil where the server does not say
	Value   bson.Raw // the values that are held already; nil where the server does not say
}

// OnID reports whether the broken index is _id's own.
func (d Duplicate) OnID() bool {
	e, err := d.Pattern.Elements()
	return err == nil && len(e) == 1 && e[0].Key() == "_id"
}

// Duplicates gives every broken unique index that err tells of.
func Duplicates(err error) []Duplicate {
	var found []Duplicate
	add := func(index, code int, raw bson.Raw) {
		if code != DuplicateKey {
			return
		}
		d := Duplicate{Index: index}
		if p, ok := raw.Lookup("keyPattern").DocumentOK(); ok {
			d.Pattern = p
		}
		if v, ok := raw.Lookup("keyValue").DocumentOK(); ok {
			d.Value = v
		}
		found = append(found, d)
	}
	if e, ok := errors.AsType[mongo.WriteException](err); ok {
		for _, w := range e.WriteErrors {
			add(w.Index, w.Code, w.Raw)
		}
	}
	if e, ok := errors.AsType[mongo.BulkWriteException](err); ok {
		for _, w := range e.WriteErrors {
			add(w.Index, w.Code, w.Raw)
		}
	}
	if e, ok := errors.AsType[mongo.ClientBulkWriteException](err); ok {
		for i, w := range e.WriteErrors {
			add(i, w.Code, w.Raw)
		}
	}
	if e, ok := errors.AsType[mongo.CommandError](err); ok {
		add(0, int(e.Code), e.Raw)
	}
	return found
}
