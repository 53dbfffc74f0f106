package bulkimport

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// briefError is a server's error without the server's text, which may quote
// the command and with it documents. The cause stays reachable for predicates.
type briefError struct{ cause error }

// Error tells the codes only.
func (e briefError) Error() string {
	if bulk, ok := errors.AsType[mongo.BulkWriteException](e.cause); ok {
		switch {
		case len(bulk.WriteErrors) > 0:
			return fmt.Sprintf("%d writes were refused, the first with code %d", len(bulk.WriteErrors), bulk.WriteErrors[0].Code)
		case bulk.WriteConcernError != nil:
			return fmt.Sprintf("write concern: code %d (%s)", bulk.WriteConcernError.Code, bulk.WriteConcernError.Name)
		}
	}
	if command, ok := errors.AsType[mongo.CommandError](e.cause); ok && command.Code != 0 {
		return fmt.Sprintf("code %d (%s)", command.Code, command.Name)
	}
	return e.cause.Error()
}

// Unwrap gives the server's error.
func (e briefError) Unwrap() error { return e.cause }

// brief hides the text of a server's error.
func brief(err error) error {
	if err == nil {
		return nil
	}
	return briefError{err}
}
