package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/proxy/upstream"
)

// code is one of MongoDB's error codes.
type code int32

// The codes that the proxy gives or acts on.
const (
	codeBadValue            code = 2
	codeHostUnreachable     code = 6
	codeFailedToParse       code = 9
	codeUnauthorized        code = 13
	codeTypeMismatch        code = 14
	codeOverflow            code = 15
	codeAuthFailed          code = 18
	codeNamespaceNotFound   code = 26
	codeCursorInUse         code = 12051
	codeCursorNotFound      code = 43
	codeMaxTimeMSExpired    code = 50
	codeCommandNotFound     code = 59
	codeShardKeyNotFound    code = 61
	codeImmutableField      code = 66
	codeInvalidOptions      code = 72
	codeInvalidNamespace    code = 73
	codeNotSupported        code = 115
	codeInvalidLength       code = 16
	codeIncompleteHistory   code = 217
	codeNoSuchTransaction   code = 251
	codeCommitted           code = 256
	codeExceededTimeLimit   code = 262
	codeNotInTransaction    code = 263
	codeOpQueryUnsupported  code = 352
	codeNotPrimaryOrRetired code = 10058
	codeNotWritablePrimary  code = 10107
	codeInterruptedShutdown code = 11600
	codeInterruptedStepDown code = 11602
	codeNotPrimaryNoSecond  code = 13435
	codeNotPrimaryOrSecond  code = 13436
	codeShutdown            code = 91
	codePrimarySteppedDown  code = 189
	codeUnknownStage        code = 40324
	codeDistinctTooBig      code = 17217
	codeMemoryLimit         code = 292
	codeProtocol            code = 17
	codeRateLimited         code = 462
	codeMechanism           code = 334
	codeNamespaceExists     code = 48
	codeIndexNotFound       code = 27
	codeCannotCreateIndex   code = 67
	codeConflicting         code = 117
	codeAlreadyInitialized  code = 23
)

// codeNames holds MongoDB's names of the codes that the proxy itself gives.
var codeNames = map[code]string{
	codeBadValue:           "BadValue",
	codeHostUnreachable:    "HostUnreachable",
	codeFailedToParse:      "FailedToParse",
	codeUnauthorized:       "Unauthorized",
	codeTypeMismatch:       "TypeMismatch",
	codeOverflow:           "Overflow",
	codeAuthFailed:         "AuthenticationFailed",
	codeNamespaceNotFound:  "NamespaceNotFound",
	codeCursorInUse:        "CursorInUse",
	codeCursorNotFound:     "CursorNotFound",
	codeMaxTimeMSExpired:   "MaxTimeMSExpired",
	codeCommandNotFound:    "CommandNotFound",
	codeShardKeyNotFound:   "ShardKeyNotFound",
	codeImmutableField:     "ImmutableField",
	codeInvalidOptions:     "InvalidOptions",
	codeInvalidNamespace:   "InvalidNamespace",
	codeNotSupported:       "CommandNotSupported",
	codeInvalidLength:      "InvalidLength",
	codeIncompleteHistory:  "IncompleteTransactionHistory",
	codeNoSuchTransaction:  "NoSuchTransaction",
	codeExceededTimeLimit:  "ExceededTimeLimit",
	codeNotInTransaction:   "OperationNotSupportedInTransaction",
	codeOpQueryUnsupported: "UnsupportedOpQueryCommand",
	codeUnknownStage:       "Location40324",
	codeNamespaceExists:    "NamespaceExists",
	codeIndexNotFound:      "IndexNotFound",
	codeCannotCreateIndex:  "CannotCreateIndex",
	codeConflicting:        "ConflictingOperationInProgress",
	codeAlreadyInitialized: "AlreadyInitialized",
	codeMemoryLimit:        "QueryExceededMemoryLimitNoDiskUseAllowed",
	codeProtocol:           "ProtocolError",
	codeRateLimited:        "IngressRequestRateLimitExceeded",
	codeMechanism:          "MechanismUnavailable",
}

// Labels that drivers act on.
const (
	labelRetryableWrite = "RetryableWriteError"
	labelNothingRan     = "NoWritesPerformed"
	labelTransient      = "TransientTransactionError"
	labelOverloaded     = "SystemOverloadedError" // newer drivers wait before they try again,
	labelRetryable      = "RetryableError"        // whatever the command was: it did not run
)

// refusal is an error as a MongoDB client gets it.
type refusal struct {
	code   code
	msg    string
	labels []string
	name   string // of the code, if it is not one of the proxy's own
	ended  bool   // the chunk has none of its keys any more: the request is for others
}

// refuse makes a refusal; it formats like [fmt.Sprintf].
func refuse(c code, format string, args ...any) *refusal {
	return &refusal{code: c, msg: fmt.Sprintf(format, args...)}
}

// errEnded tells that a chunk was split or merged while a request was for it. It
// reaches a client only where a part of the request has run, or might have.
func errEnded(id chunk.ID) *refusal {
	r := refuse(codeExceededTimeLimit, "chunk %s was split or merged meanwhile", id)
	r.ended = true
	return r
}

// labelled adds error labels.
func (r *refusal) labelled(labels ...string) *refusal {
	r.labels = append(r.labels, labels...)
	return r
}

// has reports whether r has a label.
func (r *refusal) has(label string) bool { return slices.Contains(r.labels, label) }

func (r *refusal) Error() string { return fmt.Sprintf("%s (%d): %s", codeNames[r.code], r.code, r.msg) }

// asRefusal gives the refusal that a client is told for err. An error that was
// not made for clients may name hosts: it goes to the log.
func (p *Proxy) asRefusal(ctx context.Context, err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	p.log.WarnContext(ctx, "request failed", "error", err)
	return refuse(codeHostUnreachable, "the proxy could not do this: its log says why")
}

// unreachable gives the refusal that a client is told for a shard that is lost.
func (p *Proxy) unreachable(ctx context.Context, r *route, err error) *refusal {
	p.log.WarnContext(ctx, "shard was lost", "shard", r.Placement.Shard, "error", err)
	if upstream.Ran(err) {
		return refuse(codeHostUnreachable, "the connection to %s was lost: it is not known whether this has run", r.Placement.Shard)
	}
	return refuse(codeHostUnreachable, "%s cannot be reached", r.Placement.Shard)
}

// appendError appends r as a reply's document.
func (r *refusal) appendError(dst []byte) []byte {
	at, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendDoubleElement(dst, "ok", 0)
	dst = bsoncore.AppendStringElement(dst, "errmsg", r.msg)
	dst = bsoncore.AppendInt32Element(dst, "code", int32(r.code))
	dst = bsoncore.AppendStringElement(dst, "codeName", r.codeName())
	dst = appendLabels(dst, r.labels)
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// codeName is MongoDB's name of the code.
func (r *refusal) codeName() string {
	if r.name != "" {
		return r.name
	}
	if name, ok := codeNames[r.code]; ok {
		return name
	}
	return fmt.Sprintf("Location%d", r.code)
}

// appendLabels appends the errorLabels element, if there are any.
func appendLabels(dst []byte, labels []string) []byte {
	if len(labels) == 0 {
		return dst
	}
	at, dst := bsoncore.AppendArrayElementStart(dst, "errorLabels")
	for i, l := range labels {
		dst = bsoncore.AppendStringElement(dst, index(i), l)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	return dst
}

// indexes holds the keys of the first elements of an array.
var indexes = func() (t [128]string) {
	for i := range t {
		t[i] = fmt.Sprint(i)
	}
	return t
}()

// index is the key of an array's i-th element.
func index(i int) string {
	if i < len(indexes) {
		return indexes[i]
	}
	return fmt.Sprint(i)
}

// status is what decides about a shard's reply.
type status struct {
	ok     bool
	code   code
	labels bson.Raw
}

// lostPrimary reports whether the member that answered is not, or soon no
// longer, the primary. None of these codes may reach a client: it would give up
// the proxy for it.
func (s status) lostPrimary() bool {
	switch s.code {
	case codeNotWritablePrimary, codeNotPrimaryNoSecond, codeNotPrimaryOrRetired, codeNotPrimaryOrSecond,
		codePrimarySteppedDown, codeInterruptedStepDown, codeInterruptedShutdown, codeShutdown:
		return true
	default:
		return false
	}
}

// neverRan reports whether the member refused before it did anything.
func (s status) neverRan() bool {
	return s.code == codeNotWritablePrimary || s.code == codeNotPrimaryNoSecond ||
		s.code == codeNotPrimaryOrRetired || s.code == codeUnauthorized
}
