// Package replication applies the captured log of one shard to a placement on
// another. It has three layers:
//
//   - the fold: a change stream's update description applied to a raw BSON
//     image, so that the result is byte for byte what the source holds;
//   - the lane: one partition of one direction of one migration, which applies
//     batches exactly once. Each batch is one transaction on the target whose
//     first write is a conditional update of the lane's checkpoint;
//   - the lanes of a direction, run, paused, watched and closed together.
//
// # Promises
//
// Whoever sends an event again, and whoever dies at whatever moment, each event
// takes effect once: a lane drops what is at or below its checkpoint, and the
// checkpoint moves in the transaction that applies. A lane that lost its
// checkpoint to a newer owner changes nothing any more: the server refuses it.
//
// A delta is never applied to a document that is not there, and an event that
// cannot be understood stops the lane with the whole event kept.
//
// # Limits
//
// A source transaction is applied in one target transaction per partition if it
// has at most [Limits.TransactionDocs] documents and [Limits.TransactionBytes]
// bytes there; a larger one is split. Nobody reads the target before all of a
// marker's events are there, so this shows to no application.
//
// Change streams do not tell a field that was updated in its place from one
// that a pipeline moved to the end and changed at once. Such a field keeps its
// place; validation reports the document as different in order only.
package replication
