package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/failure"
)

// Adoption is what was seen of a database that is to become a placement as it is.
type Adoption struct {
	Database    string           `json:"database"`
	Collections []CollectionInfo `json:"-"`
	Documents   int64            `json:"documents"`
	Bytes       int64            `json:"bytes"`
	Writers     []Principal      `json:"writers"` // may write to it beside the proxies
	Seen        []Seen           `json:"seen"`    // are at it now beside the proxies
	Listed      bool             `json:"listed"`  // the server lists other clients' operations
	Findings    []Finding        `json:"findings"`
}

// Seen is one client that was seen at a database beside the proxies.
type Seen struct {
	User   string `json:"user"`
	Client string `json:"client"`
	App    string `json:"app,omitempty"`
	Doing  string `json:"doing"`
}

// OK reports whether nothing forbids the adoption.
func (a Adoption) OK() bool {
	return !slices.ContainsFunc(a.Findings, func(f Finding) bool { return f.Level == "error" })
}

// add notes a finding.
func (a *Adoption) add(level, code, what, hint string) {
	a.Findings = append(a.Findings, Finding{Level: level, Code: code, What: what, Hint: hint})
}

// CheckAdoptable looks at a database that is to be adopted and changes nothing. key
// gives the shard key of each collection. Only an answer that could not be had is an
// error; everything else is in the findings. Codes: adoption.name, adoption.empty,
// adoption.array_key, those of [CheckMovable] and [CheckUnique], and, which keep a
// move from beginning but not an adoption, adoption.writers and adoption.seen.
func (s *Set) CheckAdoptable(ctx context.Context, db string, key func(collection string) string) (Adoption, error) {
	a := Adoption{Database: db, Listed: s.shard.Capabilities.ListsOperations}
	if _, ours := chunk.PlacementOf(db); ours || slices.Contains([]string{"admin", "local", "config", chunk.SystemDatabase, ""}, db) {
		a.add("error", "adoption.name", fmt.Sprintf("%q cannot be adopted", db), "databases of the server's and of Drover's own naming are not")
		return a, nil
	}
	infos, err := s.Inventory(ctx, db)
	if err != nil {
		return a, err
	}
	if len(infos) == 0 {
		a.add("error", "adoption.empty", fmt.Sprintf("database %s on shard %s has no collection", db, s.Name()), "drover db create makes a new one")
		return a, nil
	}
	a.Collections = infos
	for _, x := range infos {
		a.Documents, a.Bytes = a.Documents+x.Count, a.Bytes+x.Size
	}
	a.refused(CheckMovable(db, infos))
	a.refused(CheckUnique(db, Collections(infos, key)))
	if a.OK() {
		if err := s.checkKeys(ctx, &a, key); err != nil {
			return a, err
		}
	}
	return a, s.CheckBeside(ctx, &a)
}

// refused notes what a check over all collections says.
func (a *Adoption) refused(err error) {
	for _, one := range unjoin(err) {
		if e, ok := errors.AsType[*failure.Error](one); ok {
			a.add("error", e.Code, strings.TrimPrefix(e.Error(), e.Code+": "), e.Hint)
		}
	}
}

// unjoin gives the parts of a joined error.
func unjoin(err error) []error {
	if many, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // exactly what errors.Join gives
		return many.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// checkKeys looks for documents that have no one point in the key space: the value
// of their shard key is an array, or the path to it goes through one.
func (s *Set) checkKeys(ctx context.Context, a *Adoption, key func(string) string) error {
	for _, x := range a.Collections {
		path := key(x.Name)
		or := bson.A{}
		for _, field := range chunk.KeyFields(path) {
			parts := strings.Split(field, ".")
			for i := range parts {
				or = append(or, bson.D{{Key: strings.Join(parts[:i+1], "."), Value: bson.D{{Key: "$type", Value: "array"}}}})
			}
		}
		var found bson.Raw
		err := s.admin().Database(a.Database).Collection(x.Name).FindOne(ctx, bson.D{{Key: "$or", Value: or}},
			options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}})).Decode(&found)
		if errors.Is(err, mongo.ErrNoDocuments) {
			continue
		}
		if err != nil {
			return s.wrap(err, "look at the keys of %s.%s", a.Database, x.Name)
		}
		a.add("error", "adoption.array_key", fmt.Sprintf("%s.%s: shard key %s is or passes through an array in document %s", a.Database, x.Name, path, found.Lookup("_id")),
			"choose another shard key, or change these documents")
	}
	return nil
}

// CheckBeside lists who may reach a database beside the proxies, and who does now.
func (s *Set) CheckBeside(ctx context.Context, a *Adoption) error {
	all, err := s.CheckPrincipals(ctx, a.Database)
	if err != nil {
		return err
	}
	a.Writers = slices.DeleteFunc(all, func(p Principal) bool { return strings.HasPrefix(p.User, "drover_") })
	for _, p := range a.Writers {
		a.add("warn", "adoption.writers", fmt.Sprintf("user %s may write to %s beside the proxies: %s", p.User, a.Database, p.Why),
			"take its write role away once its applications go through the proxies; until then no chunk of it can be moved")
	}
	if !a.Listed {
		a.add("warn", "adoption.not_listed", "the server does not list other clients' operations: who is at the database now is not known", "go by the users that may write")
		return nil
	}
	if a.Seen, err = s.seen(ctx, a.Database); err != nil {
		return err
	}
	for _, x := range a.Seen {
		a.add("warn", "adoption.seen", fmt.Sprintf("%s from %s (%s) is at %s beside the proxies: %s", x.User, x.Client, x.App, a.Database, x.Doing), "move it to the proxies")
	}
	return nil
}

// seen lists whose operations on a database do not come from Drover, one line for
// each user, host and application.
func (s *Set) seen(ctx context.Context, db string) ([]Seen, error) {
	cur, err := s.admin().Database("admin").Aggregate(ctx, bson.A{bson.D{{Key: "$currentOp", Value: bson.D{
		{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true}, {Key: "idleCursors", Value: true},
	}}}})
	if err != nil {
		return nil, s.wrap(err, "list operations")
	}
	var all []struct {
		operation `bson:",inline"`
		Client    string `bson:"client"`
		App       string `bson:"appName"`
		Op        string `bson:"op"`
	}
	if err := cur.All(ctx, &all); err != nil {
		return nil, s.wrap(err, "list operations")
	}
	found := map[Seen]bool{}
	for _, o := range all {
		at, _, _ := strings.Cut(o.NS, ".")
		if at != db && text(o.Command, "$db") != db {
			continue
		}
		for _, u := range o.Users {
			if strings.HasPrefix(u.User, "drover_") && u.DB == "admin" || u.User == "__system" {
				continue
			}
			host, _, _ := strings.Cut(o.Client, ":")
			found[Seen{User: u.User + "@" + u.DB, Client: host, App: o.App, Doing: o.Op}] = true
		}
	}
	out := make([]Seen, 0, len(found))
	for x := range found {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Seen) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return out, nil
}

// Adopt makes a database that is there the placement p: its first grants, which
// nobody is given yet, and the record that the shard itself keeps of it. If
// interrupted: run again.
func (s *Set) Adopt(ctx context.Context, p chunk.Placement, t chunk.Token) error {
	if err := s.CreateGrants(ctx, p, 0); err != nil {
		return err
	}
	if err := s.WriteOpenRecord(ctx, p.ID, 0, t); err != nil {
		return err
	}
	_, err := s.fences().UpdateOne(ctx, bson.D{{Key: "_id", Value: p.ID}}, bson.D{{Key: "$set", Value: bson.D{{Key: "database", Value: p.Database}}}})
	return s.wrap(err, "record that placement %d is %s", p.ID, p.Database)
}

// Release gives an adopted database back: nothing in it is touched, no grant for it
// is left, and no attempt can ever fence or open it again. If interrupted: run again.
func (s *Set) Release(ctx context.Context, p chunk.Placement) error {
	if p.OwnName() == "" {
		return failure.New(failure.Invalid, "adoption.not_adopted", "placement %d lives in a database that Drover made", p.ID)
	}
	if err := s.MarkGone(ctx, p, nil); err != nil {
		return err
	}
	return s.dropRolesOf(ctx, p.ID)
}
