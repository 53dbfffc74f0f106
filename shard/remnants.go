package shard

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
)

// Remnants is what Drover has on a shard's servers beside placements: what goes when
// the shard is removed.
type Remnants struct {
	Users       []string         `json:"users"`
	Roles       []string         `json:"roles"`
	Collections map[string]int64 `json:"collections"` // of Drover's database, with their documents
}

// Remnants lists what [Unregister] would remove from a shard.
func (c *Clients) Remnants(ctx context.Context, s chunk.Shard) (Remnants, error) {
	admin, err := c.Client(s, chunk.AdminUser)
	if err != nil {
		return Remnants{}, err
	}
	r, err := remnants(ctx, admin)
	if err != nil {
		return r, wrapFor(s.Name, err, "list what Drover has there")
	}
	return r, nil
}

// remnants lists Drover's users and roles that are there, and what its database holds.
func remnants(ctx context.Context, client *mongo.Client) (r Remnants, err error) {
	var there struct {
		Users []struct {
			User string `bson:"user"`
		} `bson:"users"`
		Roles []struct {
			Role string `bson:"role"`
		} `bson:"roles"`
	}
	for _, command := range []string{"usersInfo", "rolesInfo"} {
		reply, err := run(ctx, client, "admin", bson.D{{Key: command, Value: 1}})
		if err == nil {
			err = bson.Unmarshal(reply, &there)
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", command, err)
		}
	}
	ours := accounts()
	for _, x := range there.Users {
		if slices.ContainsFunc(ours, func(a account) bool { return a.user == x.User }) {
			r.Users = append(r.Users, x.User)
		}
	}
	for _, x := range there.Roles {
		if grantRole.MatchString(x.Role) || slices.ContainsFunc(ours, func(a account) bool { return a.role == x.Role }) {
			r.Roles = append(r.Roles, x.Role)
		}
	}
	slices.Sort(r.Users)
	slices.Sort(r.Roles)
	db := client.Database(chunk.SystemDatabase)
	names, err := db.ListCollectionNames(ctx, bson.D{})
	if err != nil {
		return r, fmt.Errorf("list collections of %s: %w", chunk.SystemDatabase, err)
	}
	r.Collections = map[string]int64{}
	for _, name := range names {
		if r.Collections[name], err = db.Collection(name).CountDocuments(ctx, bson.D{}); err != nil {
			return r, fmt.Errorf("count %s.%s: %w", chunk.SystemDatabase, name, err)
		}
	}
	return r, nil
}
