// Package switchover is the switch protocol: fence, drain, catch up, close,
// publish and open, the way back, and the watchdog that ends what a dead
// coordinator left. It speaks to shards, metadata and proxies through the ports
// declared here and knows no driver and no Temporal.
//
// The attempt's row decides; work on a shard follows each decision, and the
// last compare-and-set says that the work is done. Every step may be repeated.
package switchover

import (
	"context"
	"log/slog"
	"time"

	"drover/chunk"
	"drover/internal/stoppoint"
)

// Attempt is the row that decides.
type Attempt struct {
	ID        chunk.AttemptID
	Migration chunk.MigrationID
	Direction chunk.AttemptID // of the lanes that feed the target
	State     chunk.AttemptState
	Source    chunk.Placement // serves until the publish
	Target    chunk.Placement
	Legs      []Leg         // every pair that is switched; empty or one in a move
	Deadline  time.Time     // by Postgres' clock, zero before fencing
	Unbroken  bool          // the metadata's server has not restarted since the attempt began: it cannot have forgotten a publish
	Overdue   bool          // past its deadline, by Postgres' clock; or aborting without ever having had one
	Left      time.Duration // until its deadline when it was read, by Postgres' clock; 0 without one, negative past it
	Token     chunk.Token
}

// Identity tells one reign of a primary from another.
type Identity struct {
	Term      int64  `json:"term"`
	ProcessID string `json:"process_id"`
}

// Access is what a grant allows.
type Access string

// The two grants of a placement.
const (
	Writes Access = "writes"
	Reads  Access = "reads"
)

// Forward tells a proxy that cannot ask the metadata where a chunk went.
type Forward struct {
	Shard     string
	Placement chunk.PlacementID
	Database  string
	Token     chunk.Token
}

// forward is the address that an attempt leaves on its source.
func (a Attempt) forward() Forward {
	return Forward{Shard: a.Target.Shard, Placement: a.Target.ID, Database: a.Target.Database, Token: a.Token}
}

// Side is one shard as the protocol needs it. All writes are acknowledged by
// the set's majority; all methods may be repeated.
type Side interface {
	// CreateGrants makes the attempt's two roles of p, held by nobody.
	CreateGrants(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error
	// Foresee learns, before the window, which roles of p the fence will find, so that
	// the window need not ask before it drops them.
	Foresee(ctx context.Context, p chunk.Placement) error
	// DropGrants drops every role of p for access that is older than attempt a,
	// and returns how many there were. Newer ones stay: a late fence is void.
	DropGrants(ctx context.Context, p chunk.Placement, a chunk.AttemptID, access Access) (int, error)
	// Barrier returns once every data-bearing member refuses access to p. A
	// member that the majority has seen down is named as owed.
	Barrier(ctx context.Context, p chunk.Placement, access Access) (owed []string, err error)
	// Forget ends what Foresee and DropGrants keep in memory for the steps behind them. Without
	// it they ask once more.
	Forget(p chunk.Placement)
	// GrantToData gives the attempt's roles to the proxies' user; a role that
	// was dropped meanwhile is failure.Lost.
	GrantToData(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error
	// Identity reads the primary's term and process.
	Identity(ctx context.Context) (Identity, error)
	// Blind reports that the server cannot list its operations: there, the proxies'
	// word is what says that none runs.
	Blind() bool
	// Drain waits until no write that passed the check before the fence can
	// still land, and aborts the open transactions of p. silent says that some
	// proxy gave no word about its own: a blind server is then watched until
	// nothing lands any more.
	Drain(ctx context.Context, p chunk.Placement, silent bool) (way string, err error)
	// Pay shows the barrier to one member that was owed it.
	Pay(ctx context.Context, host string, p chunk.Placement, access Access) error
	// WriteFence is failure.Lost under a lease older than one that the fence
	// document has seen: a newer run, or an exclusive holder, was there.
	WriteFence(ctx context.Context, p chunk.Placement, a chunk.AttemptID, lease int64, deadline time.Time) error
	// LiftFence marks p as served again for attempt a.
	LiftFence(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error
	WriteMarker(ctx context.Context, m chunk.Marker) error
	// Opened reads the newest attempt that opened p here, 0 for none.
	Opened(ctx context.Context, p chunk.Placement) (chunk.AttemptID, error)
	WriteOpenRecord(ctx context.Context, p chunk.Placement, a chunk.AttemptID, token chunk.Token) error
	SetForward(ctx context.Context, p chunk.Placement, a chunk.AttemptID, f Forward) error
	// Passed reports whether the direction's lane that applies what is written on
	// source has passed the marker.
	Passed(ctx context.Context, m chunk.MigrationID, direction chunk.AttemptID, source chunk.Placement, markerKey string) (bool, error)
	// Parked counts the documents that wait for a unique key.
	Parked(ctx context.Context, m chunk.MigrationID) (int64, error)
	// CloseLanes raises the epoch of every lane, so that no owner can go on, and
	// notes who closed them: only that attempt's way back opens them again.
	CloseLanes(ctx context.Context, m chunk.MigrationID, direction, by chunk.AttemptID) error
	DropApplierRole(ctx context.Context, p chunk.Placement, m chunk.MigrationID, direction chunk.AttemptID) error
	// ParkTTL and RestoreTTL are failure.Lost, and leave things as they were, when
	// attempt a is not the newest one any more.
	ParkTTL(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error
	RestoreTTL(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error
}

// Shards finds the sides.
type Shards interface {
	Side(ctx context.Context, shard string) (Side, error)
}

// AdvanceOptions go with a transition of an attempt.
type AdvanceOptions struct {
	Deadline time.Duration // of fencing: from now by Postgres' clock; 0 keeps it
	Reason   string        // of aborting
	Identity Identity      // of fencing
}

// PublishInput is what the publish checks in its own transaction.
type PublishInput struct {
	Attempt        chunk.AttemptID
	LeaseEpochs    map[string]int64 // by shard
	CatalogVersion int64
}

// Owed is a member that was down when a placement was closed, and may come back
// with the old grants in its cache.
type Owed struct {
	Placement chunk.Placement
	Access    Access
	Host      string
	Attempt   chunk.AttemptID // that closed it
}

// Ledger is the metadata as the protocol needs it.
type Ledger interface {
	Attempt(ctx context.Context, id chunk.AttemptID) (Attempt, error)
	// OpenAttempts lists every attempt that is not terminal.
	OpenAttempts(ctx context.Context) ([]Attempt, error)
	// Advance is a compare-and-set and a NOTIFY in one; failure.Lost when the
	// attempt is not in from.
	Advance(ctx context.Context, id chunk.AttemptID, from, to chunk.AttemptState, o AdvanceOptions) (Attempt, error)
	// Publish is the linearization point.
	Publish(ctx context.Context, in PublishInput) (chunk.Token, error)
	// Owe notes the members that a barrier of the attempt's source could not reach.
	Owe(ctx context.Context, at Attempt, access Access, hosts []string) error
	// Owed lists what is owed for placements that are closed.
	Owed(ctx context.Context) ([]Owed, error)
	// Paid forgets it.
	Paid(ctx context.Context, o Owed) error
	// GrantLock holds the shard's grant lock while do runs.
	GrantLock(ctx context.Context, shard string, do func(context.Context) error) error
}

// Proxies is the live proxies' word about their own requests.
type Proxies interface {
	// Listen starts to collect words; it must be called before the fence.
	Listen(ctx context.Context) (Words, error)
}

// Patience says how long proxies are waited for. One that is known to hear nothing
// is never waited for.
type Patience struct {
	Grace time.Duration // for one that says nothing, or cannot tell
	All   bool          // one that hears is waited for to the end: without a word of it the wait fails
}

// Words collects what proxies say.
type Words interface {
	// Count learns which proxies there are. Whoever comes later finds the grants gone, so
	// it must be called behind their drop: one that began before may have a write under way.
	Count(ctx context.Context) error
	// Wait returns once every proxy that was counted said that it is clean, or the patience is
	// over; silent are those that did not say so.
	Wait(ctx context.Context, a chunk.AttemptID, access Access, p Patience) (silent []string, err error)
	Close()
}

// Comparer compares what validation left busy, under the fence.
type Comparer interface {
	// ForeseeBusy learns, before the window, what is to be compared in it. The comparison
	// that it gives returns failure.Mismatch when the sides differ. What turns busy later
	// is in the captured log, where the next direction's verification meets it.
	ForeseeBusy(ctx context.Context, m chunk.MigrationID, source, target chunk.Placement) (compare func(context.Context) (int, error), err error)
}

// Pace asks the proxies for what makes a window short. Nothing depends on it: one that
// does not hear learns of the window by its announcement, or by its first refused request.
type Pace interface {
	// Ease asks for fewer writes to the source of an attempt that is preparing, and
	// returns when it is a good moment to begin, or when none has come.
	Ease(ctx context.Context, at Attempt) Moment
}

// Moment is what is known of the moment in which a window begins.
type Moment struct {
	// Near says that the lanes are so close behind that the reads may end with the
	// writes, and not only once the lanes have caught up.
	Near bool
	// Shut says that the source takes no writes any more, now that the attempt is
	// fencing: until then a proxy may go on with few. It is nil where there is nothing
	// to say.
	Shut func(context.Context, Attempt)
}

// Config holds the protocol's times.
type Config struct {
	FenceDeadline time.Duration // an attempt that is not published by then goes back
	AbortWithin   time.Duration // a way back that takes longer is the watchdog's
	ProxyGrace    time.Duration // how long a silent proxy is waited for
	LanePoll      time.Duration // how often the lanes' checkpoints are read
}

// Defaults of the protocol, see docs/configuration.md.
func Defaults() Config {
	return Config{FenceDeadline: time.Second, AbortWithin: 300 * time.Millisecond, ProxyGrace: 150 * time.Millisecond, LanePoll: 2 * time.Millisecond}
}

// Switcher runs the protocol.
type Switcher struct {
	Config  Config
	Ledger  Ledger
	Shards  Shards
	Proxies Proxies
	Busy    Comparer
	Pace    Pace              // nil: proxies are asked for nothing
	Stops   *stoppoint.Points // nil outside tests
	Log     *slog.Logger
}
