package shardsim

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The error codes that members answer with.
const (
	codeBadValue           = 2
	codeUnauthorized       = 13
	codeAuthFailed         = 18
	codeIllegalOperation   = 20
	codeRoleNotFound       = 31
	codeMaxTime            = 50
	codeCommandNotFound    = 59
	codeWriteConcern       = 64
	codeInvalidOptions     = 72
	codeNodeNotFound       = 74
	codeInvalidConfig      = 93
	codeNotYetInitialized  = 94
	codeNotSecondary       = 95
	codeIncompatibleConfig = 103
	codeNodeNotElectable   = 107
	codeNoSuchTransaction  = 251
	codeExceededTimeLimit  = 262
	codeNotCommitted       = 308
	codeNotPrimary         = 10107
	codeDuplicateKey       = 11000
	codeInterrupted        = 11601
	codeStateChange        = 11602
	codeNotPrimaryNoOk     = 13435
	codeNotPrimaryOrSecond = 13436
	codeUserNotFound       = 11
	codeUserExists         = 51003
	codeRoleExists         = 51002
	codeStageUnknown       = 40324
)

// ok ends a reply.
func ok() bson.D { return bson.D{{Key: "ok", Value: 1.0}} }

// failed is an error reply.
func failed(code int, message string) bson.D {
	return bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: code}, {Key: "errmsg", Value: message}}
}

// code gives the code of an error reply.
func code(reply bson.D) (int, bool) {
	for _, e := range reply {
		if n, isInt := e.Value.(int); e.Key == "code" && isInt {
			return n, true
		}
	}
	return 0, false
}

// retryLabel reports whether a member asks its client to send a write again.
func retryLabel(cmd bson.Raw, reply bson.D) bool {
	_, numbered := cmd.Lookup("txnNumber").AsInt64OK()
	_, inTransaction := cmd.Lookup("autocommit").BooleanOK()
	return numbered && !inTransaction && stateChanged(reply)
}

// stateChanged reports whether an error is about what the member is now.
func stateChanged(reply bson.D) bool {
	n, _ := code(reply)
	return slices.Contains([]int{codeNotPrimary, codeStateChange, codeNotPrimaryNoOk, codeNotPrimaryOrSecond, 189, 91, 11600}, n)
}
