package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// GrantKind is one half of what the data plane may do with a placement.
type GrantKind string

// The kinds of grants.
const (
	Writes GrantKind = "writes"
	Reads  GrantKind = "reads"
)

// prefix is what the names of all generations of a placement's grants begin with.
func (k GrantKind) prefix(p chunk.PlacementID) string {
	if k == Writes {
		return fmt.Sprintf("w_p%d_a", p)
	}
	return fmt.Sprintf("r_p%d_a", p)
}

// actions are what a grant of this kind allows on the placement's database.
func (k GrantKind) actions() []string {
	if k == Writes {
		return []string{"insert", "update", "remove"}
	}
	return []string{"find", "listCollections", "listIndexes", "collStats", "dbStats"}
}

// Grant is one generation of a placement's grant.
type Grant struct {
	Role    string
	Kind    GrantKind
	Attempt chunk.AttemptID
}

// Cut is what a drop of grants did. Every member that has applied At has seen it.
type Cut struct {
	Dropped []string
	At      bson.Timestamp
}

// CreateGrants makes the write and the read grant of one attempt, held by nobody.
//
// Before: the attempt's row exists and is not terminal. After: both roles exist.
// If interrupted: run again. A placement that a newer attempt has fenced already
// gets nothing (kind Lost): what was made is dropped again, so that a late caller
// leaves no role that somebody could still grant.
func (s *Set) CreateGrants(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error {
	if err := s.notOvertaken(ctx, p.ID, a); err != nil {
		return err
	}
	for _, k := range []GrantKind{Writes, Reads} {
		role := k.prefix(p.ID) + strconv.FormatInt(int64(a), 10)
		if err := s.ensureRole(ctx, role, []privilege{onDatabase(p.Database, k.actions()...)}); err != nil {
			return err
		}
	}
	err := s.notOvertaken(ctx, p.ID, a)
	if failure.Is(err, failure.Lost) {
		return errors.Join(err,
			s.dropRole(ctx, chunk.WriteGrant(p.ID, a)), s.dropRole(ctx, chunk.ReadGrant(p.ID, a)))
	}
	return err
}

// notOvertaken fails with kind Lost when the placement's fence document names a
// newer attempt than a.
func (s *Set) notOvertaken(ctx context.Context, p chunk.PlacementID, a chunk.AttemptID) error {
	f, ok, err := s.ReadFence(ctx, p)
	if err != nil {
		return err
	}
	if ok && f.Attempt > a {
		return failure.New(failure.Lost, "shard.overtaken", "placement %d on shard %s is at attempt %d, this is attempt %d", p, s.Name(), f.Attempt, a)
	}
	return nil
}

// Grants lists the grants of the placement that exist, held or not.
func (s *Set) Grants(ctx context.Context, p chunk.PlacementID) ([]Grant, error) {
	grants, _, err := s.grants(ctx, p)
	return grants, err
}

// DropWriteGrants takes away every write grant of the placement that is older than
// attempt a. Newer ones stay, so that a late fence is void. Grants that were foreseen
// are dropped while the others are still looked for; foreseeing wrongly does no harm.
//
// After: the roles are gone from a majority of the set. What every member does
// with its cached copy is for [Fencer.Barrier] to see. If interrupted: run again.
func (s *Set) DropWriteGrants(ctx context.Context, p chunk.PlacementID, a chunk.AttemptID, foreseen ...Grant) (Cut, error) {
	return s.dropGrants(ctx, Writes, p, a, foreseen)
}

// DropReadGrants is [Set.DropWriteGrants] for the read grants.
func (s *Set) DropReadGrants(ctx context.Context, p chunk.PlacementID, a chunk.AttemptID, foreseen ...Grant) (Cut, error) {
	return s.dropGrants(ctx, Reads, p, a, foreseen)
}

// dropGrants drops the generations of one kind that are older than a.
func (s *Set) dropGrants(ctx context.Context, k GrantKind, p chunk.PlacementID, a chunk.AttemptID, foreseen []Grant) (Cut, error) {
	stays := func(g Grant) bool { return g.Kind != k || g.Attempt >= a }
	early := slices.DeleteFunc(slices.Clone(foreseen), stays)
	var first, rest Cut
	var found []Grant
	g, together := errgroup.WithContext(ctx)
	g.Go(func() (err error) { first, err = s.dropAll(together, early); return err })
	g.Go(func() (err error) { found, rest.At, err = s.grants(together, p); return err })
	if err := g.Wait(); err != nil {
		return first, err
	}
	more, err := s.dropAll(ctx, slices.DeleteFunc(found, func(g Grant) bool { return stays(g) || slices.Contains(early, g) }))
	return first.and(rest).and(more), err
}

// and is what two drops did together.
func (c Cut) and(o Cut) Cut {
	c.Dropped = append(c.Dropped, o.Dropped...)
	if o.At.After(c.At) {
		c.At = o.At
	}
	return c
}

// dropAll drops grants. One that is gone already is fine, and not counted.
func (s *Set) dropAll(ctx context.Context, grants []Grant) (cut Cut, err error) {
	for _, g := range grants {
		r, err := s.adminRun(ctx, bson.D{{Key: "dropRole", Value: g.Role}, majority()})
		if err != nil && !mongocode.IsRoleNotFound(err) {
			return cut, s.wrap(err, "drop grant %s", g.Role)
		}
		if err == nil {
			cut = cut.and(Cut{Dropped: []string{g.Role}, At: operationTime(r)})
		}
	}
	return cut, nil
}

// grants lists the roles that exist for a placement, held or not, and the time
// the list is true for.
func (s *Set) grants(ctx context.Context, p chunk.PlacementID) ([]Grant, bson.Timestamp, error) {
	names, r, err := s.roleNames(ctx)
	if err != nil {
		return nil, bson.Timestamp{}, err
	}
	var found []Grant
	for _, n := range names {
		if g, ok := parseGrant(n, p); ok {
			found = append(found, g)
		}
	}
	return found, operationTime(r), nil
}

// parseGrant reads a role's name; ok is false for anything but a grant of p.
func parseGrant(role string, p chunk.PlacementID) (Grant, bool) {
	for _, k := range []GrantKind{Writes, Reads} {
		rest, ok := strings.CutPrefix(role, k.prefix(p))
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return Grant{}, false
		}
		return Grant{Role: role, Kind: k, Attempt: chunk.AttemptID(n)}, true
	}
	return Grant{}, false
}

// roleNames lists the roles of database admin that are not built in; of some, those that
// exist.
func (s *Set) roleNames(ctx context.Context, some ...string) ([]string, bson.Raw, error) {
	q := bson.D{{Key: "rolesInfo", Value: 1}}
	if len(some) > 0 {
		var list bson.A
		for _, role := range some {
			list = append(list, bson.D{{Key: "role", Value: role}, {Key: "db", Value: "admin"}})
		}
		q = bson.D{{Key: "rolesInfo", Value: list}}
	}
	r, err := s.adminRun(ctx, q)
	if err != nil {
		return nil, nil, s.wrap(err, "list roles")
	}
	var reply struct {
		Roles []struct {
			Role string `bson:"role"`
		} `bson:"roles"`
	}
	if err := bson.Unmarshal(r, &reply); err != nil {
		return nil, nil, fmt.Errorf("list roles on shard %s: %w", s.Name(), err)
	}
	names := make([]string, 0, len(reply.Roles))
	for _, x := range reply.Roles {
		names = append(names, x.Role)
	}
	return names, r, nil
}

// GrantToData gives the data-plane user an attempt's write and read grant.
//
// Before: the attempt's row says that this placement is the one to serve. After:
// the user holds both, checked by reading back. If interrupted: run again. Fails
// with kind Lost, code grant.void, when the roles no longer exist: a newer attempt
// has fenced the placement, so this open is void.
func (s *Set) GrantToData(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error {
	roles := []string{chunk.WriteGrant(p.ID, a), chunk.ReadGrant(p.ID, a)}
	for range 3 {
		_, err := s.adminRun(ctx, bson.D{{Key: "grantRolesToUser", Value: chunk.DataUser}, {Key: "roles", Value: roles}, majority()})
		if mongocode.IsRoleNotFound(err) {
			return failure.New(failure.Lost, "grant.void", "attempt %d may no longer open placement %d on shard %s: %w", a, p.ID, s.Name(), err).
				WithHint("a newer attempt owns the placement; nothing was changed")
		}
		if err != nil {
			return s.wrap(err, "grant %s to %s", roles, chunk.DataUser)
		}
		if settled, err := s.holds(ctx, roles); err != nil || settled {
			return err
		}
	}
	return failure.New(failure.Transient, "grant.unsettled", "grants of attempt %d on placement %d of shard %s do not stay", a, p.ID, s.Name()).
		WithHint("something else changes the roles of %s at the same time", chunk.DataUser)
}

// holds reports whether the data-plane user holds some roles, all of which exist. It asks
// for no others: of a shard with many placements there are many, and applications wait.
func (s *Set) holds(ctx context.Context, roles []string) (bool, error) {
	var held, existing []string
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { held, err = s.rolesOf(ctx, chunk.DataUser); return err })
	g.Go(func() (err error) { existing, _, err = s.roleNames(ctx, roles...); return err })
	if err := g.Wait(); err != nil {
		return false, err
	}
	missing := func(r string) bool { return !slices.Contains(held, r) || !slices.Contains(existing, r) }
	return !slices.ContainsFunc(roles, missing), nil
}

// HeldGrants lists the grants of a placement that the data-plane user holds and
// that exist: who may write and read it now.
func (s *Set) HeldGrants(ctx context.Context, p chunk.PlacementID) ([]Grant, error) {
	var held []string
	var existing []Grant
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { held, err = s.rolesOf(ctx, chunk.DataUser); return err })
	g.Go(func() (err error) { existing, _, err = s.grants(ctx, p); return err })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(existing, func(g Grant) bool { return !slices.Contains(held, g.Role) }), nil
}

// rolesOf lists the roles of admin that one of Drover's users holds directly.
func (s *Set) rolesOf(ctx context.Context, user string) ([]string, error) {
	r, err := s.adminRun(ctx, bson.D{{Key: "usersInfo", Value: bson.D{{Key: "user", Value: user}, {Key: "db", Value: "admin"}}}})
	if err != nil {
		return nil, s.wrap(err, "read user %s", user)
	}
	var reply struct {
		Users []struct {
			Roles []struct {
				Role string `bson:"role"`
				DB   string `bson:"db"`
			} `bson:"roles"`
		} `bson:"users"`
	}
	if err := bson.Unmarshal(r, &reply); err != nil {
		return nil, fmt.Errorf("read user %s on shard %s: %w", user, s.Name(), err)
	}
	if len(reply.Users) == 0 {
		return nil, failure.New(failure.Invalid, "shard.not_registered", "user %s does not exist on shard %s", user, s.Name()).
			WithHint("run `drover shard add` for it")
	}
	var names []string
	for _, x := range reply.Users[0].Roles {
		if x.DB == "admin" {
			names = append(names, x.Role)
		}
	}
	return names, nil
}

// EnsureLoaderRole lets the loaders of one migration fill a placement and park
// documents in Drover's database.
func (s *Set) EnsureLoaderRole(ctx context.Context, p chunk.Placement, m chunk.MigrationID) error {
	return s.giveRole(ctx, chunk.LoaderUser, chunk.LoaderRole(p.ID, m), []privilege{
		onDatabase(p.Database, "find", "insert", "update", "remove", "bypassDocumentValidation"),
		onCollection(chunk.SystemDatabase, chunk.ParkedCollection, "find", "insert", "update", "remove"),
	})
}

// DropLoaderRole ends the loaders' right: a late one is refused by the shard. What
// passed the check before is for [Set.DrainUser] to wait for.
func (s *Set) DropLoaderRole(ctx context.Context, p chunk.PlacementID, m chunk.MigrationID) error {
	return s.dropRole(ctx, chunk.LoaderRole(p, m))
}

// EnsureApplierRole lets the lanes of one direction of a migration change a
// placement, keep their checkpoints and park documents.
func (s *Set) EnsureApplierRole(ctx context.Context, p chunk.Placement, m chunk.MigrationID, d chunk.AttemptID) error {
	return s.giveRole(ctx, chunk.ApplierUser, chunk.ApplierRole(p.ID, m, d), []privilege{
		onDatabase(p.Database, "find", "insert", "update", "remove", "bypassDocumentValidation",
			"createCollection", "dropCollection", "createIndex", "dropIndex", "collMod", "listCollections", "listIndexes"),
		onCollection(chunk.SystemDatabase, chunk.ParkedCollection, "find", "insert", "update", "remove"),
		onCollection(chunk.SystemDatabase, chunk.CheckpointsCollection, "find", "insert", "update", "remove",
			"bypassDocumentValidation"), // in one command with the documents
	})
}

// DropApplierRole ends the lanes' right: a late one is refused by the shard.
func (s *Set) DropApplierRole(ctx context.Context, p chunk.PlacementID, m chunk.MigrationID, d chunk.AttemptID) error {
	return s.dropRole(ctx, chunk.ApplierRole(p, m, d))
}

// GrantLoaderAgain gives the loaders a role that they do not hold although it is there:
// some servers lose a grant to another one of the same user at the same time. It makes
// none: where the role was dropped, it fails with kind Lost, code grant.void.
func (s *Set) GrantLoaderAgain(ctx context.Context, p chunk.PlacementID, m chunk.MigrationID) error {
	return s.grantRole(ctx, chunk.LoaderUser, chunk.LoaderRole(p, m))
}

// GrantApplierAgain is [Set.GrantLoaderAgain] for the lanes of a direction.
func (s *Set) GrantApplierAgain(ctx context.Context, p chunk.PlacementID, m chunk.MigrationID, d chunk.AttemptID) error {
	return s.grantRole(ctx, chunk.ApplierUser, chunk.ApplierRole(p, m, d))
}

// giveRole makes a role and gives it to a user; both may have happened already.
func (s *Set) giveRole(ctx context.Context, user, role string, ps []privilege) error {
	if err := s.ensureRole(ctx, role, ps); err != nil {
		return err
	}
	return s.grantRole(ctx, user, role)
}

// editFor bounds one change of who holds which role: others wait for it.
const editFor = 15 * time.Second

// edit changes who holds which role, one change of a shard after the other: some servers lose
// a grant to one of another role, or to the drop of one, that the same user gets or loses at the same
// time. Those of other processes are found by what is refused, see [Set.GrantLoaderAgain].
func (s *Set) edit(ctx context.Context, command bson.D) error {
	ctx, cancel := context.WithTimeout(ctx, editFor)
	defer cancel()
	turn := s.clients.turn(s.Name())
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return fmt.Errorf("wait for other changes of roles: %w", ctx.Err())
	}
	_, err := s.adminRun(ctx, command)
	return err
}

// grantRole gives a role to a user.
func (s *Set) grantRole(ctx context.Context, user, role string) error {
	err := s.edit(ctx, bson.D{{Key: "grantRolesToUser", Value: user}, {Key: "roles", Value: []string{role}}, majority()})
	if mongocode.IsRoleNotFound(err) {
		return failure.New(failure.Lost, "grant.void", "role %s on shard %s was dropped meanwhile: %w", role, s.Name(), err)
	}
	return s.wrap(err, "grant %s to %s", role, user)
}

// ensureRole makes a role of admin. One that exists is left as it is: a role that
// is named for an attempt or a migration never changes.
func (s *Set) ensureRole(ctx context.Context, role string, ps []privilege) error {
	_, err := s.adminRun(ctx, bson.D{
		{Key: "createRole", Value: role}, {Key: "privileges", Value: ps}, {Key: "roles", Value: bson.A{}}, majority(),
	})
	if mongocode.IsRoleExists(err) {
		return nil
	}
	return s.wrap(err, "create role %s", role)
}

// dropRole drops a role of admin, from those who hold it too. One that is gone is fine.
func (s *Set) dropRole(ctx context.Context, role string) error {
	err := s.edit(ctx, bson.D{{Key: "dropRole", Value: role}, majority()})
	if mongocode.IsRoleNotFound(err) {
		return nil
	}
	return s.wrap(err, "drop role %s", role)
}
