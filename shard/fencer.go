package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// silentAfter is how long a member may take to answer inside the fence window
// before it counts as silent.
const silentAfter = 400 * time.Millisecond

// Owed is a member that could not be shown the fence, and cannot serve anybody
// now either. It gets the barrier when it is back, see [Fencer.Pay].
type Owed struct {
	Host   string
	Reason string
}

// Fencer holds warm connections to every data-bearing member of a set, so that the
// fence window pays for no handshake. The gate opens it; whoever opened it closes it.
type Fencer struct {
	set *Set

	mu     sync.Mutex
	dialed map[string]string // the host that is dialed for a member; empty: the set's address
	config *setConfig        // the newest that was read
}

// node is one member with its own connections. They are not shared with the
// process's other users of clients: the window must not wait for a pool.
type node struct {
	admin *mongo.Client
	data  *mongo.Client
}

// OpenFencer connects to every member. A member that does not answer is left for
// [Fencer.Barrier] to judge.
func (s *Set) OpenFencer(ctx context.Context) (*Fencer, error) {
	f := &Fencer{set: s, dialed: map[string]string{}}
	if err := f.Warm(ctx); err != nil {
		return nil, errors.Join(err, f.Close(context.WithoutCancel(ctx)))
	}
	return f, nil
}

// Close disconnects.
func (f *Fencer) Close(ctx context.Context) error { return f.set.clients.release(ctx, f) }

// Warm opens what is not open and uses every connection once: the shared one to
// the primary too.
func (f *Fencer) Warm(ctx context.Context) error {
	cfg, view, err := f.look(ctx)
	if err != nil {
		return err
	}
	members := cfg.members(view)
	var g errgroup.Group
	for _, m := range members {
		n, err := f.node(m.Host, len(members) == 1)
		if err != nil {
			return err
		}
		for _, c := range []*mongo.Client{n.admin, n.data} {
			g.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				if _, err := run(ctx, c, "admin", bson.D{{Key: "connectionStatus", Value: 1}}); err != nil && !mongocode.IsNetwork(err) {
					return f.set.wrap(err, "connect to %s", m.Host)
				}
				return nil
			})
		}
	}
	return g.Wait()
}

// node gives the connections to one member, made when first asked for, and anew
// when their certificates were renewed.
func (f *Fencer) node(host string, alone bool) (*node, error) {
	f.mu.Lock()
	to, ok := f.dialed[host]
	if !ok {
		if to = host; alone {
			to = ""
		}
		f.dialed[host] = to
	}
	f.mu.Unlock()
	o := f.set.clients.opts
	o.Host, o.AppName = to, "drover-fence"
	o.SelectionTimeout, o.ConnectTimeout = time.Second, time.Second
	n := &node{}
	for user, c := range map[string]**mongo.Client{chunk.AdminUser: &n.admin, chunk.DataUser: &n.data} {
		o.MinPool = 0
		if user == chunk.DataUser {
			o.MinPool = 2 // a barrier asks two questions at once
		}
		m, err := f.set.clients.get(f.set.shard, user, o, f)
		if err != nil {
			return nil, err
		}
		*c = m
	}
	return n, nil
}

// look reads the primary's view, and the configuration if it is another than the
// one that is known.
func (f *Fencer) look(ctx context.Context) (setConfig, setStatus, error) {
	view, err := readStatus(ctx, f.set.admin())
	if err != nil {
		return setConfig{}, view, f.set.wrap(err, "read status")
	}
	f.mu.Lock()
	known := f.config
	f.mu.Unlock()
	if known != nil && known.Config.Version == view.self().ConfigVersion {
		return *known, view, nil
	}
	cfg, err := readConfig(ctx, f.set.admin())
	if err != nil {
		return cfg, view, f.set.wrap(err, "read configuration")
	}
	f.mu.Lock()
	f.config = &cfg
	f.mu.Unlock()
	return cfg, view, nil
}

// Barrier proves that no member still honours a grant that was dropped.
//
// Before: [Set.DropWriteGrants] or [Set.DropReadGrants] answered with cut; who no
// longer has it passes none, and what the primary has applied by now counts. After,
// on every data-bearing member: it has applied the drop, its cache of users was
// emptied where that is possible, and a connection of the data-plane user sees no
// privilege of that kind on the placement's database and is refused when it tries
// one. Members that the set's
// majority has seen down for longer than its election timeout, delayed ones, and
// ones in their initial sync are given back as owed; one that is merely silent is
// an error (shard.member_silent). If interrupted: run again.
func (f *Fencer) Barrier(ctx context.Context, p chunk.Placement, k GrantKind, cut Cut) ([]Owed, error) {
	cfg, view, err := f.look(ctx)
	if err != nil {
		return nil, err
	}
	if cut.At.IsZero() {
		cut.At = view.Optimes.Applied.TS
	}
	members := cfg.members(view)
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		if reason := excused(m); reason != "" {
			continue
		}
		wg.Go(func() {
			n, err := f.node(m.Host, len(members) == 1)
			if err == nil && (m.ID != view.self().ID || !view.applied(cut.At)) {
				err = waitApplied(ctx, n.admin, cut.At)
			}
			if err == nil {
				err = f.show(ctx, n, p, k)
			}
			errs[i] = err
		})
	}
	wg.Wait()

	var owed []Owed
	for i, m := range members {
		reason := excused(m)
		if reason == "" && errs[i] == nil {
			continue
		}
		if reason == "" && silent(errs[i]) && f.down(ctx, cfg, m.ID) {
			reason = "down"
		}
		switch {
		case reason != "":
			owed = append(owed, Owed{Host: m.Host, Reason: reason})
		case silent(errs[i]):
			return owed, failure.New(failure.Transient, "shard.member_silent", "member %s of shard %s does not answer: %w", m.Host, f.set.Name(), errs[i]).
				WithHint("the fence needs every member's word, or the majority's that it is down; look after %s", m.Host)
		default:
			return owed, f.set.wrap(errs[i], "barrier of placement %d at %s", p.ID, m.Host)
		}
	}
	return owed, nil
}

// Pay shows the fence to one member that was owed it. It fails while the member
// cannot be shown it. An empty cut is what the primary has applied by now.
func (f *Fencer) Pay(ctx context.Context, host string, p chunk.Placement, k GrantKind, cut Cut) error {
	if cut.At.IsZero() {
		_, view, err := f.look(ctx)
		if err != nil {
			return err
		}
		cut.At = view.Optimes.Applied.TS
	}
	n, err := f.node(host, false)
	if err != nil {
		return err
	}
	if err = waitApplied(ctx, n.admin, cut.At); err == nil {
		err = f.show(ctx, n, p, k)
	}
	return f.set.wrap(err, "barrier of placement %d at %s", p.ID, host)
}

// silent reports whether an error means that a member did not answer in time.
func silent(err error) bool {
	return mongocode.IsNetwork(err) || errors.Is(err, context.DeadlineExceeded)
}

// excused tells why a member need not see the fence now; empty when it must.
func excused(m Member) string {
	switch {
	case m.Delayed && m.Priority == 0:
		return "delayed"
	case m.State == "STARTUP2":
		return "initial sync"
	default:
		return ""
	}
}

// waitApplied waits until a member has applied what was done at a time.
func waitApplied(ctx context.Context, c *mongo.Client, at bson.Timestamp) error {
	return poll(ctx, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, silentAfter)
		defer cancel()
		st, err := readStatus(ctx, c)
		return err == nil && st.applied(at), err
	})
}

// show empties one member's cache of users and sees that it honours the drop.
func (f *Fencer) show(ctx context.Context, n *node, p chunk.Placement, k GrantKind) error {
	caps := f.set.shard.Capabilities
	if caps.InvalidatesUserCache {
		if _, err := run(ctx, n.admin, "admin", bson.D{{Key: "invalidateUserCache", Value: 1}}); err != nil {
			return err
		}
	}
	return poll(ctx, func() (bool, error) {
		var allowed []string
		var refused bool
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() (err error) { allowed, err = allowedOn(ctx, n.data, p.Database); return err })
		g.Go(func() (err error) { refused, err = tryRefused(ctx, n.data, p.Database, k); return err })
		err := g.Wait()
		return err == nil && refused && !k.among(allowed), err
	})
}

// tryRefused tries the right itself, with a command that would change and show
// nothing. A server may list fewer privileges than it honours, so the list alone
// proves little. A secondary that is asked to write and says so has got as far as
// its list lets it.
func tryRefused(ctx context.Context, c *mongo.Client, db string, k GrantKind) (bool, error) {
	const none = "drover_barrier" // a collection that never exists
	nothing := bson.D{{Key: "_id", Value: 0}}
	cmd := bson.D{{Key: "find", Value: none}, {Key: "filter", Value: nothing}, {Key: "limit", Value: 1}}
	if k == Writes {
		cmd = bson.D{{Key: "delete", Value: none}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: nothing}, {Key: "limit", Value: 1}}}}}
	}
	_, err := run(ctx, c, db, cmd)
	switch {
	case mongocode.IsUnauthorized(err):
		return true, nil
	case k == Writes && mongocode.Has(err, mongocode.NotWritablePrimary, mongocode.LegacyNotPrimary):
		return true, nil
	default:
		return false, err
	}
}

// among reports whether actions hold one that this kind of grant gives, or an
// unknown one: what is not known to be the other kind's counts.
func (k GrantKind) among(actions []string) bool {
	if k == Reads {
		return len(actions) > 0
	}
	return slices.ContainsFunc(actions, func(a string) bool { return !slices.Contains(Reads.actions(), a) })
}

// allowedOn gives the actions that the user of a connection has on a database by
// privileges that name it, or that name every database.
func allowedOn(ctx context.Context, c *mongo.Client, db string) ([]string, error) {
	r, err := run(ctx, c, "admin", bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}})
	if err != nil {
		return nil, err
	}
	var reply struct {
		Auth struct {
			Users      []bson.Raw `bson:"authenticatedUsers"`
			Privileges []struct {
				Resource struct {
					DB  *string `bson:"db"`
					Any bool    `bson:"anyResource"`
				} `bson:"resource"`
				Actions []string `bson:"actions"`
			} `bson:"authenticatedUserPrivileges"`
		} `bson:"authInfo"`
	}
	if err := bson.Unmarshal(r, &reply); err != nil {
		return nil, fmt.Errorf("read privileges: %w", err)
	}
	if len(reply.Auth.Users) == 0 {
		return nil, failure.New(failure.Transient, "shard.not_logged_in", "the connection is not logged in")
	}
	var actions []string
	for _, x := range reply.Auth.Privileges {
		if x.Resource.Any || x.Resource.DB != nil && (*x.Resource.DB == db || *x.Resource.DB == "") {
			actions = append(actions, x.Actions...)
		}
	}
	return actions, nil
}

// down reports whether a majority of the voters has seen a member down for
// longer than the election timeout, so that another could have been elected and
// the member itself cannot be primary.
func (f *Fencer) down(ctx context.Context, cfg setConfig, id int) bool {
	var mu sync.Mutex
	var views []setStatus
	var wg sync.WaitGroup
	for _, m := range cfg.members(setStatus{}) {
		if m.ID == id {
			continue
		}
		wg.Go(func() {
			n, err := f.node(m.Host, false)
			if err != nil {
				return
			}
			ctx, cancel := context.WithTimeout(ctx, silentAfter)
			defer cancel()
			if v, err := readStatus(ctx, n.admin); err == nil { // a view that is missing does not count
				mu.Lock()
				views = append(views, v)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return seenDown(cfg, views, id)
}

// seenDown is the judgement of [Fencer.down] over the views that were given.
func seenDown(cfg setConfig, views []setStatus, id int) bool {
	votes := map[int]bool{}
	for _, m := range cfg.Config.Members {
		if m.Votes > 0 {
			votes[m.ID] = true
		}
	}
	var agree int
	for _, v := range views {
		sees := false
		for _, m := range v.Members {
			if m.ID == id && m.Health == 0 && v.Date.Sub(m.LastHeartbeatRecv) > cfg.electionTimeout() {
				sees = true
			}
		}
		if sees && votes[v.self().ID] {
			agree++
		}
	}
	return agree > len(votes)/2
}
