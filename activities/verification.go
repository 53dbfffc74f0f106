package activities

import (
	"context"
	"encoding/json"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
	"drover/validation"
)

// verificationRows keeps where verifications stand.
type verificationRows interface {
	Verification(ctx context.Context, id chunk.MigrationID, direction chunk.AttemptID) (metadata.Verification, bool, error)
	SaveVerification(ctx context.Context, v metadata.Verification) error
}

// verification is where the verification of a direction stands, or the validation in
// front of it.
type verification struct {
	known  bool
	state  validation.WatchState
	report json.RawMessage // of the newest round
}

// begun reports whether there is something to go on from; there is none while the first
// validation of a direction is under way, and behind one that did not end well.
func (v verification) begun() bool { return len(v.state.Offsets) > 0 }

// keptVerification reads it.
func keptVerification(ctx context.Context, rows verificationRows, id chunk.MigrationID, direction chunk.AttemptID) (v verification, err error) {
	kept, ok, err := rows.Verification(ctx, id, direction)
	if err != nil || !ok {
		return v, err
	}
	if err := bson.Unmarshal(kept.State, &v.state); err != nil {
		return v, fmt.Errorf("read the verification of migration %d: %w", id, err)
	}
	v.known, v.report = true, kept.Report
	return v, nil
}

// keep writes it.
func (v verification) keep(ctx context.Context, rows verificationRows, in contract.DirectionInput) error {
	state, err := bson.Marshal(v.state)
	if err != nil {
		return err
	}
	return rows.SaveVerification(ctx, metadata.Verification{Migration: in.Migration, Direction: in.Direction, State: state, Report: v.report})
}

// keepScan keeps where a validation stands, nil: nowhere. A verification that has begun
// may be under way beside it, in a drill, and goes on from its own.
func keepScan(ctx context.Context, rows verificationRows, in contract.DirectionInput, scan *validation.Checkpoint) error {
	v, err := keptVerification(ctx, rows, in.Migration, in.Direction)
	if err != nil {
		return err
	}
	v.state.Scan = scan
	return v.keep(ctx, rows, in)
}
