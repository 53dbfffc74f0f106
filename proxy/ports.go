package proxy

import (
	"context"
	"time"

	"drover/chunk"
	"drover/proxy/auth"
)

// Ports is what a proxy needs of the rest of the fleet.
type Ports struct {
	Routes   Routes
	Attempts Attempts
	Feed     Feed
	Acks     Acks
	Presence Presence
	Shards   Shards
	Users    auth.Directory // nil: clients need not log in
	Catalog  Catalog        // nil: the proxy does no DDL
	Traffics Traffics       // nil: what goes to a placement is told to nobody
	Policies Policies       // nil: every database may do everything
	Callers  Callers        // nil: what is learned about callers is not recorded
	Mirrors  Mirrors        // nil: no reads are mirrored
	Places   Places         // nil: nothing is made ready for a switch
}

// Routes reads the chunk metadata.
type Routes interface {
	// Snapshot gives everything, read at one moment.
	Snapshot(ctx context.Context) (Snapshot, error)
	// Route gives one chunk's route as it is now, and the former ones of its range.
	Route(ctx context.Context, id chunk.ID) (chunk.Route, []Former, error)
}

// Snapshot is the chunk metadata of a moment.
type Snapshot struct {
	Databases []chunk.Database
	Routes    []chunk.Route
	Former    []Former // routes that ended within [FormerLife]
}

// FormerLife is for how long a former route matters: a shard remembers for as
// long which retryable writes a session has made.
const FormerLife = sessionLife

// Former is a route that was. A retry of a write that ran by it must not run
// again, whether or not this proxy was there.
type Former struct {
	Route chunk.Route
	Left  time.Time // when it ended, by this process's clock
}

// Policies gives every database's policy, as JSON of [admission.Policy].
type Policies interface {
	Policies(ctx context.Context) (map[string][]byte, error)
}

// Places reads single placements.
type Places interface {
	Placement(ctx context.Context, id chunk.PlacementID) (chunk.Placement, error)
}

// Attempts reads the attempts to switch.
type Attempts interface {
	// LatestAttempt gives the newest attempt that moves the chunk, in whatever
	// state; ok is false when there never was one.
	LatestAttempt(ctx context.Context, id chunk.ID) (n chunk.Notice, ok bool, err error)
}

// Feed carries announcements. They may be lost, late or repeated: nothing rests
// on them but speed.
type Feed interface {
	// Listen calls deliver with each announcement, one at a time, until ctx
	// ends or the feed breaks. The first announcement, and the first after any
	// gap, is a Resync.
	Listen(ctx context.Context, deliver func(Announcement)) error
}

// Announcement is one of its fields.
type Announcement struct {
	Resync bool // announcements arrive from now on; what came before may have been missed
	Lost   bool // nothing is heard until the next Resync
	Notice *chunk.Notice
	Route  *RouteChange
}

// RouteChange says that a chunk has a new route. With its placement nothing need
// be read.
type RouteChange struct {
	Database  string
	Chunk     chunk.ID
	Token     chunk.Token
	Placement *chunk.Placement // nil: not said
}

// Acks carries a proxy's word about its own requests to who asked.
type Acks interface {
	Ack(ctx context.Context, a chunk.Ack) error
}

// Life is what a proxy says of itself.
type Life struct {
	ID      string
	Run     string // tells one run of the process from another
	Address string
	Hold    time.Duration // for how long it surely holds a request, also when it knows nothing of the switch
	Hears   bool          // announcements reach it: it gives its word at every fence
}

// Presence tells the fleet which proxies there are.
type Presence interface {
	// Beat says that the proxy lives; it is called every second.
	Beat(ctx context.Context, l Life) error
	// Leave says that a run of it ends.
	Leave(ctx context.Context, id, run string) error
}

// Shards tells how a shard is reached.
type Shards interface {
	// Shard gives a registered shard.
	Shard(ctx context.Context, name string) (Shard, error)
}

// Shard is a shard with the data plane's way in.
type Shard struct {
	chunk.Shard
	User     string // mostly chunk.DataUser; empty: no authentication
	Password string
}
