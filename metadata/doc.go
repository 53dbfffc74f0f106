// Package metadata keeps the truth about a fleet in Postgres: shards, logical
// databases, chunks, placements and routes, migrations and their attempts to
// switch, leases, and what the working parts must remember.
//
// # Behaviour
//
//   - Wrong states are refused by the database itself. The chunks of a database
//     are one chain without gap or overlap; a chunk has at most one unfinished
//     migration, one open attempt and one live placement; a placement is live
//     exactly when a route points to it; route tokens only grow.
//   - Every change of state is a compare-and-set. Where another state is found
//     the error is a [failure.Lost] whose code says which ("attempt.is_aborting",
//     see [Found]); a step that the state machine does not have is a
//     [failure.Invalid]. Nothing is changed in either case.
//   - Every change of an attempt or of a route is announced by NOTIFY in its own
//     transaction, whoever makes it.
//   - Times are Postgres' own. No caller's clock is compared with one.
//   - What happens inside the fence window is one statement and one round trip.
//
// Drover wants a database of its own; nothing else should be in its schema.
package metadata
